"""Books as token ids, in memory maps, cut into passages. B windows, T sentences, W tokens of the longest sentence."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.data.batch import Batch
from cpc.data.map_style import MapStyleCorpus
from cpc.data.recordings.windows import WindowDataset
from cpc.data.sentences.books import Books
from cpc.data.store.atomic import json_text, write_json
from cpc.data.store.fingerprints import Content, text_content
from cpc.data.streams.stream import Draw, digest
from cpc.data.text.corpus import write_once, write_stream
from cpc.data.text.vocabulary import Vocabulary

NO_TOKEN = -1  # pads shorter sentences


@dataclass(eq=False)
class Passages:
    """Passages of consecutive sentences; no passage spans two books."""

    tokens: Int[np.ndarray, " N"]  # of all sentences, one sentence after the other
    ends: Int[np.ndarray, " S"]  # end of each sentence in `tokens`, with a leading 0
    first: Int[np.ndarray, " n"]  # first sentence of each passage
    num_sentences: Int[np.ndarray, " n"]
    book: Int[np.ndarray, " n"]
    max_tokens: int  # largest number of tokens of a sentence

    padding = np.int64(NO_TOKEN)

    @property
    def num_samples(self) -> Int[np.ndarray, " n"]:
        """`num_sentences`: to windows a sentence is a sample."""
        return self.num_sentences

    @property
    def shape(self) -> tuple[int]:
        """Shape of a padded sentence."""
        return (self.max_tokens,)

    def read(self, row: int, start: int, num_samples: int) -> Int[np.ndarray, "t W"]:
        """Return sentences of a passage, padded with `NO_TOKEN`; fewer only at the end."""
        num = min(num_samples, int(self.num_sentences[row]) - start)
        sentences = np.full((num, self.max_tokens), NO_TOKEN)
        for out, sentence in zip(sentences, range(self.first[row] + start, self.first[row] + start + num), strict=True):
            tokens = self.tokens[self.ends[sentence] : self.ends[sentence + 1]]
            out[: len(tokens)] = tokens
        return sentences

    def texts(self, rows: Int[np.ndarray, " n"]) -> Iterator[bytes]:
        """Yield, for each of these passages, the ends of its sentences and its tokens as bytes."""
        for row in rows.tolist():
            ends = self.ends[self.first[row] : self.first[row] + self.num_sentences[row] + 1]
            tokens = self.tokens[ends[0] : ends[-1]]
            yield np.asarray(ends - ends[0], "<i8").tobytes() + np.asarray(tokens, "<i4").tobytes()

    @staticmethod
    def build(
        tokens: np.ndarray,
        ends: np.ndarray,
        num_sentences: Int[np.ndarray, " m"],
        passage_sentences: int,
        max_tokens: int,
    ) -> "Passages":
        """Cut every book into passages of equal length, about `passage_sentences` long."""
        num_parts = np.maximum(1, np.round(num_sentences / passage_sentences)).astype(int)
        books = np.split(np.arange(num_sentences.sum()), np.cumsum(num_sentences)[:-1])
        parts = [part for book, num in zip(books, num_parts, strict=True) for part in np.array_split(book, num)]
        first, lengths = (np.array([function(part) for part in parts]) for function in (np.min, len))
        return Passages(tokens, ends, first, lengths, np.repeat(np.arange(len(num_parts)), num_parts), max_tokens)


class SentenceWindows(WindowDataset):
    """Windows of `window_samples` (T) sentences of the passages `rows`, padded with empty sentences."""

    def __getitems__(self, windows: Sequence[Draw]) -> Batch:
        """Return the batch of these windows, `[B, T, W]`."""
        batch = super().__getitems__(windows)
        width = int((batch.x != NO_TOKEN).any(0).any(0).sum())
        return batch._replace(x=batch.x[..., :width])


def stacked(sentences: Sequence[Sequence[Sequence[int] | np.ndarray]], num_sentences: int) -> Int[Tensor, "B T W"]:
    """Return the tokens of B windows of at most T sentences, padded with `NO_TOKEN` to the longest sentence."""
    width = max(len(tokens) for window in sentences for tokens in window)
    x = np.full((len(sentences), num_sentences, width), NO_TOKEN, np.int64)
    for window_out, window in zip(x, sentences, strict=True):
        for out, tokens in zip(window_out, window, strict=False):
            out[: len(tokens)] = tokens
    return torch.from_numpy(x)


_FORMAT = 2  # format 1 split sentences and words only by English letters and punctuation
_INDEX = "index.json"


class SentenceCorpus(MapStyleCorpus):
    """The books of a source, encoded by a vocabulary. Books are read on first use, since probes do not need them.

    A passage of a book, like a file of audio, is a sequence. A book takes the role of a speaker.
    """

    nouns = ("speaker", "passage")  # messages use the words of the options

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        self.options, self.vocabulary = options, vocabulary  # a `cpc.data.Sentences`

    @cached_property
    def books(self) -> Books:
        """The books of the source."""
        return self.options.books()

    @property
    def speakers(self) -> list[str]:  # type: ignore[override]
        """Names of the books, which are the groups."""
        return self.books.names

    @property
    def splits(self) -> Sequence[str]:  # type: ignore[override]  # noqa: D102
        return self.books.splits

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
        return Passages.build(tokens, ends, num_sentences, options.passage_sentences, options.max_tokens)

    def windows(self, split: str | None, *, is_training: bool = False) -> SentenceWindows:
        """Return the windows of a split; None: of all splits."""
        self.check(split)
        has_split = [split in (None, book_split) for book_split in self.books.splits]
        passages, num_sentences = self.passages, self.options.window_sentences
        rows = np.flatnonzero(np.array(has_split)[passages.book])
        starts, sha256 = digest(passages.ends[passages.first[rows]]), hashlib.sha256()
        for text in passages.texts(rows):
            sha256.update(text)
        return SentenceWindows(
            passages,
            num_sentences,
            rows,
            group_ids=passages.book[rows],
            num_latents=num_sentences,
            split=split,
            noun="passages",
            size_name="window_sentences",
            made_from={"passages": starts, "content of passages": sha256.hexdigest()[:16]},
        )

    def content(self, rows: np.ndarray) -> Content:  # noqa: D102
        return text_content(self.passages.texts(rows))

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
