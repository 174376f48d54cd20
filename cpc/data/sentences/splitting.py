"""Plain text to sentences."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from cpc.data.store.untrusted import reading

Encoding = Literal["UTF-8", "latin-1"]

# A full stop, question or exclamation mark with closing quotes, before white space and what can begin a sentence.
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]_]*(?=\s+[\"'\u201c\u2018(\[_-]*[A-Z0-9])")
_LAST_WORD = re.compile(r"(\w[\w.]*)\.$")
_ABBREVIATIONS = frozenset(
    "mr mrs ms messrs mme mlle dr st rev hon capt col gen lt sgt maj adm prof jr sr esq vs viz vol no i.e e.g".split()
)


def read_text(path: Path, encoding: Encoding) -> str:
    """The text of a file.

    Raises:
        ValueError: on bytes that are not in this encoding, naming the file and the place of the first.
    """
    with reading(path):
        try:
            return path.read_text(encoding).removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, byte {error.start}: {error.object[error.start]:#04x} is not {encoding} ({error.reason}); "
                "convert the file, take it out, or set `encoding`, of old files often latin-1"
            ) from error


def read_sentences(path: Path, encoding: Encoding) -> list[str]:
    """The sentences of a text file, in order; as `read_text`."""
    text = read_text(path, encoding)
    return [sentence for each in paragraphs(text.splitlines()) for sentence in split_sentences(each)]


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
