"""The endless, resumable stream of batches. Batch i of a rank depends only on (seed, i, rank, world_size).

An item is an audio file or an image. A draw is a pair (item, start): the first sample of a window in a file, or a key
for the augmentation of an image. Batch i of rank r is batch i * world_size + r of endless passes over the items, whose
order is uniformly random, spread over the pass, or of a few groups in every batch (`same_group`).
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np

from cpc.config.argument_rules import Count, Natural, Range, checked

ENDLESS = 2**62  # number of batches


def check_same_batches(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise an error if the fingerprint of a state differs from that of this stream."""
    changes = [
        f"other {name}" if is_of_files(name) else f"{name} {saved.get(name)!r} -> {here.get(name)!r}"
        for name in here | saved
        if saved.get(name) != here.get(name) and (name in saved or not is_of_files(name))
    ]
    if changes:
        found = f"the run cannot be resumed, because its batches would change: {', '.join(changes)}"
        raise ValueError(f"{found}; restore these, or start a new run")


def is_of_files(name: str) -> bool:
    """Return whether an entry is about files. Older checkpoints lack such entries, which are then not compared."""
    return "paths of " in name or "content of " in name


class ResumableIndex:
    """The indices of batches 0, 1, 2, ... without end; a state resumes exactly if its `fingerprint` is the same."""

    def __init__(self, fingerprint: dict[str, Any]) -> None:
        self.fingerprint = fingerprint
        self.position = 0

    def batch(self, index: int) -> Any:
        """Return the argument of the data set's `__getitems__` for batch `index`."""
        return [index]

    def __len__(self) -> int:
        return ENDLESS  # without a length the loader reads a batch ahead, and its state is off by a batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch, and the fingerprint."""
        return {"position": self.position, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        check_same_batches(state["fingerprint"], self.fingerprint)
        self.position = state.get("round_start", 0) + state["position"]  # older checkpoints count in rounds


Draw = tuple[int, int]  # item, start


@contextmanager
def naming(split: str | None) -> Iterator[None]:
    """Prefix the message of a ValueError with the split; None means all files."""
    try:
        yield
    except ValueError as error:
        source = "all files" if split is None else f"split {split!r}"
        raise ValueError(f"{source}: {error}") from error


def digest(content: np.ndarray | bytes | Iterable[str]) -> str:
    """Return a short hash of integers, bytes, or names, which are compared in Unicode's normal form C."""
    if isinstance(content, np.ndarray):
        content = np.ascontiguousarray(content, "<i8").tobytes()
    elif not isinstance(content, bytes):
        content = unicodedata.normalize("NFC", "\n".join(content)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(content).hexdigest()[:16]


class BatchStream(ResumableIndex):
    """The stream and the position in it. Subclasses define the order of items.

    Args:
        num_slots: `[num_items]` number of draws of each item in a pass; an item with 0 is never drawn.
        num_starts: `[num_items]`, or one number for all: a draw starts at 0..num_starts - 1, uniformly at random.
        made_from: properties of the items, by option. A state with other properties raises an error that names these
            options. None: a hash of `num_slots` and `num_starts`.
    """

    @checked
    def __init__(
        self,
        num_slots: np.ndarray,
        num_starts: np.ndarray | int,
        batch_size: Count,
        seed: Natural,
        rank: int = 0,
        world_size: int = 1,
        *,
        made_from: Mapping[str, Any] | None = None,
    ) -> None:
        Range(0, world_size - 1).check(f"with world_size={world_size} the rank", rank)
        self._num_slots = np.asarray(num_slots, np.int64)
        self._num_starts = np.broadcast_to(np.asarray(num_starts, np.int64), self._num_slots.shape)
        if not self._num_slots.any():
            raise ValueError(f"none of the {len(self._num_slots)} items has a slot, so items cannot be drawn")
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.num_slots = self.draws_per_pass = int(self._num_slots.sum())
        self._passes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        if made_from is None:
            made_from = {"items": digest(np.stack([self._num_slots, self._num_starts]))}
        # The fingerprint does not include the number of ranks, since any number of ranks may share a batch.
        identity = {"sampler": type(self).__name__, "seed": seed}
        super().__init__({**identity, "batch_size of all processes": batch_size * world_size, **made_from})

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


# Number of runs of neighbouring items that are shuffled together. Neighbours often share a speaker, who then has 1/16
# of the draws.
_NUM_RUNS = 16


class UniformBatches(BatchStream):
    """Batches drawn uniformly from all items, or from a part of the items that changes during a pass.

    Args:
        slots_at_once: number of slots that are shuffled together; None: all. These slots come from sixteen random runs
            of neighbouring items, so that the data read at a time fit into a cache.
        stream, options: arguments of `BatchStream`.
    """

    @checked
    def __init__(
        self, *stream: Any, slots_at_once: Annotated[int, Range(_NUM_RUNS)] | None = None, **options: Any
    ) -> None:
        super().__init__(*stream, **options)
        self._slots_at_once = slots_at_once
        if slots_at_once is not None:
            self.fingerprint["slots_at_once"] = slots_at_once

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        slots = np.repeat(np.arange(len(self._num_slots)), self._num_slots)
        if self._slots_at_once is None:
            return rng.permutation(slots)
        slots = np.roll(slots, rng.integers(len(slots)))  # cut at other positions in each pass
        runs = np.array_split(slots, -(-len(slots) * _NUM_RUNS // self._slots_at_once))
        order = rng.permutation(len(runs))
        chunks = (order[first : first + _NUM_RUNS] for first in range(0, len(order), _NUM_RUNS))
        return np.concatenate([rng.permutation(np.concatenate([runs[run] for run in chunk])) for chunk in chunks])


class SpreadBatches(UniformBatches):
    """Batches of every item once per pass, with the items of a sequence spread over the pass.

    A batch holds two items of a sequence only if the sequence has more items than the pass has batches, or if the batch
    spans two passes.
    """

    def __init__(self, sequence_ids: np.ndarray, *, noun: str = "item", **stream: Any) -> None:
        num_items = len(sequence_ids)
        super().__init__(np.ones(num_items), **stream)
        if self.batch_size * self.world_size > num_items:
            sizes = f"batch_size={self.batch_size} on {self.world_size} processes exceeds the {num_items} {noun}s"
            raise ValueError(f"{sizes}, so one of them would be its own negative: lower `batch_size`")
        _, self._sequence = np.unique(sequence_ids, return_inverse=True)
        self.fingerprint["sequences"] = digest(self._sequence)

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of the items. The n items of a sequence are at equal distances, from a random start."""
        order = super()._draw_items(rng)
        num_items = len(order)
        position = np.empty(num_items, np.int64)  # sequence of each item in `order`
        position[order] = np.arange(num_items)
        _, first_items, sizes = np.unique(self._sequence, return_index=True, return_counts=True)
        # Items sorted by sequence, and by `order` within a sequence; `turn` counts the items of each sequence from 0.
        sorted_items = order[np.argsort(self._sequence[order], kind="stable")]
        turn = np.empty(num_items, np.int64)
        turn[sorted_items] = np.arange(num_items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        start = position[first_items] / num_items  # uniform starts, which keep `order` for sequences of one item
        sort_key = (turn + start[self._sequence]) / sizes[self._sequence]
        return np.argsort(sort_key, kind="stable")
