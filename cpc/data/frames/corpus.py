"""Recorded episodes: a pack of frames with actions, rewards and memory, and their windows of frame stacks by split.

B windows of T frames, S frames in a stack, H W rows and columns of a frame's pixels, R bytes of memory, n frames of all
episodes.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from cpc.data.images.arrays import load_array, open_npz
from cpc.data.map_style import MapStyleCorpus
from cpc.data.recordings.windows import WindowDataset
from cpc.data.store.contents import rows_of_split, say_contents
from cpc.data.store.fingerprints import Content
from cpc.data.store.packed import PackedRows
from cpc.data.streams.stream import digest

FRAMES_NAME, STEPS_NAME = "frames", "steps.npz"


class Recording(PackedRows):
    """The episodes that `cpc data record` wrote; a row is an episode, an element is a frame `[H, W, 1]`."""

    def __init__(self, folder: str | Path) -> None:
        if not (Path(folder) / STEPS_NAME).is_file():
            raise ValueError(f"{folder} holds no recorded episodes: write episodes with `cpc data record ENV {folder}`")
        super().__init__(Path(folder) / FRAMES_NAME)
        self.ends = np.cumsum(self.lengths)

    @cached_property
    def steps(self) -> Mapping[str, np.ndarray]:
        """Arrays `[n, ...]` over the frames of all episodes in order, read on first access.

        `actions` has the action after each frame, `rewards` the rewards of these actions, and, for Atari, `ram` the
        memory at the time of the frame.
        """
        path = self.folder.parent / STEPS_NAME
        with open_npz(path) as archive:
            names = [member.removesuffix(".npy") for member in archive.namelist()]
        steps = {name: load_array(path, name) for name in names}
        for name, values in steps.items():
            if len(values) != self.ends[-1]:
                raise ValueError(f"{path}: holds {len(values)} {name} for {self.ends[-1]} frames: record again")
        return steps

    def episode_frames(self, name: str, row: int) -> np.ndarray:
        """Return the part of an array of `steps` that belongs to an episode, `[T, ...]`."""
        end = self.ends[row]
        return self.steps[name][end - self.lengths[row] : end]

    def rows(self, split: str | None) -> Int[np.ndarray, " e"]:
        """Return the episodes of a split; None: all."""
        return rows_of_split(self.splits, split, "episode")

    def read(self, row: int) -> UInt8[np.ndarray, "n H W"]:
        """Return the frames of an episode, on disk."""
        begin = self._offsets[row]
        return self.elements[begin : begin + self.lengths[row], ..., 0]

    def _open(self, index: Mapping[str, Any]) -> None:
        super()._open(index)
        self.environment: str = index["environment"]  # Gymnasium name
        self.splits: list[str] = index["splits"]  # of every episode
        self.about = {name: index[name] for name in ("environment", "policy", "seed", "max_steps", "versions")}


def stacked(
    frames: UInt8[np.ndarray, "n H W"], start: int, num_frames: int, stack: int
) -> UInt8[np.ndarray, "T S H W"]:
    """Return, for each frame from `start` on, a stack of the frame and its predecessors, oldest first.

    If the episode ends earlier, fewer stacks are returned. Copies of the first frame replace frames before the episode.
    """
    times = np.arange(start, min(start + num_frames, len(frames)))[:, None] + np.arange(1 - stack, 1)
    return np.asarray(frames[times.clip(0)])


class FrameStacks:
    """The stacks of S frames of a recording, as samples `[t, S, H, W]` of windows; short windows end with zeros."""

    padding = np.uint8(0)

    def __init__(self, recording: Recording, stack: int) -> None:
        self.recording, self.num_samples = recording, recording.lengths
        self.shape = (stack, *recording.shape[:2])

    def read(self, row: int, start: int, num_samples: int) -> UInt8[np.ndarray, "T S H W"]:
        """Return stacks of an episode's frames from `start` on; see `stacked`."""
        return stacked(self.recording.read(row), start, num_samples, self.shape[0])


NUM_INITIALISATION_WINDOWS = 16


class FrameCorpus(MapStyleCorpus):
    """The episodes of a recording, a folder that `cpc data record` wrote, as windows of T frames in stacks of S."""

    nouns = ("environment", "episode")

    def __init__(self, source: str | Path, window_frames: int, stack: int) -> None:
        self.recording = Recording(source)
        self.splits = self.recording.splits
        say_contents(source, "episodes", self.splits)
        self.window_frames, self.stacks = window_frames, FrameStacks(self.recording, stack)

    def content(self, rows: np.ndarray) -> Content | None:  # noqa: D102
        return self.recording.content(rows)

    def windows(self, split: str | None, *, is_training: bool = False) -> WindowDataset:
        """Return the windows of the episodes of a split; training uses no augmentation."""
        rows = self.recording.rows(split)
        return WindowDataset(
            self.stacks,
            self.window_frames,
            rows,
            num_latents=self.window_frames,
            split=split,
            noun="episodes",
            size_name="window_frames",
            made_from={"content of episodes": digest(self.recording.content(rows))},
        )

    def statistics(self, split: str | None) -> tuple[float, float]:
        """Return the exact mean and standard deviation of the pixels of a split, divided by 255."""
        mean, std = self.recording.subset(self.recording.rows(split)).statistics_over(255)
        return mean.item(), std.item()
