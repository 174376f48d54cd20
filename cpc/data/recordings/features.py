"""Features of whole recordings of a corpus, for probes. T frames, D feature dim."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc.data.features import Features
from cpc.data.probe_data import FeatureExtractor
from cpc.data.recordings.windows import Samples

MOST_FILES_TOGETHER = 16
MOST_FRAMES_TOGETHER = 16_000  # frames of a group of files, including padding


class RecordingFeatures(FeatureExtractor):
    """Features of whole recordings.

    Args:
        features: names of the features; `c` and `z` together take one pass.
        read_file: returns the samples of a file outside the corpus, in blocks.
        together: encode several recordings at a time, on all cores: faster, and equal up to rounding.
    """

    def __init__(
        self,
        features: Sequence[str],
        times: Features,
        samples: Samples | None,
        read_file: Callable[[Path], Iterable[np.ndarray]] | None = None,
        together: bool = True,
    ) -> None:
        self.times, self.samples, self._read_file, self._together = times, samples, read_file, together
        parts = {"z": slice(None, times.latent_dim), "c": slice(times.latent_dim, None)}
        self._parts = {name: parts[name[0]] if times.kind == "zc" else slice(None) for name in features}
        self.dims = {name: len(range(times.dim)[part]) for name, part in self._parts.items()}

    @property
    def num_workers(self) -> int:
        """All cores if the device is a CPU, since one file per core is faster than one file on all cores."""
        return torch.get_num_threads() if self._together and self.times.device.type == "cpu" else 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:  # noqa: D102
        assert self.samples is not None
        return self.times.num_frames(self.samples.num_samples[rows])

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Group recordings of similar length that fit into memory together. Without a context a group is one file."""
        if not self._together:
            return super().groups(rows)
        num_frames = self.num_vectors(rows)
        groups: list[list[int]] = []
        longest = 0
        for index in np.argsort(num_frames, kind="stable")[::-1].tolist():
            size = len(groups[-1]) + 1 if groups else 1
            fits = size <= MOST_FILES_TOGETHER and size * longest <= MOST_FRAMES_TOGETHER
            if groups and self.times.has_context and fits:
                groups[-1].append(int(rows[index]))
            else:
                groups.append([int(rows[index])])
                longest = int(num_frames[index])
        return [np.array(group) for group in groups]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each recording and its features. A group is computed at once, a single recording in pieces."""
        blocks = [self._blocks(row) for row in rows.tolist()]
        row_frames: Iterator[tuple[int, np.ndarray]]
        if len(rows) == 1:
            row_frames = ((int(rows[0]), frames) for frames in self.times.stream(blocks[0]))
        else:
            row_frames = zip(rows.tolist(), self.times.together(blocks), strict=True)
        for row, frames in row_frames:
            yield row, {name: frames[:, part] for name, part in self._parts.items()}

    def geometry(self, feature: str) -> dict[str, Any]:  # noqa: D102
        return self.times.geometry() | super().geometry(feature)

    def file_features(self, path: Path) -> np.ndarray:  # noqa: D102
        assert self._read_file is not None
        pieces = list(self.times.stream(self._read_file(path)))
        if not pieces:
            raise ValueError(f"{path}: is too short for a single frame")
        return np.concatenate(pieces)

    def _blocks(self, row: int) -> Iterator[np.ndarray]:
        assert self.samples is not None
        for start in range(0, int(self.samples.num_samples[row]), self.times.chunk_samples):
            yield self.samples.read(row, start, self.times.chunk_samples)
