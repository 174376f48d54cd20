"""Books as classes of tokens: encoded once into memory maps, and cut into passages, from which windows are drawn."""

import hashlib
from array import array
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from cpc.data.drawn import DrawnCorpus
from cpc.data.sentences.books import Books
from cpc.data.sentences.windows import Passages, SentenceWindows
from cpc.data.store.atomic import json_text, write_json
from cpc.data.text.corpus import write_once
from cpc.data.text.vocabulary import Vocabulary

_FORMAT = 2  # 1 cut sentences and words at the letters and marks of English
_INDEX = "index.json"


class SentenceCorpus(DrawnCorpus):
    """The books of a source in a vocabulary. They are read when they are first asked for: probes ask for none.

    A passage, some consecutive sentences of a book, is what a file is to audio: windows of one share a sequence id. The
    book is the speaker: same-speaker strategies compare sentences of one book.

    Args:
        options: a `cpc.data.Sentences`.
        vocabulary: to encode with.
    """

    nouns = ("speaker", "passage")  # in messages: the options are called so

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        self.options = options
        self.vocabulary = vocabulary

    @cached_property
    def books(self) -> Books:
        """The source's."""
        return self.options.books()

    @property
    def speakers(self) -> list[str]:  # type: ignore[override]
        """The books' names."""
        return self.books.names

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Refuse a split without a book; each passage's book is known."""
        for split in splits:
            if split is not None and split not in self.books.splits:
                raise ValueError(
                    f"{self.options.source} has no book of split {split!r}, only of "
                    f"{', '.join(sorted(set(self.books.splits)))}: name a book so, or set `valid_share` or `test_share`"
                )

    @cached_property
    def passages(self) -> Passages:
        """Of all books; encoded here, if they are not yet."""
        options, books = self.options, self.books
        made_from = [_FORMAT, books.digest, books.encoding, self.vocabulary.description, options.max_tokens]
        name = hashlib.sha256(json_text(made_from).encode()).hexdigest()[:16]
        folder = options.cache / f"sentences_{name}"
        write_once(folder, self._pack)
        ends, num_sentences = (np.load(folder / f"{name}.npy") for name in ("ends", "num_sentences"))
        tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        return Passages.build(tokens, ends, num_sentences, options.passage_sentences)

    def windows(self, split: str | None, *, is_training: bool = False) -> SentenceWindows:
        """The windows of a split, None of all."""
        self.check(split)
        chosen = [split in (None, own) for own in self.books.splits]
        rows = np.flatnonzero(np.array(chosen)[self.passages.book])
        return SentenceWindows(self.passages, rows, self.options.window_sentences, self.options.max_tokens, split)

    def statistics(self, split: str | None) -> tuple[float, float]:
        """Tokens have none."""
        raise NotImplementedError

    def _pack(self, folder: Path) -> None:
        ends, num_sentences = array("q", [0]), []
        with (folder / "tokens.raw").open("wb") as stream:
            for name in self.books.names:
                before = len(ends)
                for piece in self._pieces(name):
                    stream.write(piece.astype(np.int32).tobytes())
                    ends.append(ends[-1] + len(piece))
                num_sentences.append(len(ends) - before)
        np.save(folder / "tokens.npy", np.memmap(folder / "tokens.raw", np.int32, "r"))
        (folder / "tokens.raw").unlink()
        np.save(folder / "ends.npy", np.array(ends, np.int64))
        np.save(folder / "num_sentences.npy", np.array(num_sentences, np.int64))
        write_json({"books": self.books.names}, folder / _INDEX)  # last: it says that the rest is there

    def _pieces(self, name: str) -> Iterator[Int[np.ndarray, " n"]]:
        """The sentences of a book; one that is too long gives several, about as long as each other."""
        for sentence in self.books.sentences(name):
            tokens = np.array(self.vocabulary.encode(sentence))
            yield from np.array_split(tokens, -(-len(tokens) // self.options.max_tokens))
