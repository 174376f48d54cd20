"""Windows of consecutive sentences, cut from passages. B windows, T sentences, W tokens of the longest one."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from cpc.data.batch import Batch
from cpc.data.streams.stream import Draw, digest

NO_TOKEN = -1  # what shorter sentences are filled up with


@dataclass(eq=False)
class Passages:
    """Passages of consecutive sentences; none reaches from one book into another.

    Attributes:
        tokens: of all sentences, one after the other.
        ends: `[num_sentences + 1]` where each sentence ends in `tokens`, 0 before the first.
        first: `[n]` first sentence of each passage.
        num_sentences: `[n]`.
        book: `[n]` the book of each.
    """

    tokens: Int[np.ndarray, " N"]
    ends: Int[np.ndarray, " S"]
    first: Int[np.ndarray, " n"]
    num_sentences: Int[np.ndarray, " n"]
    book: Int[np.ndarray, " n"]

    def digest(self, rows: Int[np.ndarray, " n"]) -> str:
        """A hash of the tokens of these passages and of where their sentences end."""
        found = hashlib.sha256()
        for row in rows.tolist():
            ends = self.ends[self.first[row] : self.first[row] + self.num_sentences[row] + 1]
            found.update(np.asarray(ends - ends[0], "<i8").tobytes())
            found.update(np.asarray(self.tokens[ends[0] : ends[-1]], "<i4").tobytes())
        return found.hexdigest()[:16]

    @staticmethod
    def build(
        tokens: np.ndarray, ends: np.ndarray, num_sentences: Int[np.ndarray, " m"], passage_sentences: int
    ) -> "Passages":
        """Cut every book into passages of about `passage_sentences`, as long as each other."""
        num_parts = np.maximum(1, np.round(num_sentences / passage_sentences)).astype(int)
        books = np.split(np.arange(num_sentences.sum()), np.cumsum(num_sentences)[:-1])
        parts = [part for book, num in zip(books, num_parts, strict=True) for part in np.array_split(book, num)]
        first, lengths = (np.array([each(part) for part in parts]) for each in (np.min, len))
        return Passages(tokens, ends, first, lengths, np.repeat(np.arange(len(num_parts)), num_parts))


@dataclass(eq=False)
class SentenceWindows(Dataset[Batch]):
    """Windows of `window_sentences` sentences; an index is a pair (position in `rows`, first sentence).

    Where the passage ends before the window does, sentences without a token follow, and `num_valid` says so.

    Args:
        passages: of all books.
        rows: `[n]` of the passages.
        window_sentences: T.
        max_tokens: W, at most.
        split: of the corpus, for messages.
    """

    passages: Passages
    rows: np.ndarray
    window_sentences: int
    max_tokens: int
    split: str | None = None

    def __post_init__(self) -> None:
        self.sequence_ids, self.group_ids = self.rows, self.passages.book[self.rows]
        self.num_sentences = self.passages.num_sentences[self.rows]
        self.num_values = self.window_sentences * self.max_tokens
        self.num_latents = self.window_sentences

    @property
    def draws(self) -> dict[str, Any]:
        """A passage of n sentences has max(1, n // T) windows in a pass, each at a random start."""
        starts = self.passages.ends[self.passages.first[self.rows]]
        return {
            "num_slots": np.maximum(self.num_sentences // self.window_sentences, 1),
            "num_starts": np.maximum(self.num_sentences - self.window_sentences, 0) + 1,
            "made_from": {"window_sentences": self.window_sentences, "passages": digest(starts)}
            | {"content of passages": self.passages.digest(self.rows)},
        }

    def __getitems__(self, drawn: Sequence[Draw]) -> Batch:
        """All windows of a batch."""
        num_valid = self.num_valid(drawn)
        sentences = [
            [self._tokens(row, start + place) for place in range(num)]
            for (row, start), num in zip(drawn, num_valid.tolist(), strict=True)
        ]
        chosen = [row for row, _ in drawn]
        return Batch(
            x=stacked(sentences, self.window_sentences),
            num_valid=num_valid,
            sequence_id=torch.from_numpy(self.sequence_ids[chosen]),
            group_id=torch.from_numpy(self.group_ids[chosen]),
            labels=torch.zeros(len(drawn), 0, dtype=torch.int64),
        )

    def num_valid(self, drawn: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Sentences of each window."""
        return torch.from_numpy(self.num_sentences[[row for row, _ in drawn]].clip(max=self.window_sentences))

    def _tokens(self, row: int, place: int) -> np.ndarray:
        sentence = self.passages.first[self.rows[row]] + place
        return self.passages.tokens[self.passages.ends[sentence] : self.passages.ends[sentence + 1]]


def stacked(sentences: Sequence[Sequence[Sequence[int] | np.ndarray]], num_sentences: int) -> Int[Tensor, "B T W"]:
    """The tokens of B windows of at most T sentences, as wide as the longest, `NO_TOKEN` where there is none."""
    width = max(len(tokens) for window in sentences for tokens in window)
    x = np.full((len(sentences), num_sentences, width), NO_TOKEN, np.int64)
    for of_window, window in zip(x, sentences, strict=True):
        for out, tokens in zip(of_window, window, strict=False):
            out[: len(tokens)] = tokens
    return torch.from_numpy(x)
