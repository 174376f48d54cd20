"""A corpus decoded once: one int16 memory map that windows are sliced from, the default for training.

The place of a pack is named by a hash of what went into it (paths, sizes and times of the files, the rate), so
that it is built once, reused while nothing changed, and never stale.
"""

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from cpc.data.audio.files import check_rates, read_blocks, resampled_length
from cpc.data.audio.headers import Header, check_rate, read_header
from cpc.data.audio.manifest import Manifest
from cpc.data.store.atomic_folder import build_atomically
from cpc.data.store.folders import name_a_few
from cpc.data.store.parallel import map_in_order

_FORMAT = 2
_SCALE = np.float32(1 / 32768)


class PackedAudio:
    """Audio files in one int16 memory map, as `pack` writes it.

    A copy sent to another process carries the offsets alone and opens the map anew.

    Args:
        folder: the pack's folder (`audio.int16` and `index.json`).

    Attributes:
        sample_rate_hz: rate of every sample.
        num_samples: `[num_files]` int64, length of each file; 0 for one that was skipped.
        skipped: file index -> what is wrong with it.

    Raises:
        ValueError: if the folder holds no complete pack.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            index = json.loads((self.folder / "index.json").read_text(encoding="utf-8"))
            num_bytes = (self.folder / "audio.int16").stat().st_size
            if index["format"] != _FORMAT or index["num_bytes"] != num_bytes:
                raise ValueError(f"its format is {index['format']}, its size {num_bytes} of {index['num_bytes']} bytes")
            self.sample_rate_hz: int = index["sample_rate_hz"]
            check_rate(self.sample_rate_hz, "its samples are of")
            self.num_samples = np.array(index["num_samples"], np.int64)
            self.skipped: dict[int, str] = {int(row): reason for row, reason in index["skipped"].items()}
            self._totals = np.array(index["totals"], np.int64)
            self._totals_of_squares = np.array(index["totals_of_squares"], np.int64)
            self._offsets = np.array(index["offsets"], np.int64)
            places = np.stack([self._offsets, self.num_samples, num_bytes // 2 - self._offsets - self.num_samples])
            if (places < 0).any():
                raise ValueError(f"file {np.argmin(places.min(0))} lies outside of its samples")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{self.folder} holds no complete pack: {error}") from error
        self._map: np.ndarray | None = None

    @property
    def num_files(self) -> int:
        """How many files there are, skipped ones among them."""
        return len(self.num_samples)

    @property
    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation over all samples of these files.

        Held-out files count like any others: take the subset that is trained on first.

        Raises:
            ValueError: if none of the files holds a sample.
        """
        # Python's whole numbers until the division: no overflow, and no cancellation, however large the offset.
        num_samples, total, total_of_squares = (
            sum(sums.tolist()) for sums in (self.num_samples, self._totals, self._totals_of_squares)
        )
        if not num_samples:
            raise ValueError(f"none of the {self.num_files} audio files holds a sample, so they have no statistics")
        variance = (num_samples * total_of_squares - total**2) / num_samples**2
        return total / num_samples / 32768, variance**0.5 / 32768

    def subset(self, file_indices: Sequence[int] | np.ndarray) -> "PackedAudio":
        """These files alone, numbered anew in this order."""
        view = object.__new__(PackedAudio)
        view.__dict__.update(self.__dict__)
        for name in ("num_samples", "_offsets", "_totals", "_totals_of_squares"):
            setattr(view, name, getattr(self, name)[file_indices])
        view.skipped = {
            new: self.skipped[old] for new, old in enumerate(np.asarray(file_indices).tolist()) if old in self.skipped
        }
        return view

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        """At most `num_samples` samples of one file from `start` on, mono; fewer only where the file ends.

        Returns:
            `[<= num_samples]` float32 in [-1, 1].
        """
        if self._map is None:
            # A plain view of the map: slices of a numpy.memmap cost several microseconds each.
            self._map = np.asarray(np.memmap(self.folder / "audio.int16", dtype="<i2", mode="r"))
        if start < 0:
            raise ValueError(f"start={start}, but a file's first sample is number 0")
        offset = self._offsets[file_index]
        stop = min(start + num_samples, self.num_samples[file_index])
        return np.multiply(self._map[offset + start : offset + stop], _SCALE, dtype=np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}


def pack(
    manifest: Manifest,
    sample_rate_hz: int,
    cache_dir: str | Path | None = None,
    *,
    skip_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> PackedAudio:
    """Decodes every file of a manifest to mono int16 at one rate, or reuses what an earlier call decoded.

    File `i` of the result is row `i` of the manifest. Samples beyond [-1, 1] are clipped. An interrupted call leaves no
    pack behind; the next one starts anew.

    Args:
        manifest: the files.
        sample_rate_hz: rate to resample to.
        cache_dir: folder that holds packs, each in a folder of its own; `.cpc_cache` beside the manifest unless given.
        skip_bad: keep files that cannot be used as empty ones, and warn how many, instead of raising.
        num_workers: threads that decode; all cores unless given.
        progress: show a progress bar.

    Raises:
        ValueError: on a rate that is no audio's; naming the first few bad files (missing, damaged, truncated, NaN,
            constant). The good ones are packed all the same, so that a second call with `skip_bad` has nothing left to
            do.
        OSError: if the disk is full; nothing stays behind.
    """
    check_rate(sample_rate_hz, "`sample_rate_hz` is")
    packs = manifest.root / ".cpc_cache" if cache_dir is None else Path(cache_dir)
    folder = packs / _key(manifest, sample_rate_hz)
    if not _is_complete(folder):
        _build(manifest, sample_rate_hz, folder, num_workers or os.cpu_count() or 1, progress)
    packed = PackedAudio(folder)
    if packed.skipped:
        found = f"{len(packed.skipped)} of {packed.num_files} files cannot be used:\n"
        found += name_a_few(list(packed.skipped.values()))
        if not skip_bad or len(packed.skipped) == packed.num_files:
            raise ValueError(f"{found}\nrepair or remove them, or set `skip_bad` to go on without them")
        warnings.warn(f"went on without {found}", stacklevel=2)
    return packed


class _File(NamedTuple):
    """What is known of one file after it has been decoded."""

    num_samples: int = 0
    total: int = 0
    total_of_squares: int = 0
    num_clipped: int = 0
    problem: str = ""


def _is_complete(folder: Path) -> bool:
    try:
        PackedAudio(folder)
    except ValueError:
        return False
    return True


def _key(manifest: Manifest, sample_rate_hz: int) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {sample_rate_hz}".encode())
    for path, file in zip(manifest.paths, manifest.files, strict=True):
        try:
            status = file.stat()
            version = (status.st_size, status.st_mtime_ns)
        except OSError:
            version = (-1, -1)
        digest.update(json.dumps([path, *version]).encode())
    return digest.hexdigest()[:24]


def _build(manifest: Manifest, sample_rate_hz: int, folder: Path, num_workers: int, progress: bool) -> None:
    """Writes the pack beside its place and moves it there when it is complete."""
    paths = manifest.files
    num_bytes = 0

    def for_all(function: Callable[[int], Any], title: str) -> list[Any]:
        results = map_in_order(function, range(len(manifest)), num_workers)
        return list(tqdm(results, total=len(manifest), desc=title, unit="file", disable=not progress))

    try:
        with build_atomically(folder, _is_complete, "cache_dir") as unfinished:
            headers = for_all(_header_reader(manifest, sample_rate_hz), "pack: headers")
            # A file that cannot be read takes no room.
            known = [header if isinstance(header, Header) else Header(0, 1, 1, "") for header in headers]
            num_samples = np.array([header.num_samples for header in known])
            rates = np.array([header.sample_rate_hz for header in known])
            lengths = resampled_length(num_samples, rates, sample_rate_hz).tolist()
            offsets = np.cumsum([0, *lengths])
            num_bytes = 2 * int(offsets[-1])
            if num_bytes > shutil.disk_usage(unfinished).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            audio = unfinished / "audio.int16"
            with audio.open("wb") as stream:
                stream.truncate(num_bytes)

            def decode(row: int) -> _File:
                if isinstance(headers[row], str):
                    return _File(problem=headers[row])
                return _decode_into(audio, int(offsets[row]), lengths[row], paths[row], headers[row], sample_rate_hz)

            files: list[_File] = for_all(decode, "pack: decode")
            index = {
                "format": _FORMAT,
                "sample_rate_hz": sample_rate_hz,
                "num_bytes": num_bytes,
                "skipped": {row: file.problem for row, file in enumerate(files) if file.problem},
                "num_samples": [file.num_samples for file in files],
                "totals": [file.total for file in files],
                "totals_of_squares": [file.total_of_squares for file in files],
                "offsets": offsets[:-1].tolist(),
            }
            (unfinished / "index.json").write_text(json.dumps(index), encoding="utf-8")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(folder.parent).free
        raise OSError(
            error.errno,
            f"{error.strerror}: the packed audio takes {num_bytes / 1e9:.3f} GB, {free / 1e9:.3f} GB are free; "
            "make room, or name a place on another disk with `cache_dir`",
            str(folder.parent),
        ) from error
    clipped = [str(paths[row]) for row, file in enumerate(files) if file.num_clipped]
    if clipped:
        warnings.warn(
            f"{len(clipped)} of {len(files)} files of floating-point samples go beyond [-1, 1] and were clipped there; "
            f"scale them down if that is too much:\n{name_a_few(clipped)}",
            stacklevel=3,
        )


def _header_reader(manifest: Manifest, sample_rate_hz: int) -> Callable[[int], Header | str]:
    """Returns a function: row -> the header of its file, or what is wrong with it."""
    files = manifest.files
    names = [name for name in ("num_samples", "sample_rate_hz") if name in manifest.columns]
    expected = {name: manifest.column(name) for name in names}

    def read(row: int) -> Header | str:
        try:
            header = read_header(files[row])
            check_rates(files[row], header.sample_rate_hz, sample_rate_hz)
        except ValueError as error:
            return str(error)
        for name, values in expected.items():
            if int(values[row]) != getattr(header, name):
                return (
                    f"{files[row]}: {name} is {getattr(header, name)}, but {values[row]} in the manifest; "
                    "index the folder again"
                )
        return header

    return read


def _decode_into(audio: Path, offset: int, room: int, file: Path, header: Header, sample_rate_hz: int) -> _File:
    """Decodes one file to its place in the pack."""
    num_samples, total, total_of_squares, num_clipped = 0, 0, 0, 0
    lowest, highest = np.inf, -np.inf
    with audio.open("r+b") as stream:
        stream.seek(2 * offset)
        try:
            for block in read_blocks(file, sample_rate_hz):
                scaled = np.rint(block[: room - num_samples] * np.float32(32768))
                samples = scaled.clip(-32768, 32767)
                num_clipped += int(np.count_nonzero(np.abs(scaled) > 32768))
                stream.write(samples.astype("<i2").tobytes())
                # Exact: the sum of squares of a block (at most 8 million samples) stays below 2**53.
                samples = samples.astype(np.float64)
                num_samples += len(samples)
                total += int(samples.sum())
                total_of_squares += int(samples @ samples)
                lowest, highest = min(lowest, samples.min()), max(highest, samples.max())
        except ValueError as error:
            return _File(problem=str(error))
    if lowest == highest:
        return _File(problem=f"{file}: is constant, each of its {num_samples} samples is {lowest / 32768:g}")
    # Lossy codecs and resampling overshoot by nature; floating-point files that do have the wrong scale.
    is_float = header.subtype in ("FLOAT", "DOUBLE")
    return _File(num_samples, total, total_of_squares, num_clipped if is_float else 0)
