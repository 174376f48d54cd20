"""The features of a corpus, extracted once: in memory while they fit, in a temporary file when they do not.

R frames of all files, D feature dim.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from cpc.data.audio.files import Audio
from cpc.data.audio.manifest import Manifest
from cpc.data.store.parallel import map_in_order
from cpc.probes.features import Features, Kind

DEFAULT_MAX_RAM_BYTES = 2_000_000_000
MOST_FILES_TOGETHER = 16
MOST_FRAMES_TOGETHER = 16_000  # padding included


class FeatureStore:
    """Frames of many files, one after the other.

    Args:
        features: the front end they come from.
        rows: `[num_files]` which row of the manifest each file is.
        num_frames: `[num_files]` frames of each file.
        values: `[R, D]`, in memory or memory-mapped.

    Attributes:
        num_too_short: files too short for a single frame.
    """

    def __init__(self, features: Features, rows: np.ndarray, num_frames: np.ndarray, values: np.ndarray) -> None:
        self.features = features
        self.values = values
        self.num_too_short = int((num_frames == 0).sum())
        ends = np.cumsum(num_frames).tolist()
        self._places = dict(zip(rows.tolist(), map(slice, [0, *ends[:-1]], ends), strict=True))

    @classmethod
    def extract(
        cls,
        features: Features,
        manifest: Manifest,
        audio: Audio,
        rows: np.ndarray,
        *,
        max_ram_bytes: int = DEFAULT_MAX_RAM_BYTES,
        scratch_dir: str | Path | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        progress: bool = False,
    ) -> "FeatureStore":
        """Read every file once.

        On a CPU every thread reads files of its own. Short ones of like length share the steps of the context
        (`Features.together`); a long one goes through it in pieces.

        Args:
            features: the front end.
            manifest: the corpus.
            audio: its files, in the order of the manifest.
            rows: of the manifest: the files to read.
            max_ram_bytes: larger stores go to a memory-mapped temporary file, which vanishes with the process.
            scratch_dir: folder of that file; the system's for temporary files unless given.
            dtype: of the stored values; `float16` halves the file at three decimal digits.
            progress: show a progress bar.

        Raises:
            ValueError: if no file is long enough for a frame, or features are not finite; the file is named.
            OSError: if the disk cannot hold the temporary file.
        """
        num_frames = features.num_frames(audio.num_samples[rows])
        if not num_frames.any():
            raise ValueError(
                f"none of the {len(rows)} files is long enough for a single frame of {features.kind!r}, for example "
                f"{manifest.paths[rows[0]]} with {audio.num_samples[rows[0]]} samples"
            )
        shape = (int(num_frames.sum()), features.dim)
        values = _allocate(shape, np.dtype(dtype), max_ram_bytes, scratch_dir)
        store = cls(features, rows, num_frames, values)
        num_threads = torch.get_num_threads()
        num_workers = num_threads if features.device.type == "cpu" else 1

        def keep(row: int, position: int, frames: np.ndarray) -> int:
            with np.errstate(over="ignore"):
                frames = frames.astype(values.dtype, copy=False)
            if not np.isfinite(frames).all():
                raise ValueError(
                    f"{manifest.paths[row]}: features {features.kind!r} are not finite in {dtype}: broken "
                    "audio, or a model whose training diverged"
                )
            store.file(row)[position : position + len(frames)] = frames
            return position + len(frames)

        def extract_group(group: list[int]) -> int:
            if num_workers > 1:
                torch.set_num_threads(1)  # of this worker: files per core are faster than a file on all cores
            blocks = [_blocks(audio, row, features.chunk_samples) for row in group]
            if len(group) > 1:
                for row, frames in zip(group, features.together(blocks), strict=True):
                    assert keep(row, 0, frames) == len(store.file(row))
            else:
                position = 0
                for frames in features.stream(blocks[0]):
                    position = keep(group[0], position, frames)
                assert position == len(store.file(group[0]))
            return len(group)

        title = f"features {features.kind}"
        try:
            with features.frozen():
                with tqdm(total=len(rows), desc=title, unit="file", disable=not progress) as bar:
                    for num_files in map_in_order(extract_group, _groups(rows, num_frames, features), num_workers):
                        bar.update(num_files)
        finally:
            torch.set_num_threads(num_threads)
        return store

    @property
    def is_memory_mapped(self) -> bool:
        """Whether the values live in a file."""
        return isinstance(self.values, np.memmap)

    def place(self, row: int) -> slice:
        """Where the frames of a row of the manifest are."""
        return self._places[row]

    def file(self, row: int) -> np.ndarray:
        """`[T, D]` the frames of a row of the manifest."""
        return self.values[self._places[row]]

    def part(self, kind: Kind) -> np.ndarray:
        """`[R, D]` all values, or the latents or contexts alone of a store that holds both (`zc`).

        Raises:
            ValueError: if the store does not hold them.
        """
        if self.features.kind == kind:
            return self.values
        if self.features.kind != "zc" or kind not in ("z", "c"):
            raise ValueError(f"a store of {self.features.kind!r} holds no {kind!r}")
        split = self.features.latent_dim
        return self.values[:, :split] if kind == "z" else self.values[:, split:]


def _groups(rows: np.ndarray, num_frames: np.ndarray, features: Features) -> list[list[int]]:
    """Files to take together: like in length, few enough for the memory, and one by one where there is no context."""
    by_length = np.argsort(num_frames, kind="stable")[::-1]
    groups: list[list[int]] = []
    longest = 0
    for file in by_length.tolist():
        size = len(groups[-1]) + 1 if groups else 1
        if groups and features.has_context and size <= MOST_FILES_TOGETHER and size * longest <= MOST_FRAMES_TOGETHER:
            groups[-1].append(int(rows[file]))
        else:
            groups.append([int(rows[file])])
            longest = int(num_frames[file])
    return groups


def _allocate(
    shape: tuple[int, int], dtype: np.dtype, max_ram_bytes: int, scratch_dir: str | Path | None
) -> np.ndarray:
    num_bytes = shape[0] * shape[1] * dtype.itemsize
    if num_bytes <= max_ram_bytes:
        return np.empty(shape, dtype)
    folder = Path(tempfile.gettempdir() if scratch_dir is None else scratch_dir)
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise OSError(
            f"{num_bytes / 1e9:.1f} GB of features do not fit in {folder}, where {free / 1e9:.1f} GB are free: name "
            "another disk with `scratch_dir`, store them as float16, or probe with less audio (`train_minutes`)"
        )
    with tempfile.TemporaryFile(dir=folder, prefix="cpc-features-") as file:  # has no name, so a kill leaves nothing
        return np.memmap(file, dtype, "w+", shape=shape)


def _blocks(audio: Audio, file: int, block_samples: int) -> Iterator[np.ndarray]:
    for start in range(0, int(audio.num_samples[file]), block_samples):
        yield audio.read(file, start, block_samples)
