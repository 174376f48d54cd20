r"""Borders of words and sentences, by the character classes of Unicode.

Words follow the default rules of Unicode Standard Annex 29 where these matter beyond English: marks and joiners belong
to their letter, and scripts without spaces (Han, Hiragana, Thai, Lao, Khmer, Burmese) give a word for each character.
English text gives the words that `\w+(?:'\w+)*|[^\w\s]` finds: 3.5 is three of them, as it has been in every run.
"""

from unicodedata import normalize

import regex

WORD_START = "\u2581"  # the white space before a word, so that subwords can be joined to text again
VERSION = 2  # 1 cut words at every mark

_SPACE = r"\s\x1c-\x1f"  # as str.split has it
_LETTER = r"\p{L}\p{N}_"
_IN_WORD = rf"{_LETTER}\p{{M}}\p{{Cf}}"  # marks, joiners, soft hyphens; U+200B parts the words of Khmer and Thai
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Line_Break=Complex_Context}]"
_SPACED_WORD = rf"[{_LETTER}--{_UNSPACED}][{_IN_WORD}--[{_UNSPACED}--\p{{M}}]--\u200b]*"

WORD = regex.compile(
    rf"{_SPACED_WORD}(?:['\u2019\u05f3\u05f4]{_SPACED_WORD})*|(?![{_SPACE}\u200b])\X",
    regex.VERSION1,
)
CHUNK = regex.compile(
    rf"{WORD_START}?(?:[{_LETTER}][{_IN_WORD}--\u200b]*|(?:(?![{_LETTER}{_SPACE}{WORD_START}])\X)+)",
    regex.VERSION1,
)
# Characters that version 1 cut in another way; \u0130 becomes i and a mark in lower case.
CUT_ANEW = regex.compile(rf"[\p{{M}}\p{{Cf}}\u0130\u05f3\u05f4{_UNSPACED}]", regex.VERSION1)

# A full stop, question or exclamation mark with closing quotes, before white space and the beginning of a sentence: a
# capital, a letter of a script without capitals, a digit. Marks that are nothing but an end (Devanagari's danda, the
# Chinese full stop) need neither. Greek asks with a semicolon. French sets a space before the quote that closes.
_CLOSING = r"['\"_\u201c\u2018\u00ab\u2039\p{Pe}\p{Pf}\p{M}]*(?:\s[\u00bb\u203a](?=\s|$))?"
_OPENING = r"(?:[\u2013\u2014]\s*)?(?:[\"'_\-\u00bf\u00a1\p{Ps}\p{Pi}\p{Pf}]|\u00ab\s)*"
_BEGINNING = r"[\p{Lu}\p{Lt}\p{Lo}\p{Georgian}\p{Nd}]"  # Georgian letters are lower case, and begin its sentences
_END = regex.compile(
    rf"(?:(?<![.!?\u2026])[.!?\u2026]++|(?<=\p{{Greek}}\p{{M}}*)[;\u037e]){_CLOSING}(?=\s+{_OPENING}{_BEGINNING})"
    rf"|(?:[\p{{Sentence_Break=STerm}}--[!?]]|\uff0e(?!\p{{Nd}}))[\p{{Sentence_Break=STerm}}.\u2026]*{_CLOSING}",
    regex.VERSION1,
)
_LAST_WORD = regex.compile(rf"([{_LETTER}][{_IN_WORD}.]*)\.$", regex.VERSION1)
# A letter with its marks is an initial (J., \u05d0.), but a word where a character is a syllable or more.
_INITIAL = regex.compile(r"(?![\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}])\X")
_LONGEST = 40  # characters of a paragraph that are searched for an abbreviation
_ABBREVIATIONS = frozenset(
    "mr mrs ms messrs mme mlle dr st rev hon capt col gen lt sgt maj adm prof jr sr esq vs viz vol no i.e e.g".split()
)


def normal_form(text: str, *, lower_case: bool = False) -> str:
    """The text in Unicode's normal form C, in lower case if asked: one spelling for what looks the same."""
    return normalize("NFC", text.lower() if lower_case else text)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, which together hold all of it but white space.

    A sentence ends with `.`, `!`, `?` or an ellipsis where white space and a capital, a letter of a script without
    capitals or a digit follow, quotes, brackets and dashes between them left aside. It ends with a mark that ends
    nothing else, such as the danda or the Chinese full stop, whatever follows. Common abbreviations of English and
    single letters (initials) end none. Thai has no such mark: its sentences are paragraphs.
    """
    sentences, start = [], 0
    for end in _END.finditer(paragraph):
        if not _is_abbreviation(paragraph[max(start, end.end() - _LONGEST) : end.end()]):
            sentences.append(paragraph[start : end.end()].strip())
            start = end.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences


def _is_abbreviation(text: str) -> bool:
    found = _LAST_WORD.search(text)
    return found is not None and (_INITIAL.fullmatch(found[1]) is not None or found[1].lower() in _ABBREVIATIONS)
