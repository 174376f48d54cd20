"""Windows of fixed length, cut from recordings. B windows, S samples each, C channels, T latents each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.data.batch import Batch
from cpc.data.signals.in_memory import ArraySignals
from cpc.data.signals.pack import PackedSignals
from cpc.data.signals.starts import Starts
from cpc.data.streams.stream import Draw, digest

# (row of the recording, first sample, number of latents) -> `[T]` int64 classes, -100 where unknown
WindowLabels = Callable[[int, int, int], np.ndarray]


@dataclass(eq=False)
class SignalWindows:
    """The windows of some recordings; an index is (recording, number of the start), and a window lies in one recording.

    The samples of a window after the end of its recording are NaN, which `num_valid` excludes. If samples before it are
    missing in all channels, `Batch.is_known` marks the others.

    Args:
        signals: all recordings.
        sequence_ids: rows of the recordings, which are also the sequence ids.
        group_ids: `[n]` subject of each of these recordings, -1 where unknown.
        split: split of the recordings, for messages.
        window_samples: S.
        num_latents: T.
        labels: classes of the latents of a window; None: no labels.
        starts: the starts of windows; None: a window may begin at every sample.
        has_missing: False if all samples of recordings are known, which packing has checked with `missing: refuse`.
    """

    signals: PackedSignals | ArraySignals
    sequence_ids: Int[np.ndarray, " n"]
    group_ids: Int[np.ndarray, " n"]
    split: str | None
    window_samples: int
    num_latents: int
    labels: WindowLabels | None = None
    starts: Starts = None  # type: ignore[assignment]  # filled in below
    has_missing: bool = True

    def __post_init__(self) -> None:
        self.lengths = self.signals.lengths[self.sequence_ids]
        self.num_values = self.window_samples * self.signals.shape[0]
        if self.starts is None:
            self.starts = Starts(self.all_starts)

    @property
    def all_starts(self) -> Int[np.ndarray, " n"]:
        """The number of starts of each recording if all its samples are known: 1 if it is shorter than a window."""
        return np.where(self.lengths > 0, np.maximum(self.lengths - self.window_samples, 0) + 1, 0)

    @property
    def draws(self) -> dict[str, Any]:
        """Arguments of the stream.

        A recording of L samples gives max(1, L // S) windows a pass, at random starts; less if starts are excluded.
        """
        made_from = {
            "window_samples": self.window_samples,
            "recordings": digest(self.lengths),
            "content of recordings": digest(self.signals.content(self.sequence_ids)),
        }
        if self.starts.ranges:
            parts = [self.starts.num, *self.starts.ranges.values()]
            made_from["starts of windows"] = digest(np.concatenate(parts, axis=None))
        num_starts = self.starts.num
        return {
            "num_slots": (num_starts + self.window_samples - 1) // self.window_samples,
            "num_starts": num_starts,
            "made_from": made_from,
        }

    def __getitems__(self, indices: Sequence[Draw]) -> Batch:
        """Return the batch of these windows; `x` is `[B, S, C]` float32."""
        x = np.full((len(indices), self.window_samples, *self.signals.shape), np.nan, np.float32)
        labels = np.full((len(indices), 0 if self.labels is None else self.num_latents), -100, np.int64)
        for number, (recording, start_number) in enumerate(indices):
            row, start = int(self.sequence_ids[recording]), self.starts.first_sample(recording, start_number)
            samples = self.signals.read(row, start, self.window_samples)
            x[number, : len(samples)] = samples
            if self.labels is not None:
                labels[number] = self.labels(row, start, self.num_latents)
        recordings = [recording for recording, _ in indices]
        ids, groups = (torch.from_numpy(values[recordings]) for values in (self.sequence_ids, self.group_ids))
        num_valid = self.num_valid(indices)
        batch = Batch(torch.from_numpy(x), num_valid, ids, groups, torch.from_numpy(labels))
        if not self.has_missing:
            return batch
        is_known = torch.from_numpy(~np.isnan(x).all(2))
        return batch if int(is_known.sum()) == int(num_valid.sum()) else batch._replace(is_known=is_known)

    def num_valid(self, indices: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Return the number of samples of each window before the padding, without reading any."""
        lengths = self.lengths[[recording for recording, _ in indices]]
        return torch.from_numpy(np.minimum(lengths, self.window_samples))
