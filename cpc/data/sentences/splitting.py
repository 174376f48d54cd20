"""Plain text to sentences."""

import re
from collections.abc import Iterable, Iterator

# A full stop, question or exclamation mark with closing quotes, before white space and what can begin a sentence.
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]_]*(?=\s+[\"'\u201c\u2018(\[_-]*[A-Z0-9])")
_LAST_WORD = re.compile(r"(\w[\w.]*)\.$")
_ABBREVIATIONS = frozenset(
    "mr mrs ms messrs mme mlle dr st rev hon capt col gen lt sgt maj adm prof jr sr esq vs viz vol no i.e e.g".split()
)


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined by a space, up to a blank one."""
    joined: list[str] = []
    for line in lines:
        if words := line.split():
            joined += words
        elif joined:
            yield " ".join(joined)
            joined = []
    if joined:
        yield " ".join(joined)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, which together hold all of it but white space.

    A sentence ends with `.`, `!` or `?` where white space and a capital letter or a digit follow, quotes and brackets
    between them left aside. Common abbreviations and single letters (initials) end none.
    """
    sentences, start = [], 0
    for end in _END.finditer(paragraph):
        if not _is_abbreviation(paragraph[start : end.end()]):
            sentences.append(paragraph[start : end.end()].strip())
            start = end.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences


def _is_abbreviation(text: str) -> bool:
    found = _LAST_WORD.search(text)
    return found is not None and (len(found[1]) == 1 or found[1].lower() in _ABBREVIATIONS)
