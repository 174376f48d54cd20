"""The features of a corpus, extracted once: in memory while they fit, in a temporary file when they do not.

R frames of all files, D feature dim.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from cpc.data.audio import Audio
from cpc.probes.features import Features

DEFAULT_MAX_RAM_BYTES = 2_000_000_000


class FeatureStore:
    """Frames of many files, one after the other.

    Args:
        values: `[R, D]`, in memory or memory-mapped.
        offsets: `[num_files + 1]` where each file's frames start.
        features: the front end they come from.

    Attributes:
        num_too_short: files too short for a single frame.
    """

    def __init__(self, values: np.ndarray, offsets: np.ndarray, features: Features) -> None:
        self.values = values
        self.offsets = offsets
        self.features = features
        self.num_too_short = int((np.diff(offsets) == 0).sum())

    @classmethod
    def extract(
        cls,
        features: Features,
        audio: Audio,
        names: Sequence[str],
        *,
        max_ram_bytes: int = DEFAULT_MAX_RAM_BYTES,
        scratch_dir: str | Path | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        progress: bool = False,
    ) -> "FeatureStore":
        """Read every file once.

        Files go through the network one by one: on a CPU, batches of padded files are no faster, and padding would have
        to be kept from the last latents of every file.

        Args:
            features: the front end.
            audio: the files.
            names: what messages call them.
            max_ram_bytes: larger stores go to a memory-mapped temporary file, which vanishes with the process.
            scratch_dir: folder of that file; the system's for temporary files unless given.
            dtype: of the stored values; `float16` halves the file at three decimal digits.
            progress: show a progress bar.

        Raises:
            ValueError: if no file is long enough for a frame, or features are not finite; the file is named.
            OSError: if the disk cannot hold the temporary file.
        """
        num_frames = features.num_frames(audio.num_samples)
        offsets = np.concatenate([[0], np.cumsum(num_frames)]).astype(np.int64)
        if offsets[-1] == 0:
            raise ValueError(
                f"none of the {len(names)} files is long enough for a single frame of {features.kind!r}, for example "
                f"{list(names[:3])} with {audio.num_samples[:3].tolist()} samples"
            )
        values = _allocate((int(offsets[-1]), features.dim), np.dtype(dtype), max_ram_bytes, scratch_dir)
        order = tqdm(range(len(names)), desc=f"features {features.kind}", unit="file", disable=not progress)
        for file in order:
            position = int(offsets[file])
            for frames in features.stream(_blocks(audio, file, features.chunk_samples)):
                with np.errstate(over="ignore"):
                    frames = frames.astype(values.dtype, copy=False)
                if not np.isfinite(frames).all():
                    raise ValueError(
                        f"{names[file]}: features {features.kind!r} are not finite in {dtype}: broken audio, or a model "
                        "whose training diverged"
                    )
                values[position : position + len(frames)] = frames
                position += len(frames)
            assert position == offsets[file + 1]
        return cls(values, offsets, features)

    @property
    def is_memory_mapped(self) -> bool:
        """Whether the values live in a file."""
        return isinstance(self.values, np.memmap)

    def __len__(self) -> int:
        """Number of files."""
        return len(self.offsets) - 1

    def file(self, index: int) -> np.ndarray:
        """`[T, D]` the frames of one file."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def part(self, kind: Literal["c", "z"]) -> np.ndarray:
        """`[R, D]` the latents or the contexts of a store that holds both (`zc`), or the values of one that holds that.

        Raises:
            ValueError: if the store does not hold them.
        """
        if self.features.kind == kind:
            return self.values
        if self.features.kind != "zc":
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
