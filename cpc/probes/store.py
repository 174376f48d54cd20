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

from cpc.data.audio import Audio
from cpc.data.manifest import Manifest
from cpc.data.parallel import map_in_order
from cpc.probes.features import Features, Kind

DEFAULT_MAX_RAM_BYTES = 2_000_000_000


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

        Files go through the network one by one, on a CPU one per thread: batches of padded files are no faster, and
        padding would have to be kept from the last latents of every file.

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

        def extract_file(row: int) -> None:
            if num_workers > 1:
                torch.set_num_threads(1)  # of this worker: a file per core is faster than a file on all cores
            destination, position = store.file(row), 0
            for frames in features.stream(_blocks(audio, row, features.chunk_samples)):
                with np.errstate(over="ignore"):
                    frames = frames.astype(values.dtype, copy=False)
                if not np.isfinite(frames).all():
                    raise ValueError(
                        f"{manifest.paths[row]}: features {features.kind!r} are not finite in {dtype}: broken "
                        "audio, or a model whose training diverged"
                    )
                destination[position : position + len(frames)] = frames
                position += len(frames)
            assert position == len(destination)

        title = f"features {features.kind}"
        try:
            with features.frozen():
                done = map_in_order(extract_file, rows.tolist(), num_workers)
                list(tqdm(done, total=len(rows), desc=title, unit="file", disable=not progress))
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
            "another disk with scratch_dir, store them as float16, or probe with less audio (train_minutes)"
        )
    with tempfile.TemporaryFile(dir=folder, prefix="cpc-features-") as file:  # has no name, so a kill leaves nothing
        return np.memmap(file, dtype, "w+", shape=shape)


def _blocks(audio: Audio, file: int, block_samples: int) -> Iterator[np.ndarray]:
    for start in range(0, int(audio.num_samples[file]), block_samples):
        yield audio.read(file, start, block_samples)
