"""Recorded episodes: frames in a pack, and beside them what was done, what it was worth, and the console's memory.

n frames of all episodes, H W a frame's rows and columns of pixels, R bytes of memory.
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
    """The episodes that `cpc data record` has written; a row is an episode, an element is a frame `[H, W, 1]`.

    Args:
        folder: of the recording.

    Attributes:
        environment: its Gymnasium name.
        splits: of every episode.
        steps: `actions`, `rewards` and, of Atari, `ram`, `[n, ...]`: of every frame, episode after episode, the action
            that followed it, what that was rewarded with, and the memory while it was shown.

    Raises:
        ValueError: if the folder holds no complete recording.
    """

    def __init__(self, folder: str | Path) -> None:
        if not (Path(folder) / STEPS_NAME).is_file():
            raise ValueError(
                f"{folder} holds no recorded episodes: write some with `cpc data record ENV {folder}`, or name the "
                "folder that it was given"
            )
        super().__init__(Path(folder) / FRAMES_NAME)
        self.ends = np.cumsum(self.lengths)

    @cached_property
    def steps(self) -> Mapping[str, np.ndarray]:
        """Read when they are first asked for.

        Raises:
            ValueError: naming the file, if it is damaged, or of another number of frames.
        """
        path = self.folder.parent / STEPS_NAME
        with open_npz(path) as archive:
            names = [member.removesuffix(".npy") for member in archive.namelist()]
        found = {name: load_array(path, name) for name in names}
        for name, values in found.items():
            if len(values) != self.ends[-1]:
                raise ValueError(f"{path}: {len(values)} {name} are there for {self.ends[-1]} frames: record again")
        return found

    def episode_frames(self, name: str, row: int) -> np.ndarray:
        """`[T, ...]` one of the `steps` of an episode."""
        end = self.ends[row]
        return self.steps[name][end - self.lengths[row] : end]

    def rows(self, split: str | None) -> Int[np.ndarray, " e"]:
        """Episodes of a split; None: all."""
        return np.flatnonzero(np.array([split in (None, each) for each in self.splits]))

    def read(self, row: int, start: int, num_frames: int, stack: int) -> UInt8[np.ndarray, "T S H W"]:
        """`stacked` frames of an episode."""
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
    """Frames of an episode from `start` on, each after those before it, oldest first; fewer where the episode ends.

    Before its first frame an episode is taken to have stood still.
    """
    times = np.arange(start, min(start + num_frames, len(frames)))[:, None] + np.arange(1 - stack, 1)
    found: np.ndarray = frames[times.clip(0)]
    return found
