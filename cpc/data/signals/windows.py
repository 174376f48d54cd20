"""Windows of fixed length, cut from recordings. B windows, S samples each, C channels, T latents each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cpc.data.batch import Batch
from cpc.data.signals.in_memory import ArraySignals
from cpc.data.signals.pack import PackedSignals
from cpc.data.streams.stream import Draw, digest

# (row of the recording, first sample, number of latents) -> `[T]` int64 classes, -100 where unknown
WindowLabels = Callable[[int, int, int], np.ndarray]


@dataclass(eq=False)
class SignalWindows:
    """The windows of some recordings; an index is (recording, first sample), and a window lies in one recording.

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
        is_used: `[n]`, recordings that windows are drawn from; None: all with samples.
    """

    signals: PackedSignals | ArraySignals
    sequence_ids: Int[np.ndarray, " n"]
    group_ids: Int[np.ndarray, " n"]
    split: str | None
    window_samples: int
    num_latents: int
    labels: WindowLabels | None = None
    is_used: Bool[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        self.lengths = self.signals.lengths[self.sequence_ids]
        self.num_values = self.window_samples * self.signals.shape[0]

    @property
    def draws(self) -> dict[str, Any]:
        """Arguments of the stream: a recording of L samples gives max(1, L // S) windows a pass, at random starts."""
        is_used = self.lengths > 0 if self.is_used is None else self.is_used
        return {
            "num_slots": np.where(is_used, np.maximum(self.lengths // self.window_samples, 1), 0),
            "num_starts": np.maximum(self.lengths - self.window_samples, 0) + 1,
            "made_from": {
                "window_samples": self.window_samples,
                "recordings": digest(self.lengths),
                "content of recordings": digest(self.signals.content(self.sequence_ids)),
            },
        }

    def __getitems__(self, indices: Sequence[Draw]) -> Batch:
        """Return the batch of these windows; `x` is `[B, S, C]` float32."""
        x = np.full((len(indices), self.window_samples, *self.signals.shape), np.nan, np.float32)
        labels = np.full((len(indices), 0 if self.labels is None else self.num_latents), -100, np.int64)
        for number, (recording, start) in enumerate(indices):
            row = int(self.sequence_ids[recording])
            samples = self.signals.read(row, start, self.window_samples)
            x[number, : len(samples)] = samples
            if self.labels is not None:
                labels[number] = self.labels(row, start, self.num_latents)
        recordings = [recording for recording, _ in indices]
        ids, groups = (torch.from_numpy(values[recordings]) for values in (self.sequence_ids, self.group_ids))
        num_valid, is_known = self.num_valid(indices), torch.from_numpy(~np.isnan(x).all(2))
        batch = Batch(torch.from_numpy(x), num_valid, ids, groups, torch.from_numpy(labels))
        return batch if int(is_known.sum()) == int(num_valid.sum()) else batch._replace(is_known=is_known)

    def num_valid(self, indices: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Return the number of samples of each window before the padding, without reading any."""
        lengths = self.lengths[[recording for recording, _ in indices]]
        return torch.from_numpy(np.minimum(lengths, self.window_samples))
