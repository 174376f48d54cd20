"""The recordings of a source as a corpus: windows, groups and labels by split. n recordings."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.data.map_style import MapStyleCorpus
from cpc.data.recordings.labels import RecordingLabels
from cpc.data.recordings.windows import (
    FrameLabels,
    Starts,
    WindowDataset,
    known_samples,
    ranges_of,
    signal_statistics,
    unpadded_samples,
    usable_starts,
)
from cpc.data.store.fingerprints import Content
from cpc.data.store.folders import refuse
from cpc.data.streams.stream import digest, naming


@dataclass(eq=False)
class RecordingCorpus(MapStyleCorpus):
    """The recordings of a source, at an encoder's rate.

    `check` and `rows` read only tables. `prepare` decodes; all other methods need its samples.

    Args:
        table: the recordings, a `Manifest` of audio or the `Recordings` of signals: `names`, `splits`, `groups` ("" if
            unknown), and `rows` of a split.
        files: plural noun for the recordings in the fingerprint of batches.
        names_matter: whether a resumed run compares the names of recordings, besides their content.
        check_labels: raises an error if labels of these rows do not fit; called before decoding.
        frame_labels: returns the labels of frames that come with every window; None: no labels.
        caps_held_out: whether a held-out batch is at most one pass over the split.

    Attributes:
        group_ids: `[n]` int64 group of each recording, -1 if unknown.
        speakers: names of the groups by their id.
    """

    table: Any
    encoder: Any
    window_samples: int
    decode: Callable[[], Any]
    nouns: tuple[str, str] = ("group", "recording")
    files: str = "recordings"
    names_matter: bool = False
    check_labels: Callable[[np.ndarray], None] | None = None
    frame_labels: Callable[["RecordingCorpus"], FrameLabels] | None = None
    classes: Sequence[str] = ()
    augmenter: Callable[[], Any] | None = None
    windows_at_once: int | None = None
    has_missing: bool = False
    caps_held_out: bool = True

    def __post_init__(self) -> None:
        self.speakers: list[str] = sorted(set(self.table.groups) - {""})
        codes = {name: code for code, name in enumerate(self.speakers)}
        self.group_ids = np.array([codes.get(name, -1) for name in self.table.groups], np.int64)
        self._samples: Any = None
        self._steps: Sequence[int] = ()
        self._starts: dict[str | None, Starts] = {}
        self._statistics: dict[str | None, tuple[Any, ...]] = {}

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Raise an error on splits without recordings, unknown groups that are needed, or labels that do not fit."""
        group, item = self.nouns
        for split in splits:
            rows = self.rows(split)
            if needs_speakers:
                nameless = [self.table.names[row] for row in rows.tolist() if self.group_ids[row] < 0]
                problem = f"of the {len(rows)} {item}s of split {split!r} have no {group}"
                advice = f"fill in `{group}`, a column of manifests, or choose other negatives (`loss.negatives`)"
                refuse(problem, nameless, advice)
            if self.check_labels is not None:
                try:
                    self.check_labels(rows)
                except ValueError as error:
                    raise ValueError(f"alignments of split {split!r}: {error}") from error

    def prepare(self, *, is_training: bool = False) -> None:
        """Decode all recordings, or open the pack of an earlier call; to train, also those of the augmentation."""
        if self._samples is None:
            self._samples = self.decode()
        if is_training:
            _ = self.training_augmenter

    @cached_property
    def training_augmenter(self) -> Any:
        """Augmentation of training windows, which changes a window by a key; None: no augmentation."""
        return None if self.augmenter is None else self.augmenter()

    @property
    def samples(self) -> Any:
        """The samples of all recordings, which `prepare` has decoded."""
        assert self._samples is not None, "call prepare() first"
        return self._samples

    def rows(self, split: str | None) -> Int[np.ndarray, " n"]:  # noqa: D102
        return self.table.rows(split)

    def num_sequences(self, split: str) -> int:  # noqa: D102
        return len(self.rows(split))

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the lengths and sums of the samples of these recordings."""
        return self.samples.content(rows)

    def labels(self, task: str) -> RecordingLabels:
        """Return the labels of a task of signals; raise a ValueError if they end after their recording."""
        labels: RecordingLabels = self.table.labels[task]
        labels.check(f"{self.table.source}, labels {task!r}", self.table.names, self.samples.num_samples)
        return labels

    def latent_codes(self, task: str, row: int, first_sample: int, num_latents: int) -> Int[np.ndarray, " T"]:
        """Return the class of the sample at the centre of each latent of signals; -1 without a label."""
        encoder = self.encoder
        centres = np.round(encoder.first_centre_samples + encoder.hop_samples * np.arange(num_latents)).astype(int)
        centres = np.clip(first_sample + centres, 0, max(int(self.samples.num_samples[row]) - 1, 0))
        return self.labels(task).codes_at(row, centres)

    def windows(self, split: str | None, *, is_training: bool = False) -> WindowDataset:
        """Return the windows of a split (None: of all recordings), with augmentation in training."""
        rows = self.rows(split)
        made_from = {}
        if self.names_matter:
            made_from[f"paths of {self.files}"] = digest(self.table.names[row] for row in rows.tolist())
        made_from[f"content of {self.files}"] = digest(self.samples.content(rows))
        augmenter = self.training_augmenter if is_training else None
        if augmenter is not None and (noise := augmenter.recordings) is not None:
            made_from["content of noise"] = digest(noise.content(np.arange(len(noise))))
        windows = WindowDataset(
            self.samples,
            self.window_samples,
            rows,
            group_ids=self.group_ids[rows],
            labels=None if self.frame_labels is None else self.frame_labels(self),
            num_latents=int(self.encoder.num_latents(self.window_samples)),
            split=split,
            augmenter=augmenter,
            windows_at_once=self.windows_at_once if is_training else None,
            has_missing=self.has_missing,
            noun=self.files.replace(" ", "_"),
            made_from=made_from,
        )
        if not self._steps:
            return windows
        if split not in self._starts:
            self._starts[split] = self._find_starts(windows)
        return replace(windows, starts=self._starts[split])

    def predicting(self, steps: Sequence[int]) -> "RecordingCorpus":
        """Return the corpus whose windows have known latents t and t + k for a step k; 0: a known latent."""
        corpus = copy(self)
        corpus._steps, corpus._starts = steps, {}
        return corpus

    def num_latents(self, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the number of latents of recordings."""
        return self.encoder.num_latents(torch.from_numpy(self.samples.num_samples[rows])).numpy()

    def held_out_batch_size(self, windows: WindowDataset, batch_size: int, world_size: int) -> int:
        """Return the batch size of all ranks, at most one pass: a repeated window would be its own negative."""
        if not self.caps_held_out:
            return super().held_out_batch_size(windows, batch_size, world_size)
        num = int(windows.draws["num_slots"].sum())
        if num < world_size:
            raise ValueError(f"split {windows.split!r} has {num} windows for {world_size} processes: hold more out")
        return min(world_size * batch_size, num)

    def statistics(self, split: str | None) -> tuple[Any, ...]:
        """Return mean and deviation of the samples of a split (None: of all), and of channels also the floor."""
        if split not in self._statistics:
            with naming(split):
                rows = self.rows(split)
                if self.samples.shape:
                    signals = (self.samples.read(row) for row in rows.tolist())
                    self._statistics[split] = signal_statistics(signals, self.encoder.average_samples)
                else:
                    self._statistics[split] = self.samples.subset(rows).statistics
        return self._statistics[split]

    def initialisation_windows(self, split: str | None, num_windows: int, seed: int) -> Float[Tensor, "B S ..."]:
        """Return windows of a split without padding, and not augmented."""
        corpus = self.predicting([0] if self.has_missing else ())
        corpus.window_samples = unpadded_samples(self.samples.num_samples[self.rows(split)], self.window_samples)
        return corpus.windows(split).initialisation(num_windows, seed)

    def _find_starts(self, windows: WindowDataset) -> Starts:
        """Return the starts of windows in which one of `_steps` is predicted, which reads samples that may miss."""
        is_long = self.num_latents(windows.rows) > min(self._steps)
        num, ranges = np.where(is_long, windows.all_starts, 0), {}
        for recording in np.flatnonzero(is_long).tolist() if self.has_missing else ():
            is_known = known_samples(self.samples, int(windows.rows[recording]))
            if not is_known.all():
                is_usable = usable_starts(is_known, self.encoder, windows.window_samples, self._steps)
                if not is_usable.all():
                    num[recording], ranges[recording] = is_usable.sum(), ranges_of(is_usable)
        return Starts(num, ranges)
