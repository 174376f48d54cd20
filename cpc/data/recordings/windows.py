"""Packed recordings, and windows of fixed length that are cut from them and collected into a `Batch`.

B windows of S samples and T latents, t samples, C channels.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64
from torch import Tensor
from torch.utils.data import Dataset

from cpc.config.argument_rules import Range
from cpc.data.batch import Batch
from cpc.data.store.packed import PackedRows, bit_sums
from cpc.data.streams.stream import Draw, UniformBatches, digest

LOUDEST = 32768
_SCALE = np.float32(1 / LOUDEST)
_STARTS = Range(0)  # made once: every window is read


class PackedRecordings(PackedRows):
    """Recordings in one memory map: mono audio in int16, or channels of signals in float32."""

    @property
    def num_samples(self) -> np.ndarray:
        """`[n]` int64, length of each recording; 0 for a skipped one."""
        return self.lengths

    @property
    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation over all samples of audio, exact; an error if no recording holds a sample."""
        if not self.lengths.any():
            raise ValueError(f"none of the {len(self)} recordings holds a sample, so they have no statistics")
        mean, std = self.statistics_over(LOUDEST)
        return mean.item(), std.item()

    def read(self, row: int, start: int = 0, num_samples: int | None = None) -> Float32[np.ndarray, "t ..."]:
        """Return samples, `[t]` in [-1, 1] or `[t, C]`, NaN if missing; fewer than `num_samples` only at the end."""
        _STARTS.check("start", start)
        if self._view is not None:
            stored, columns, factors = self._view
            return (stored.read(row, start, num_samples)[:, columns] * factors).astype(np.float32)
        stop = int(self.lengths[row])
        if num_samples is not None:
            stop = min(start + num_samples, stop)
        offset = self._offsets[row]
        stored_samples = self.elements[offset + start : offset + max(start, stop)]
        return stored_samples if self.shape else np.multiply(stored_samples, _SCALE, dtype=np.float32)

    def converted(self, columns: Sequence[int], factors: Float64[np.ndarray, " C"] | None) -> "PackedRecordings":
        """Return a view that reads these columns, multiplied by these factors (None: as they are)."""
        view = self.subset(np.arange(len(self)))
        view.shape = (len(columns),)
        view._view = (self, list(columns), np.ones(len(columns)) if factors is None else factors)
        return view

    def _open(self, index: Mapping[str, Any]) -> None:
        super()._open(index)
        self.sample_rate_hz: Any = index["sample_rate_hz"]
        self.channels = [str(name) for name in index.get("channels", ())]
        self._view: tuple[PackedRecordings, list[int], np.ndarray] | None = None
        if not 0 < self.sample_rate_hz < math.inf:
            raise ValueError(f"its samples are of {self.sample_rate_hz} Hz")
        if self.shape != ((len(self.channels),) if self.channels else ()):
            raise ValueError(f"its samples are {list(self.shape)} of {len(self.channels)} channels")


class ArraySignals:
    """Recordings in memory, with the interface of `PackedRecordings`."""

    def __init__(self, arrays: Sequence[Float32[np.ndarray, "_ C"]]) -> None:
        self.arrays = arrays
        self.num_samples = np.array([len(array) for array in arrays], np.int64)
        self.shape = (arrays[0].shape[1],)

    def read(self, row: int, start: int = 0, num_samples: int | None = None) -> Float32[np.ndarray, "t C"]:
        """Return samples of a recording; fewer than `num_samples` at its end, all to the end if it is None."""
        return self.arrays[row][start : None if num_samples is None else start + num_samples]

    def content(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "n columns"]:
        """Return length and sums of bit patterns of these recordings, as `PackedRecordings.content` does."""
        arrays = [np.ascontiguousarray(self.arrays[row], np.float32) for row in rows]
        return np.array([[len(array), *bit_sums(array).ravel()] for array in arrays], np.int64)


PackedAudio = PackedRecordings  # the public name


FLOOR_QUANTILE = 0.1
_SAMPLES_AT_ONCE = 2**18
_ROUNDING = 1e-6  # of the deviation: what float32 leaves of a constant


def signal_statistics(
    recordings: Iterable[Float[np.ndarray, "_ C"]], block_samples: int
) -> tuple[Float64[np.ndarray, " C"], Float64[np.ndarray, " C"], Float64[np.ndarray, " C"]]:
    """Return the mean, the deviation, and the deviation at rest (floor) of every channel, in its unit, without NaN.

    The floor is a low quantile, `FLOOR_QUANTILE`, of the deviations within blocks of `block_samples` samples that are
    not constant and at least half known; a shorter recording is one block.
    """
    # Sums of differences from a first guess of the mean: a large offset does not cancel the digits of the deviation.
    guess, count, total, squares = None, 0.0, 0.0, 0.0
    deviations: list[np.ndarray] = []
    for signal in _pieces(recordings, block_samples):
        known = ~np.isnan(signal)
        if guess is None:
            guess = np.nan_to_num(np.where(known, signal, 0).sum(0, np.float64) / np.maximum(known.sum(0), 1))
        centred = np.where(known, signal - guess, 0)
        count, total, squares = count + known.sum(0), total + centred.sum(0), squares + np.square(centred).sum(0)
        length = min(block_samples, len(signal))
        num_blocks = len(signal) // length
        shape = (num_blocks, length, -1)
        blocks, known_blocks = (x[: num_blocks * length].reshape(shape) for x in (centred, known))
        num_known = np.maximum(known_blocks.sum(1), 1)
        means = blocks.sum(1) / num_known
        local = np.sqrt((np.where(known_blocks, blocks - means[:, None], 0) ** 2).sum(1) / num_known)
        deviations.append(np.where(num_known >= block_samples / 2, local, np.nan))
    if guess is None or not np.all(count):
        missing = "every channel" if guess is None else f"channel {np.flatnonzero(np.asarray(count) == 0)[0]}"
        raise ValueError(f"{missing} has no known sample in the training split, so it cannot be standardised")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    local = np.concatenate(deviations)
    floor = [_floor(channel, deviation) for channel, deviation in zip(local.T, std, strict=True)]
    return guess + mean, std, np.array(floor)


def _floor(deviations: Float64[np.ndarray, " n"], std: float) -> float:
    """Return the quantile of the deviations of blocks; 0 if there is none above rounding."""
    moving = deviations[deviations > _ROUNDING * std]
    return float(np.quantile(moving, FLOOR_QUANTILE)) if len(moving) else 0.0


def _pieces(recordings: Iterable[np.ndarray], block_samples: int) -> Iterator[np.ndarray]:
    """Yield the recordings in float64, long ones in pieces of whole blocks."""
    step = max(1, _SAMPLES_AT_ONCE // block_samples) * block_samples
    for recording in recordings:
        for start in range(0, len(recording), step):
            yield np.asarray(recording[start : start + step], np.float64)


@dataclass(frozen=True, eq=False)
class Starts:
    """The starts of the windows that are drawn from n recordings, numbered from 0 in each recording."""

    num: Int64[np.ndarray, " n"]  # `[n]`, number of starts of each recording; none is drawn from a recording with 0
    # Ranges of consecutive starts, `[R, 2]`, of the recordings whose missing samples exclude some: the first start of
    # each range and its number. In all other recordings a start has its own number.
    ranges: Mapping[int, Int64[np.ndarray, "R 2"]] = field(default_factory=dict)

    def first_sample(self, recording: int, number: int) -> int:
        """Return the first sample of the window that begins at a numbered start."""
        if recording not in self.ranges:
            return number
        firsts, numbers = self.ranges[recording].T
        index = int(np.searchsorted(numbers, number, side="right")) - 1
        return int(firsts[index] + number - numbers[index])


def known_samples(signals: Any, row: int) -> Bool[np.ndarray, " n"]:
    """Return the samples of a recording of which at least one channel is known."""
    blocks = range(0, int(signals.num_samples[row]), _SAMPLES_AT_ONCE)
    return np.concatenate([~np.isnan(signals.read(row, start, _SAMPLES_AT_ONCE)).all(1) for start in blocks])


def usable_starts(
    is_known: Bool[np.ndarray, " n"], encoder: Any, window_samples: int, steps: Sequence[int]
) -> Bool[np.ndarray, " starts"]:
    """Return the starts of the windows of a recording in which latents t and t + k are known, for a step k."""
    window_samples = min(window_samples, len(is_known))
    num_latents, hop = encoder.num_latents(window_samples), encoder.hop_samples
    is_usable = np.zeros(len(is_known) - window_samples + 1, bool)
    for phase in range(min(hop, len(is_usable))):
        # Windows whose starts differ by hops share their latents.
        known = encoder.known_latents(torch.from_numpy(is_known[None, phase:]))[0].numpy()
        usable = is_usable[phase::hop]
        for step in steps:
            num_pairs = num_latents - step  # of a window
            if num_pairs > 0:
                totals = np.cumsum(known[: len(known) - step] & known[step:])
                before = np.concatenate([[0], totals])[: len(usable)]
                usable |= totals[num_pairs - 1 :][: len(usable)] > before
    return is_usable


def ranges_of(is_usable: Bool[np.ndarray, " starts"]) -> Int64[np.ndarray, "R 2"]:
    """Return the first start of each range of usable starts, and its number among the usable starts."""
    firsts = np.flatnonzero(np.diff(is_usable, prepend=False) & is_usable)
    return np.stack([firsts, np.cumsum(is_usable)[firsts] - 1], axis=1).astype(np.int64)


# Enough windows for the statistics of channels: 32 windows of 128 latents give 4096 values per channel.
NUM_INITIALISATION_WINDOWS = 32
NUM_CHANGES = 2**20  # number of augmentation keys; with at most 2^40 samples in a file, start and key fit into 63 bits
# maps recording, first sample and number of latents to `[T]` int64 labels, -100 if unknown
FrameLabels = Callable[[int, int, int], np.ndarray]


@dataclass(eq=False)
class WindowDataset(Dataset[Batch]):
    """Windows of `window_samples` samples, each from one recording.

    An index is a pair (recording, number of its start) of a batch stream. If the recording ends before the window does,
    `num_valid` counts its samples, and the rest is padding. If samples of all channels are missing, `Batch.is_known`
    marks the others.

    Args:
        samples: `PackedRecordings`, arrays in memory, or an object of your own with `num_samples`, `[n]` int64, 0 for a
            recording that must not be read; and `read(row, start, num_samples)`, which returns samples `[t]` or
            `[t, C]`, fewer only at the end. Samples with channels have a `shape`, `(C,)`. `padding`, a number of numpy
            of the type of the samples, replaces NaN (zero without channels) after their end.
        rows: `[n]` the recordings that windows are cut from; None: all.
        group_ids: `[n]` speaker or subject of each recording, or -1 if unknown; None: all unknown.
        num_latents: T, latents of a window without padding; needed if `labels` are given.
        starts: the samples at which windows begin; None: all from which a whole window follows, or 0.
        augmenter: changes every window by a key. The second part of an index is then start * NUM_CHANGES + key.
        windows_at_once: number of windows that are shuffled together (see `UniformBatches`); None: all.
        noun: noun for the recordings, by which a resumed run compares their lengths.
        size_name: name of `window_samples` for a resumed run.
        made_from: further properties of the data, by name, that a resumed run checks.
    """

    samples: Any
    window_samples: int
    rows: np.ndarray = None  # type: ignore[assignment]  # filled in below
    group_ids: np.ndarray = None  # type: ignore[assignment]
    labels: FrameLabels | None = None
    num_latents: int = 0
    split: str | None = None
    starts: Starts = None  # type: ignore[assignment]
    augmenter: Any = None
    windows_at_once: int | None = None
    has_missing: bool = False
    noun: str = "recordings"
    size_name: str = "window_samples"
    made_from: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.window_samples < 1 or (self.labels is not None and self.num_latents < 1):
            found = f"window_samples={self.window_samples} and num_latents={self.num_latents}"
            raise ValueError(f"{found} must be at least 1; num_latents only if there are labels")
        self.rows = np.arange(len(self.samples.num_samples)) if self.rows is None else self.rows
        self.sequence_ids = self.rows
        self.group_ids = np.full(len(self.rows), -1) if self.group_ids is None else np.asarray(self.group_ids, np.int64)
        if len(self.group_ids) != len(self.rows):
            raise ValueError(f"group_ids has {len(self.group_ids)} entries for {len(self.rows)} recordings")
        self.lengths = np.asarray(self.samples.num_samples, np.int64)[self.rows]
        self.shape: tuple[int, ...] = getattr(self.samples, "shape", ())
        self.starts = Starts(self.all_starts) if self.starts is None else self.starts
        self._is_past_changed = self.augmenter is not None and self.augmenter.applied_to == "past"
        self.num_values = self.window_samples * math.prod(self.shape) * (2 if self._is_past_changed else 1)

    @property
    def all_starts(self) -> Int[np.ndarray, " n"]:
        """The number of starts of each recording if no sample is missing: 1 if it is shorter than a window."""
        return np.where(self.lengths > 0, np.maximum(self.lengths - self.window_samples, 0) + 1, 0)

    @property
    def draws(self) -> dict[str, Any]:
        """The arguments of a `BatchStream`; an error if no recording holds a sample.

        A recording of L samples has max(1, L // S) windows in a pass, at random starts; fewer if some are excluded.
        """
        num_starts = self.starts.num
        if not num_starts.any():
            raise ValueError(f"none of the {len(self.rows)} recordings holds a sample, so windows cannot be drawn")
        made_from = {self.size_name: self.window_samples, self.noun: digest(self.lengths), **self.made_from}
        if self.starts.ranges:
            parts = [num_starts, *self.starts.ranges.values()]
            made_from["starts of windows"] = digest(np.concatenate(parts, axis=None))
        draws = {
            "num_slots": (num_starts + self.window_samples - 1) // self.window_samples,
            "num_starts": num_starts,
            "made_from": made_from,
        }
        if self.augmenter is not None:
            draws["num_starts"] = num_starts * NUM_CHANGES
            made_from["augmentation"] = True
        if self.windows_at_once is not None:
            draws["slots_at_once"] = self.windows_at_once
        return draws

    def __getitems__(self, windows: Sequence[Draw]) -> Batch:
        """Return the batch of these windows; the loader calls this instead of `__getitem__`."""
        padding = getattr(self.samples, "padding", np.float32(np.nan if self.shape else 0))
        x = np.full((len(windows), self.window_samples, *self.shape), padding)
        num_valid = np.zeros(len(windows), np.int64)
        labels = np.full((len(windows), 0 if self.labels is None else self.num_latents), -100, np.int64)
        target = np.zeros_like(x) if self._is_past_changed else None
        for i, (recording, number) in enumerate(windows):
            row = int(self.rows[recording])
            start = self.starts.first_sample(recording, number if self.augmenter is None else number // NUM_CHANGES)
            samples = self.samples.read(row, start, self.window_samples)
            num_valid[i] = len(samples)
            if target is not None:
                target[i, : len(samples)] = samples
            x[i, : len(samples)] = samples if self.augmenter is None else self.augmenter(samples, number)
            if self.labels is not None:
                labels[i] = self.labels(row, start, self.num_latents)
        recordings = [recording for recording, _ in windows]
        fields = (x, num_valid, self.sequence_ids[recordings], self.group_ids[recordings], labels)
        batch = Batch(*map(torch.from_numpy, fields))
        if target is not None:
            batch = batch._replace(target=torch.from_numpy(target))
        if not self.has_missing:
            return batch
        is_known = torch.from_numpy(~np.isnan(x).all(2))
        return batch if int(is_known.sum()) == int(num_valid.sum()) else batch._replace(is_known=is_known)

    def num_valid(self, windows: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Return the number of samples before the padding of each window, without reading samples."""
        lengths = self.lengths[[recording for recording, _ in windows]]
        return torch.from_numpy(np.minimum(lengths, self.window_samples))

    def initialisation(self, num_windows: int, seed: int) -> Float[Tensor, "B S ..."]:
        """Return windows for the initialisation, only from longer recordings, since padding would bias statistics."""
        draws = self.draws
        draws["num_slots"] = np.where(self.lengths >= self.window_samples, draws["num_slots"], 0)
        windows = UniformBatches(**draws, batch_size=num_windows, seed=seed).batch(0)
        return replace(self, labels=None).__getitems__(windows).x


def unpadded_samples(lengths: Int[np.ndarray, " n"], window_samples: int) -> int:
    """Return the length of windows for the initialisation, so short that at least half of the recordings fill one."""
    return min(window_samples, int(np.median(lengths[lengths > 0]))) if lengths.any() else window_samples
