"""Books: the plain text files of a folder, each with consecutive sentences and a split."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from cpc.data.store.contents import draw_splits, say_contents
from cpc.data.store.folders import find_files, refuse_bad, refuse_doubles
from cpc.data.store.text_files import Encoding, read_text
from cpc.data.text.lines import splits_of_names
from cpc.data.text.segmentation import split_sentences

FEWEST_SENTENCES = 2  # minimum number of sentences in a book, since a sentence predicts the next sentence


class Books:
    """The `*.txt` files below a folder, at any depth. Each file is a book.

    A word in the path of a book names its split (`train/emma.txt`, `valid.txt`; `validation` and `dev` mean `valid`).
    If no path names a split, whole books are held out by a hash of their names, in these expected shares. Books that
    are not in this encoding, or have fewer than two sentences, are a ValueError; with `skip_bad` they are left out.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        valid_share: float,
        test_share: float,
        encoding: Encoding = "UTF-8",
        skip_bad: bool = False,
    ) -> None:
        self.root, self.encoding = Path(source), encoding
        if not self.root.is_dir():
            raise ValueError(f"{source} is not a folder: sentences are read from a folder of *.txt files, one per book")
        names = find_files(self.root, {".txt"}, "text")
        refuse_doubles(self.root, names)
        bad = {name: problem for name in names if (problem := self._problem(name))}
        refuse_bad(list(bad.values()), len(names), "books", skip_bad)
        self.names = [name for name in names if name not in bad]
        self.splits = list(splits_of_names(self.names).values()) or draw_splits(
            self.names, valid_share=valid_share, test_share=test_share, least_files=1
        )
        say_contents(source, "books", self.splits)

    @property
    def digest(self) -> str:
        """SHA-256 of names and contents, in hexadecimal."""
        sha256 = hashlib.sha256()
        for name in self.names:
            sha256.update(f"{name}\n".encode("utf-8", "surrogateescape"))
            with (self.root / name).open("rb") as stream:
                sha256.update(hashlib.file_digest(stream, "sha256").digest())
        return sha256.hexdigest()

    def sentences(self, name: str) -> list[str]:
        """Return the sentences of a book in order; raise ValueError on bytes that are not in the encoding."""
        return read_sentences(self.root / name, self.encoding)

    def split_books(self, split: str) -> Iterator[str]:
        """Yield the sentences of all books of a split."""
        for name, book_split in zip(self.names, self.splits, strict=True):
            if book_split == split:
                yield from self.sentences(name)

    def _problem(self, name: str) -> str | None:
        try:
            num_sentences = len(self.sentences(name))
        except ValueError as error:
            return str(error)
        if num_sentences >= FEWEST_SENTENCES:
            return None
        return f"{self.root / name} is empty" if not num_sentences else f"{self.root / name} has a single sentence"


def read_sentences(path: Path, encoding: Encoding) -> list[str]:
    """Return the sentences of a text file in order."""
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
