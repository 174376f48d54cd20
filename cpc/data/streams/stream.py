"""The endless stream of batches, which resumes exactly: batch i of a rank depends only on (seed, i, rank, world_size).

An item is an audio file or an image. A draw is a pair (item, start), where `start` is the first sample of a window in a
file, or a key for the augmentation of an image. The stream consists of endless passes over the items. Ranks take turns:
batch i of rank r is batch i * world_size + r of the stream.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from cpc.data.streams.resumable_index import check_same_batches

# (item, start)
Draw = tuple[int, int]


@contextmanager
def naming(split: str | None) -> Iterator[None]:
    """Prefix the message of a ValueError with the split; None: all files."""
    try:
        yield
    except ValueError as error:
        source = "all files" if split is None else f"split {split!r}"
        raise ValueError(f"{source}: {error}") from error


def digest(content: np.ndarray | bytes | Iterable[str]) -> str:
    """Return a short hash of integers, bytes or names, for the fingerprint of a stream.

    Names are hashed in Unicode's normal form C, since copying to another file system may change the form.
    """
    if not isinstance(content, np.ndarray | bytes):
        names = "\n".join(content)
        content = unicodedata.normalize("NFC", names).encode("utf-8", "surrogateescape")
    content = np.ascontiguousarray(content, "<i8").tobytes() if isinstance(content, np.ndarray) else content
    return hashlib.sha256(content).hexdigest()[:16]


class BatchStream:
    """The stream, cut into rounds of `num_batches`, and the position in it. Subclasses define the order of items.

    `iter` starts an unfinished round again at its first batch, or continues from a loaded state. After a finished round
    it goes on with the next part of the stream.

    Args:
        num_slots: `[num_items]` draws of each item in a pass; items with 0 are never drawn.
        num_starts: `[num_items]`, or one number for all: a draw starts at 0..num_starts - 1, uniformly at random.
        batch_size: draws per batch, on each rank.
        num_batches: batches of one round (an epoch of the loader).
        seed: seed of the whole stream, not negative.
        rank: this process, 0..world_size - 1.
        world_size: processes that share the stream.
        made_from: properties of the items, by option: a state of other items is refused, and the message names these
            options. A hash of `num_slots` and `num_starts` unless given.

    Attributes:
        num_slots: draws of all items in a pass.
        draws_per_pass: draws of all ranks together; more than `num_slots` if a subclass repeats some items.

    Raises:
        ValueError: if an argument is out of range, or no item has a slot.
    """

    def __init__(
        self,
        num_slots: np.ndarray,
        num_starts: np.ndarray | int,
        batch_size: int,
        num_batches: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        made_from: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("num_batches", num_batches)):
            if value < 1:
                raise ValueError(f"{name}={value}, but must be at least 1")
        if seed < 0:
            raise ValueError(f"seed={seed}, but must not be negative")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}, but must lie in 0..{world_size - 1} (world_size={world_size})")
        self._num_slots = np.asarray(num_slots, np.int64)
        self._num_starts = np.broadcast_to(np.asarray(num_starts, np.int64), self._num_slots.shape)
        if not self._num_slots.any():
            raise ValueError(f"none of the {len(self._num_slots)} items has a slot, so there is nothing to draw")
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.num_slots = self.draws_per_pass = int(self._num_slots.sum())
        self._passes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._round_start = 0
        self._position = 0
        self._is_resumed = False
        if made_from is None:
            made_from = {"items": digest(np.stack([self._num_slots, self._num_starts]))}
        # A state must have the same fingerprint. It lacks the number of ranks: any number may share a batch.
        self._fingerprint: dict[str, Any] = {
            "sampler": type(self).__name__,
            "seed": seed,
            "batch_size of all processes": batch_size * world_size,
            **made_from,
        }

    def batch(self, index: int) -> list[Draw]:
        """Return batch `index` of this rank: a pure function of (seed, index, rank, world_size)."""
        return self._draws((index * self.world_size + self.rank) * self.batch_size, self.batch_size)

    def of_all_ranks(self, index: int) -> list[Draw]:
        """Return batch `index` of every rank, one after the other."""
        num_draws = self.batch_size * self.world_size
        return self._draws(index * num_draws, num_draws)

    def _draws(self, first: int, num: int) -> list[Draw]:
        last = first + num
        draws: list[Draw] = []
        for pass_index in range(first // self.draws_per_pass, (last - 1) // self.draws_per_pass + 1):
            offset = pass_index * self.draws_per_pass
            part = slice(max(first - offset, 0), last - offset)
            items, starts = self._pass(pass_index)
            draws += zip(items[part].tolist(), starts[part].tolist(), strict=True)
        return draws

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[Draw]]:
        if not self._is_resumed:
            self._position = 0
        self._is_resumed = False
        while self._position < self.num_batches:
            batch = self.batch(self._round_start + self._position)
            self._position += 1
            yield batch
        self._round_start += self._position
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch, and the fingerprint of the stream."""
        return {"round_start": self._round_start, "position": self._position, "fingerprint": dict(self._fingerprint)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: if the state belongs to another stream, naming the differences.
        """
        check_same_batches(state["fingerprint"], self._fingerprint)
        self._round_start = state["round_start"]
        self._position = state["position"]
        self._is_resumed = True

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the items of a pass in order, `[draws_per_pass]`."""
        raise NotImplementedError

    def _pass(self, pass_index: int) -> tuple[np.ndarray, np.ndarray]:
        if pass_index not in self._passes:
            rng = np.random.default_rng((self.seed, pass_index))
            items = self._draw_items(rng)
            starts = rng.integers(0, self._num_starts[items])
            # A batch may span two passes, so the previous pass is kept.
            self._passes = {index: draws for index, draws in self._passes.items() if index == pass_index - 1}
            self._passes[pass_index] = (items, starts)
        return self._passes[pass_index]
