"""The recordings of a source as a corpus: windows, subjects and labels by split."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.data.map_style import MapStyleCorpus
from cpc.data.signals.in_memory import ArrayRecordings, ArraySignals
from cpc.data.signals.labels import Labels
from cpc.data.signals.pack import PackedSignals, pack_signals
from cpc.data.signals.recordings import Recordings
from cpc.data.signals.starts import Starts, known_samples, ranges_of, usable_starts
from cpc.data.signals.statistics import SignalStatistics, signal_statistics
from cpc.data.signals.windows import SignalWindows, WindowLabels
from cpc.data.store.fingerprints import Content
from cpc.data.store.folders import name_a_few
from cpc.data.streams.stream import naming
from cpc.data.streams.uniform import UniformBatches


class SignalCorpus(MapStyleCorpus):
    """The recordings of a source, decoded by the first call of `windows`.

    Args:
        recordings: the source.
        encoder: an encoder of signals, or an object with its geometry.
        window_samples: length of a window.
        online_labels: name of the labels that come with every window; None: none.
        cache_dir: folder of the pack; beside the source unless given.
        skip_bad: leave out recordings that cannot be used.
        signals: the samples, if they are decoded already.

    Attributes:
        group_ids: `[n]` int64 subject of each recording, -1 where unknown.
        speakers: names of the subjects by their id.
    """

    nouns = ("group", "recording")

    def __init__(
        self,
        recordings: Recordings | ArrayRecordings,
        encoder: Any,
        window_samples: int,
        online_labels: str | None = None,
        cache_dir: str | None = None,
        skip_bad: bool = False,
        signals: PackedSignals | ArraySignals | None = None,
    ) -> None:
        self.recordings, self.encoder, self.window_samples = recordings, encoder, window_samples
        self._online_labels, self._cache_dir, self._skip_bad = online_labels, cache_dir, skip_bad
        self._steps: Sequence[int] = ()
        self._starts: dict[str | None, Starts] = {}
        if signals is not None:
            self.signals = signals
        self.speakers: list[str] = sorted(set(recordings.groups) - {""})
        codes = {name: code for code, name in enumerate(self.speakers)}
        self.group_ids = np.array([codes.get(name, -1) for name in recordings.groups], np.int64)

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Refuse a split without recordings, or with a recording of an unknown subject if these are needed."""
        for split in splits:
            rows = self.rows(split)
            nameless = [self.recordings.names[row] for row in rows.tolist() if self.group_ids[row] < 0]
            if needs_speakers and nameless:
                raise ValueError(
                    f"{len(nameless)} of the {len(rows)} recordings of split {split!r} have no group (subject):\n"
                    f"{name_a_few(nameless)}\nfill in `group`, or choose other negatives (`loss.negatives`)"
                )

    def content(self, rows: np.ndarray) -> Content | None:  # noqa: D102
        return self.signals.content(rows)

    def rows(self, split: str | None) -> np.ndarray:
        """Return the rows of a split; None: of all.

        Raises:
            ValueError: if there are none.
        """
        splits = self.recordings.splits
        rows = np.flatnonzero([split in (None, each) for each in splits])
        if not len(rows):
            raise ValueError(
                f"there are no recordings of split {split!r}, only of {', '.join(sorted(set(splits)))}: name one of "
                "these, or hold recordings out with `valid_share` and `test_share`"
            )
        return rows

    @cached_property
    def signals(self) -> PackedSignals | ArraySignals:
        """The samples of all recordings; packed now unless they are packed already."""
        assert isinstance(self.recordings, Recordings)  # arrays come with their signals
        return pack_signals(self.recordings, self._cache_dir, skip_bad=self._skip_bad)

    def windows(self, split: str | None, *, is_training: bool = False) -> SignalWindows:
        """Return the windows of a split."""
        rows = self.rows(split)
        num_latents = self.encoder.num_latents(self.window_samples)
        group_ids, labels = self.group_ids[rows], self._window_labels()
        windows = SignalWindows(
            self.signals,
            rows,
            group_ids,
            split,
            self.window_samples,
            num_latents,
            labels,
            has_missing=self.recordings.missing == "mask",
        )
        if not self._steps:
            return windows
        if split not in self._starts:
            self._starts[split] = self._find_starts(windows)
        return replace(windows, starts=self._starts[split])

    def predicting(self, steps: Sequence[int]) -> "SignalCorpus":
        """Return the corpus whose windows have, for a step k, latents t and t + k that are both known.

        With the step 0 a known latent suffices.
        """
        corpus = copy(self)
        corpus._steps, corpus._starts = steps, {}
        return corpus

    def num_latents(self, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the number of latents of recordings."""
        return self.encoder.num_latents(torch.from_numpy(self.signals.lengths[rows])).numpy()

    def _find_starts(self, windows: SignalWindows) -> Starts:
        """Return the starts of windows in which one of `_steps` is predicted; `missing: mask` reads all samples."""
        is_long = self.num_latents(windows.sequence_ids) > min(self._steps)
        num, ranges = np.where(is_long, windows.all_starts, 0), {}
        if self.recordings.missing == "mask":
            for recording in np.flatnonzero(is_long).tolist():
                is_known = known_samples(self.signals, int(windows.sequence_ids[recording]))
                if not is_known.all():
                    is_usable = usable_starts(is_known, self.encoder, windows.window_samples, self._steps)
                    if not is_usable.all():
                        num[recording], ranges[recording] = is_usable.sum(), ranges_of(is_usable)
        return Starts(num, ranges)

    def held_out_batch_size(self, windows: SignalWindows, batch_size: int, world_size: int) -> int:
        """Return the batch size of all ranks, at most one pass: a repeated window would be its own negative."""
        num_slots = int(windows.draws["num_slots"].sum())
        if num_slots < world_size:
            raise ValueError(
                f"split {windows.split!r} has {num_slots} windows for {world_size} processes: hold more out"
            )
        return min(world_size * batch_size, num_slots)

    def statistics(self, split: str | None) -> SignalStatistics:
        """Return mean, deviation and floor of every channel over a split; None: over all recordings."""
        if split not in self._statistics:
            with naming(split):
                signals = (self.signals.read(row) for row in self.rows(split).tolist())
                self._statistics[split] = signal_statistics(signals, self.encoder.average_samples)
        return self._statistics[split]

    def num_samples(self, row: int) -> int:
        """Return the length of a recording; 0 if it was left out."""
        return int(self.signals.lengths[row])

    def initialisation_windows(self, split: str | None, num_windows: int, seed: int) -> Tensor:
        """Return windows of a split without padding, for the data-dependent initialisation: `[n, S, C]`."""
        corpus = self.predicting([0])
        lengths = self.signals.lengths[self.rows(split)]
        corpus.window_samples = min(self.window_samples, int(np.median(lengths[lengths > 0])))
        windows = replace(corpus.windows(split), labels=None)
        long_enough = windows.lengths >= windows.window_samples
        draws = windows.draws
        draws["num_slots"] = np.where(long_enough, draws["num_slots"], 0)
        stream = UniformBatches(**draws, batch_size=num_windows, seed=seed)
        return windows.__getitems__(stream.batch(0)).x

    def labels(self, task: str) -> Labels:
        """Return the labels of a task.

        Raises:
            ValueError: if labels end after their recording.
        """
        labels = self.recordings.labels[task]
        if task not in self._checked_tasks:
            title = f"{self.recordings.source}, labels {task!r}"
            labels.check(title, self.recordings.names, self.signals.lengths)
            self._checked_tasks.add(task)
        return labels

    def frame_codes(self, task: str, row: int, first_sample: int, num_latents: int) -> np.ndarray:
        """Return the class at the centre of each latent, `[T]` int64; -1 without a label."""
        encoder = self.encoder
        centres = np.round(encoder.first_centre_samples + encoder.hop_samples * np.arange(num_latents)).astype(int)
        centres = np.clip(first_sample + centres, 0, max(int(self.signals.lengths[row]) - 1, 0))
        codes = self.labels(task).codes(row, int(centres[0]), int(centres[-1] - centres[0]) + 1)
        return codes[centres - centres[0]]

    def _window_labels(self) -> WindowLabels | None:
        task = self._online_labels
        if task is None:
            return None
        self.labels(task)

        def labels(row: int, start: int, num_latents: int) -> np.ndarray:
            codes = self.frame_codes(task, row, start, num_latents)
            return np.where(codes < 0, -100, codes)

        return labels

    @cached_property
    def _checked_tasks(self) -> set[str]:
        return set()

    @cached_property
    def _statistics(self) -> dict[str | None, SignalStatistics]:
        return {}
