r"""Boundaries of words and sentences, by the character classes of Unicode.

Words follow the default rules of Unicode Standard Annex 29 where these matter beyond English: marks and joiners belong
to their letter, and in scripts without spaces (Han, Hiragana, Thai, Lao, Khmer, Burmese) each character is a word.
English words are the matches of `\w+(?:'\w+)*|[^\w\s]`; in all versions 3.5 is three words.
"""

from unicodedata import normalize

import regex

WORD_START = "\u2581"  # stands for the white space before a word, so that subwords can be joined to text again
VERSION = 2  # in version 1 words were cut at every mark

_SPACE = r"\s\x1c-\x1f"  # the white space of str.split
_LETTER = r"\p{L}\p{N}_"
_IN_WORD = rf"{_LETTER}\p{{M}}\p{{Cf}}"  # marks, joiners, soft hyphens; U+200B separates words of Khmer and Thai
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Line_Break=Complex_Context}]"
_SPACED_WORD = rf"[{_LETTER}--{_UNSPACED}][{_IN_WORD}--[{_UNSPACED}--\p{{M}}]--\u200b]*"

WORD = regex.compile(rf"{_SPACED_WORD}(?:['\u2019\u05f3\u05f4]{_SPACED_WORD})*|(?![{_SPACE}\u200b])\X", regex.VERSION1)
CHUNK = regex.compile(
    rf"{WORD_START}?(?:[{_LETTER}][{_IN_WORD}--\u200b]*|(?:(?![{_LETTER}{_SPACE}{WORD_START}])\X)+)", regex.VERSION1
)
# Characters that version 1 cut in another way. \u0130 is one of them, because it becomes i and a mark in lower case.
CUT_ANEW = regex.compile(rf"[\p{{M}}\p{{Cf}}\u0130\u05f3\u05f4{_UNSPACED}]", regex.VERSION1)

# The end of a sentence: a full stop, question mark or exclamation mark, perhaps with closing quotes, before white space
# and the beginning of a sentence (a capital, a letter of a script without capitals, a digit). Marks with no other use
# (Devanagari's danda, the Chinese full stop) need no white space or beginning. The Greek question mark is a semicolon.
# French has a space before the closing quote.
_CLOSING = r"['\"_\u201c\u2018\u00ab\u2039\p{Pe}\p{Pf}\p{M}]*(?:\s[\u00bb\u203a](?=\s|$))?"
_OPENING = r"(?:[\u2013\u2014]\s*)?(?:[\"'_\-\u00bf\u00a1\p{Ps}\p{Pi}\p{Pf}]|\u00ab\s)*"
_BEGINNING = r"[\p{Lu}\p{Lt}\p{Lo}\p{Georgian}\p{Nd}]"  # Georgian sentences begin with lower-case letters
_END = regex.compile(
    rf"(?:(?<![.!?\u2026])[.!?\u2026]++|(?<=\p{{Greek}}\p{{M}}*)[;\u037e]){_CLOSING}(?=\s+{_OPENING}{_BEGINNING})"
    rf"|(?:[\p{{Sentence_Break=STerm}}--[!?]]|\uff0e(?!\p{{Nd}}))[\p{{Sentence_Break=STerm}}.\u2026]*{_CLOSING}",
    regex.VERSION1,
)
_LAST_WORD = regex.compile(rf"([{_LETTER}][{_IN_WORD}.]*)\.$", regex.VERSION1)
# One letter with its marks is an initial (J., \u05d0.), except in scripts where a character is at least a syllable.
_INITIAL = regex.compile(r"(?![\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}])\X")
_LONGEST = 40  # number of characters before the end of a sentence that are searched for an abbreviation
_ABBREVIATIONS = frozenset(
    "mr mrs ms messrs mme mlle dr st rev hon capt col gen lt sgt maj adm prof jr sr esq vs viz vol no i.e e.g".split()
)


def normal_form(text: str, *, lower_case: bool = False) -> str:
    """Return text in Unicode's normal form C, which has one spelling for equal characters, optionally in lower case."""
    return normalize("NFC", text.lower() if lower_case else text)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, which end as `_END` describes; only white space between sentences is lost.

    Common English abbreviations and single letters (initials) do not end a sentence. Thai has no mark of an end: a Thai
    paragraph is one sentence.
    """
    sentences, start = [], 0
    for end in _END.finditer(paragraph):
        if not _is_abbreviation(paragraph[max(start, end.end() - _LONGEST) : end.end()]):
            sentences.append(paragraph[start : end.end()].strip())
            start = end.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences


def _is_abbreviation(text: str) -> bool:
    match = _LAST_WORD.search(text)
    return match is not None and (_INITIAL.fullmatch(match[1]) is not None or match[1].lower() in _ABBREVIATIONS)
