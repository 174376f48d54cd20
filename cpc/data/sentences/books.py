"""Books: the plain text files of a folder, each a document of consecutive sentences, cut by split."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from cpc.data.sentences.splitting import read_sentences
from cpc.data.store.contents import say_contents
from cpc.data.store.folders import find_files, name_a_few, refuse_doubles
from cpc.data.store.splits import draw_splits, split_named
from cpc.data.store.text_files import Encoding

FEWEST_SENTENCES = 2  # one to know, one to predict


class Books:
    """The `*.txt` files below a folder, at any depth; each is a book.

    A book belongs to the split that a word of its path says (`train/emma.txt`, `valid.txt`; `validation` and `dev` are
    `valid`). Where none says one, whole books are held out, by a hash of their names.

    Args:
        source: the folder.
        valid_share: expected share of the books in `valid`.
        test_share: likewise, in `test`.
        encoding: of the files, `UTF-8`, `latin-1` or `windows-1252`.
        skip_bad: go on without books that are not in this encoding or have fewer than two sentences, and say how many.

    Attributes:
        names: of the books, sorted; those skipped left out.
        splits: of each.

    Raises:
        ValueError: if the folder holds no text file, a book cannot be used, some books name a split and others do not,
            or there are too few to hold some out.
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
            raise ValueError(f"{source} is no folder: sentences are read from a folder of *.txt files, a book each")
        names = find_files(self.root, {".txt"}, "text")
        refuse_doubles(self.root, names)
        bad = {name: problem for name in names if (problem := self._problem(name))}
        if bad and (not skip_bad or len(bad) == len(names)):
            raise ValueError(
                f"{len(bad)} of {len(names)} books of {source} cannot be used:\n{name_a_few(list(bad.values()))}\n"
                "mend them, take them out, or set `skip_bad` to go on without them"
            )
        if bad:
            print(f"{len(bad)} of {len(names)} books skipped:\n{name_a_few(list(bad.values()))}")
        self.names = [name for name in names if name not in bad]
        named = {name: split_named(name) for name in self.names}
        nameless = [name for name, split in named.items() if split is None]
        if 0 < len(nameless) < len(named):
            one = next(name for name, split in named.items() if split)
            raise ValueError(
                f"{one} names its split, but {nameless[0]} does not: put train, valid or test in every book's path, or "
                "in none"
            )
        self.splits = (
            draw_splits(self.names, valid_share=valid_share, test_share=test_share)
            if nameless
            else [split for split in named.values() if split is not None]
        )
        say_contents(source, "books", self.splits)

    @property
    def digest(self) -> str:
        """SHA-256 of names and contents, in hexadecimal."""
        found = hashlib.sha256()
        for name in self.names:
            found.update(f"{name}\n".encode("utf-8", "surrogateescape"))
            with (self.root / name).open("rb") as stream:
                found.update(hashlib.file_digest(stream, "sha256").digest())
        return found.hexdigest()

    def sentences(self, name: str) -> list[str]:
        """Of a book, in order; raises a ValueError on bytes that are not in the encoding."""
        return read_sentences(self.root / name, self.encoding)

    def split_books(self, split: str) -> Iterator[str]:
        """The sentences of all books of a split."""
        for name, own in zip(self.names, self.splits, strict=True):
            if own == split:
                yield from self.sentences(name)

    def _problem(self, name: str) -> str | None:
        try:
            num_sentences = len(self.sentences(name))
        except ValueError as error:
            return str(error)
        if num_sentences >= FEWEST_SENTENCES:
            return None
        return f"{self.root / name} is empty" if not num_sentences else f"{self.root / name} has a single sentence"
