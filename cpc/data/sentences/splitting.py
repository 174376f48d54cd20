"""Plain text to sentences."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from cpc.data.store.text_files import Encoding, read_text
from cpc.data.text.segmentation import split_sentences


def read_sentences(path: Path, encoding: Encoding) -> list[str]:
    """The sentences of a text file, in order; raises a ValueError as `cpc.data.store.text_files.decode` does."""
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
