"""Windows of fixed length, cut from audio files and collected into a `Batch`.

B windows of S samples and T latents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from cpc.data.audio.augmentation import Augmenter
from cpc.data.batch import Batch
from cpc.data.streams.stream import Draw, digest
from cpc.data.streams.uniform import UniformBatches

# Enough windows for the statistics of channels: 32 windows of 128 latents give 4096 values per channel.
NUM_INITIALISATION_WINDOWS = 32
NUM_CHANGES = 2**20  # number of augmentation keys; with at most 2^40 samples in a file, start and key fit into 63 bits
# maps file index, first sample and number of latents to `[T]` int64 labels, -100 if unknown
FrameLabels = Callable[[int, int, int], np.ndarray]


@runtime_checkable
class Audio(Protocol):
    """The source of windows: `PackedAudio`, or your own class."""

    @property
    def num_samples(self) -> np.ndarray:
        """`[num_files]` int64, length of each file; 0 for a file that must not be read."""
        ...

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        """Return `num_samples` float32 samples from `start` on; fewer only at the end of the file."""
        ...


@dataclass(eq=False)
class WindowDataset(Dataset[Batch]):
    """Windows of `window_samples` samples, each from one file.

    An index is a pair (file, start) of a batch stream. If the file ends before the window does, the rest is zeros, and
    `num_valid` counts the samples of the file.

    Args:
        audio: source of the samples.
        window_samples: S, length of every window.
        sequence_ids: `[num_files]` id of each file's sequence; None: the index of the file.
        group_ids: `[num_files]` the speaker of each file, or -1 if unknown; None: all unknown.
        labels: frame labels of a window: called with (file, start, num_latents), returns int64 `[num_latents]`.
        num_latents: T, latents of a window without padding; needed if `labels` are given.
        split: split of the corpus, for messages.
        augmenter: changes every window by a key. The second part of an index is then start * NUM_CHANGES + key.
        windows_at_once: number of windows that are shuffled together (see `UniformBatches`); None: all.
        made_from: further properties of the data, by name, that a resumed run checks.

    Example:
        batches = UniformBatches(**window_draws(audio.num_samples, window_samples), batch_size=8, ...)
        DataLoader(dataset, batch_sampler=batches, collate_fn=lambda whole: whole)
    """

    audio: Audio
    window_samples: int
    sequence_ids: np.ndarray = None  # type: ignore[assignment]  # filled in below
    group_ids: np.ndarray = None  # type: ignore[assignment]
    labels: FrameLabels | None = None
    num_latents: int = 0
    split: str | None = None
    augmenter: Augmenter | None = None
    windows_at_once: int | None = None
    made_from: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.window_samples < 1:
            raise ValueError(f"window_samples={self.window_samples} must be at least 1")
        if self.labels is not None and self.num_latents < 1:
            raise ValueError(
                f"labels are given with num_latents={self.num_latents}; set num_latents to the number of "
                "latents of a window"
            )
        num_files = len(self.audio.num_samples)
        for name, default in (("sequence_ids", np.arange(num_files)), ("group_ids", np.full(num_files, -1))):
            ids = default if getattr(self, name) is None else np.asarray(getattr(self, name), np.int64)
            if len(ids) != num_files:
                raise ValueError(f"{name} has {len(ids)} entries for {num_files} audio files; give one per file")
            setattr(self, name, ids)
        self._is_past_changed = self.augmenter is not None and self.augmenter.options.applied_to == "past"
        self.num_values = self.window_samples * (2 if self._is_past_changed else 1)

    def __getitems__(self, windows: Sequence[Draw]) -> Batch:
        """Return the batch of these windows; the loader calls this instead of `__getitem__`."""
        x = np.zeros((len(windows), self.window_samples), np.float32)
        num_valid = np.zeros(len(windows), np.int64)
        labels = np.full((len(windows), 0 if self.labels is None else self.num_latents), -100, np.int64)
        target = np.zeros_like(x) if self._is_past_changed else None
        for row, (file, number) in enumerate(windows):
            start = number if self.augmenter is None else number // NUM_CHANGES
            samples = self.audio.read(file, start, self.window_samples)
            num_valid[row] = len(samples)
            if target is not None:
                target[row, : len(samples)] = samples
            x[row, : len(samples)] = samples if self.augmenter is None else self.augmenter(samples, number)
            if self.labels is not None:
                labels[row] = self.labels(file, start, self.num_latents)
        files = [file for file, _ in windows]
        fields = (x, num_valid, self.sequence_ids[files], self.group_ids[files], labels)
        batch = Batch(*map(torch.from_numpy, fields))
        return batch if target is None else batch._replace(target=torch.from_numpy(target))

    @property
    def draws(self) -> dict[str, Any]:
        """The arguments of a batch stream, see `window_draws`."""
        draws = window_draws(self.audio.num_samples, self.window_samples)
        draws["made_from"] |= self.made_from
        if self.augmenter is not None:
            draws["num_starts"] *= NUM_CHANGES
            draws["made_from"]["augmentation"] = True
        if self.windows_at_once is not None:
            draws["slots_at_once"] = self.windows_at_once
        return draws

    def num_valid(self, windows: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Return the number of samples before the padding of each window, without reading samples."""
        num_samples = self.audio.num_samples[[file for file, _ in windows]]
        return torch.from_numpy(np.minimum(num_samples, self.window_samples))


def window_draws(num_samples: np.ndarray, window_samples: int) -> dict[str, Any]:
    """Return the arguments `num_slots`, `num_starts` and `made_from` of a `BatchStream` of windows of audio files.

    A file of L samples has max(1, L // window) windows in a pass, each at a uniformly random start. An empty file has
    no windows.

    Raises:
        ValueError: if no file holds a sample.
    """
    num_samples = np.asarray(num_samples, np.int64)
    if not num_samples.any():
        raise ValueError(f"none of the {len(num_samples)} audio files holds a sample, so windows cannot be drawn")
    return {
        "num_slots": np.where(num_samples > 0, np.maximum(num_samples // window_samples, 1), 0),
        "num_starts": np.maximum(num_samples - window_samples, 0) + 1,
        "made_from": {"window_samples": window_samples, "audio_files": digest(num_samples)},
    }


def initialisation_windows(audio: Audio, window_samples: int, num_windows: int, seed: int) -> Float[Tensor, "B S"]:
    """Return windows for the data-dependent initialisation, drawn uniformly as in training, but without padding.

    Padding would bias the statistics of the encoder's channels, because they include every sample. Windows are
    therefore at most as long as the median file, and shorter files are left out: at least half of the files take part.

    Raises:
        ValueError: if no file holds a sample.
    """
    num_samples = audio.num_samples
    if num_samples.any():
        window_samples = min(window_samples, int(np.median(num_samples[num_samples > 0])))
    long_enough = np.where(num_samples >= window_samples, num_samples, 0)
    draws = window_draws(long_enough, window_samples)
    windows = UniformBatches(**draws, batch_size=num_windows, seed=seed).batch(0)
    return WindowDataset(audio, window_samples).__getitems__(windows).x
