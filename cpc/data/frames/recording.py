"""Recorded episodes: a pack of frames, and a file of actions, rewards and the console's memory.

n frames of all episodes, H W rows and columns of a frame's pixels, R bytes of memory.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from cpc.data.images.arrays import load_array, open_npz
from cpc.data.store.packed import PackedRows

FRAMES_NAME, STEPS_NAME = "frames", "steps.npz"


class Recording(PackedRows):
    """The episodes that `cpc data record` wrote; a row is an episode, an element is a frame `[H, W, 1]`.

    Args:
        folder: folder of the recording.

    Attributes:
        environment: Gymnasium name of the environment.
        splits: split of every episode.
        steps: arrays `[n, ...]` over the frames of all episodes in order: `actions`, the action after each frame;
            `rewards` of these actions; and, for Atari, `ram`, the memory at the time of the frame.

    Raises:
        ValueError: if the folder holds no complete recording.
    """

    def __init__(self, folder: str | Path) -> None:
        if not (Path(folder) / STEPS_NAME).is_file():
            raise ValueError(
                f"{folder} holds no recorded episodes: write episodes with `cpc data record ENV {folder}`, or name "
                "the folder of a recording"
            )
        super().__init__(Path(folder) / FRAMES_NAME)
        self.ends = np.cumsum(self.lengths)

    @cached_property
    def steps(self) -> Mapping[str, np.ndarray]:
        """Arrays by name, read on first access.

        Raises:
            ValueError: if the file is damaged or has another number of frames; the message names it.
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
