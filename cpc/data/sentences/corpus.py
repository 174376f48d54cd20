"""Books as token ids: encoded once into memory maps, and cut into passages, from which windows are taken."""

import hashlib
from array import array
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from cpc.data.map_style import MapStyleCorpus
from cpc.data.sentences.books import Books
from cpc.data.sentences.windows import Passages, SentenceWindows
from cpc.data.store.atomic import json_text, write_json
from cpc.data.store.fingerprints import Content, text_content
from cpc.data.text.corpus import write_once, write_stream
from cpc.data.text.vocabulary import Vocabulary

_FORMAT = 2  # format 1 split sentences and words only by English letters and punctuation
_INDEX = "index.json"


class SentenceCorpus(MapStyleCorpus):
    """The books of a source, encoded by a vocabulary. Books are read on first use, since probes do not need them.

    A passage is a run of consecutive sentences of a book. Like a file of audio, it is a sequence: its windows share a
    sequence id. A book takes the role of a speaker: same-speaker strategies compare sentences of one book.

    Args:
        options: a `cpc.data.Sentences`.
        vocabulary: the vocabulary.
    """

    nouns = ("speaker", "passage")  # messages use the words of the options

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        self.options = options
        self.vocabulary = vocabulary

    @cached_property
    def books(self) -> Books:
        """The books of the source."""
        return self.options.books()

    @property
    def speakers(self) -> list[str]:  # type: ignore[override]
        """Names of the books, which are the groups."""
        return self.books.names

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Raise an error on a split without a book. Speakers need no check: the book of every passage is known."""
        for split in splits:
            if split is not None and split not in self.books.splits:
                raise ValueError(
                    f"{self.options.source} has no book of split {split!r}, only of "
                    f"{', '.join(sorted(set(self.books.splits)))}: put the split into the name of a book, or set "
                    "`valid_share` or `test_share`"
                )

    @cached_property
    def passages(self) -> Passages:
        """Passages of all books; the first access encodes the books and writes them to the cache."""
        options, books = self.options, self.books
        made_from = [_FORMAT, books.digest, books.encoding, self.vocabulary.description, options.max_tokens]
        name = hashlib.sha256(json_text(made_from).encode()).hexdigest()[:16]
        folder = options.cache / f"sentences_{name}"
        write_once(folder, self._pack)
        ends, num_sentences = (np.load(folder / f"{name}.npy") for name in ("ends", "num_sentences"))
        tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        return Passages.build(tokens, ends, num_sentences, options.passage_sentences)

    def windows(self, split: str | None, *, is_training: bool = False) -> SentenceWindows:
        """Return the windows of a split; None: of all splits."""
        self.check(split)
        has_split = [split in (None, book_split) for book_split in self.books.splits]
        rows = np.flatnonzero(np.array(has_split)[self.passages.book])
        return SentenceWindows(self.passages, rows, self.options.window_sentences, self.options.max_tokens, split)

    def content(self, rows: np.ndarray) -> Content:  # noqa: D102
        return text_content(self.passages.texts(rows))

    def statistics(self, split: str | None) -> tuple[float, float]:
        """Raise NotImplementedError, since tokens have no statistics."""
        raise NotImplementedError

    def _pack(self, folder: Path) -> None:
        ends, num_sentences = array("q", [0]), []

        def pieces() -> Iterator[np.ndarray]:
            for name in self.books.names:
                before = len(ends)
                for piece in self._pieces(name):
                    ends.append(ends[-1] + len(piece))
                    yield piece
                num_sentences.append(len(ends) - before)

        write_stream(folder / "tokens.npy", pieces())
        np.save(folder / "ends.npy", np.array(ends, np.int64))
        np.save(folder / "num_sentences.npy", np.array(num_sentences, np.int64))
        write_json({"books": self.books.names}, folder / _INDEX)  # last, to mark the folder as complete

    def _pieces(self, name: str) -> Iterator[Int[np.ndarray, " n"]]:
        """Yield the token ids of a book's sentences; a long sentence is cut into parts of similar length."""
        for sentence in self.books.sentences(name):
            tokens = np.array(self.vocabulary.encode(sentence))
            yield from np.array_split(tokens, -(-len(tokens) // self.options.max_tokens))
