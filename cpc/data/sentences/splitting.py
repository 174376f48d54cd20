"""Read plain text files and split them into paragraphs and sentences."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from cpc.data.store.text_files import Encoding, read_text
from cpc.data.text.segmentation import split_sentences


def read_sentences(path: Path, encoding: Encoding) -> list[str]:
    """Return the sentences of a text file in order; raises the errors of `cpc.data.store.text_files.decode`."""
    text = read_text(path, encoding)
    return [sentence for paragraph in paragraphs(text.splitlines()) for sentence in split_sentences(paragraph)]


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs, which blank lines separate; the lines of a paragraph are joined by spaces."""
    joined: list[str] = []
    for line in lines:
        if words := line.split():
            joined += words
        elif joined:
            yield " ".join(joined)
            joined = []
    if joined:
        yield " ".join(joined)
