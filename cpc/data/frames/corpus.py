"""Recorded episodes: a pack of frames with actions, rewards and memory, and their windows of frame stacks by split.

B windows of T frames, S frames in a stack, H W rows and columns of a frame's pixels, R bytes of memory, n frames of all
episodes.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from cpc.data.batch import Batch
from cpc.data.images.arrays import load_array, open_npz
from cpc.data.map_style import MapStyleCorpus
from cpc.data.store.contents import say_contents
from cpc.data.store.fingerprints import Content
from cpc.data.store.packed import PackedRows
from cpc.data.streams.stream import Draw, digest

FRAMES_NAME, STEPS_NAME = "frames", "steps.npz"


class Recording(PackedRows):
    """The episodes that `cpc data record` wrote; a row is an episode, an element is a frame `[H, W, 1]`.

    Attributes:
        environment: Gymnasium name of the environment.
        splits: split of every episode.
        steps: arrays `[n, ...]` over the frames of all episodes in order: `actions`, the action after each frame;
            `rewards` of these actions; and, for Atari, `ram`, the memory at the time of the frame.
    """

    def __init__(self, folder: str | Path) -> None:
        if not (Path(folder) / STEPS_NAME).is_file():
            raise ValueError(f"{folder} holds no recorded episodes: write episodes with `cpc data record ENV {folder}`")
        super().__init__(Path(folder) / FRAMES_NAME)
        self.ends = np.cumsum(self.lengths)

    @cached_property
    def steps(self) -> Mapping[str, np.ndarray]:
        """Arrays by name, read on first access."""
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
        return np.flatnonzero([split in (None, episode_split) for episode_split in self.splits])

    def read(self, row: int, start: int, num_frames: int, stack: int) -> UInt8[np.ndarray, "T S H W"]:
        """Return stacks of an episode's frames from `start` on; see `stacked`."""
        begin = self._offsets[row]
        return stacked(self.elements[begin : begin + self.lengths[row], ..., 0], start, num_frames, stack)

    def _open(self, index: Mapping[str, Any]) -> None:
        super()._open(index)
        self.environment: str = index["environment"]
        self.splits: list[str] = index["splits"]
        self.about = {name: index[name] for name in ("environment", "policy", "seed", "max_steps", "versions")}


def stacked(
    frames: UInt8[np.ndarray, "n H W"], start: int, num_frames: int, stack: int
) -> UInt8[np.ndarray, "T S H W"]:
    """Return, for each frame from `start` on, a stack of the frame and its predecessors, oldest first.

    If the episode ends earlier, fewer stacks are returned. Copies of the first frame replace frames before the episode.
    """
    times = np.arange(start, min(start + num_frames, len(frames)))[:, None] + np.arange(1 - stack, 1)
    return np.asarray(frames[times.clip(0)])


NUM_INITIALISATION_WINDOWS = 16


class FrameCorpus(MapStyleCorpus):
    """The episodes of a recording, a folder that `cpc data record` wrote, as windows of T frames in stacks of S."""

    nouns = ("environment", "episode")

    def __init__(self, source: str | Path, window_frames: int, stack: int) -> None:
        self.recording = Recording(source)
        self.splits = self.recording.splits
        say_contents(source, "episodes", self.splits)
        self.window_frames, self.stack = window_frames, stack

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """S, H and W of an observation."""
        height, width, _ = self.recording.shape
        return self.stack, height, width

    def content(self, rows: np.ndarray) -> Content | None:  # noqa: D102
        return self.recording.content(rows)

    def windows(self, split: str | None, *, is_training: bool = False) -> "FrameWindows":
        """Return the windows of the episodes of a split; training uses no augmentation."""
        return FrameWindows(self, self.recording.rows(split), split, self.window_frames)

    def statistics(self, split: str | None) -> tuple[float, float]:
        """Return the exact mean and standard deviation of the pixels of a split, divided by 255."""
        mean, std = self.recording.subset(self.recording.rows(split)).statistics_over(255)
        return mean.item(), std.item()


class FrameWindows:
    """The windows of the episodes `rows`; an index is (episode, first frame), and a window lies in one episode.

    An episode shorter than a window is padded with zeros, which `num_valid` excludes. Sequence ids are rows of the
    corpus.
    """

    def __init__(self, corpus: FrameCorpus, rows: Int[np.ndarray, " e"], split: str | None, window_frames: int) -> None:
        self.corpus, self.sequence_ids, self.split = corpus, rows, split
        self.group_ids = np.full(len(rows), -1)
        self.lengths = corpus.recording.lengths[rows]
        self.num_latents = window_frames
        self.num_values = window_frames * int(np.prod(corpus.frame_shape))

    @property
    def draws(self) -> dict[str, Any]:
        """Arguments of the stream. In a pass an episode of L frames gives max(1, L // T) windows with random starts."""
        return {
            "num_slots": np.maximum(self.lengths // self.num_latents, 1),
            "num_starts": np.maximum(self.lengths - self.num_latents, 0) + 1,
            "made_from": {
                "window_frames": self.num_latents,
                "episodes": digest(self.lengths),
                "content of episodes": digest(self.corpus.recording.content(self.sequence_ids)),
            },
        }

    def __getitems__(self, indices: Sequence[Draw]) -> Batch:
        """Return the batch of these windows; `x` is `[B, T, S, H, W]` uint8."""
        x = np.zeros((len(indices), self.num_latents, *self.corpus.frame_shape), np.uint8)
        ids = self.sequence_ids[[episode for episode, _ in indices]]
        for window, row, (_, start) in zip(x, ids.tolist(), indices, strict=True):
            frames = self.corpus.recording.read(row, start, self.num_latents, self.corpus.stack)
            window[: len(frames)] = frames
        batch = Batch.of(torch.from_numpy(x))
        return batch._replace(num_valid=self.num_valid(indices), sequence_id=torch.from_numpy(ids))

    def num_valid(self, indices: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Return the number of frames of each window without padding."""
        lengths = self.lengths[[episode for episode, _ in indices]]
        return torch.from_numpy(np.minimum(lengths, self.num_latents))
