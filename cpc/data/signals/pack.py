"""Recordings decoded once into a pack of float32 samples, from which training reads windows.

T samples, C channels.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from cpc.data.recordings.pack import PackedRecordings
from cpc.data.signals.arrays import release_arrays
from cpc.data.signals.recordings import Recordings
from cpc.data.store.folders import name_a_few
from cpc.data.store.packed import FORMAT, RowSource, pack_rows

_VERSION = 1  # raise it whenever the same recordings are written differently
_OTHER_SCALE = 100.0  # ratio of ranges between recordings


def pack_signals(
    recordings: Recordings,
    cache_dir: str | Path | None = None,
    *,
    skip_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> PackedRecordings:
    """Decode all recordings to float32, or reuse what an earlier call decoded.

    Values are in the recordings' `units`; missing samples are NaN. Labels, groups and splits are not in the pack, and
    can change without a new one. Warnings name constant channels, and recordings of whole numbers whose range is a
    hundred times that of others.

    Raises:
        ValueError: on recordings that cannot be used (damaged, empty, missing samples under `missing: refuse`).
        OSError: if the disk is full, or the folder cannot be written; nothing stays behind.
    """
    beside = recordings.source if recordings.source.is_dir() else recordings.source.parent
    packs = beside / ".cpc_cache" if cache_dir is None else Path(cache_dir)
    source = _Samples(recordings)
    folder = packs / f"signals-{FORMAT}.{_VERSION}-{recordings.key()}"
    return pack_rows(source, folder, PackedRecordings, skip_bad=skip_bad, num_workers=num_workers, progress=progress)


class _Samples(RowSource):
    """Recordings as rows of float32 samples."""

    noun, dtype = "recording", "<f4"

    def __init__(self, recordings: Recordings) -> None:
        self.shape = (len(recordings.channels),)
        self.about = {"channels": recordings.channels, "sample_rate_hz": recordings.sample_rate_hz}
        self._recordings = recordings
        self._constant: set[tuple[int, int]] = set()
        self._ranges: dict[int, np.ndarray] = {}  # row -> [C]
        self._whole: set[int] = set()

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        return self._recordings.num_samples

    @contextmanager
    def decoding(self) -> Iterator[None]:
        try:
            yield
        finally:
            release_arrays()
        for message in (self._constant_channels(), self._other_scales()):
            if message:
                warnings.warn(message, stacklevel=6)

    def decode(self, row: int) -> Iterator[Float32[np.ndarray, "t C"]]:
        lowest, highest = np.full(self.shape, np.inf), np.full(self.shape, -np.inf)
        num_known, is_whole = np.zeros(self.shape, np.int64), True
        for block in self._recordings.read(row):
            lowest, highest = np.fmin(lowest, _extreme(np.fmin, block)), np.fmax(highest, _extreme(np.fmax, block))
            is_whole = is_whole and not np.nanmax(np.abs(block - np.rint(block)), initial=0)
            num_known += np.isfinite(block).sum(axis=0)
            yield block
        is_constant = (lowest == highest) & (num_known > 1)
        self._constant |= {(channel, row) for channel in np.flatnonzero(is_constant).tolist()}
        self._ranges[row] = highest - lowest
        if is_whole:
            self._whole.add(row)

    def _constant_channels(self) -> str:
        """Return a warning that names the channels which are constant in a recording; "" if none is."""
        lines = []
        for channel, name in enumerate(self._recordings.channels):
            rows = [row for other, row in sorted(self._constant) if other == channel]
            if rows:
                lines.append(
                    f"{name}, in {len(rows)} of {len(self._recordings)} recordings, such as "
                    f"{self._recordings.title(rows[0])}"
                )
        return (
            f"channels are constant:\n{name_a_few(lines)}\nleave them out by `channels`, if they are" if lines else ""
        )

    def _other_scales(self) -> str:
        """Return a warning if some recordings hold whole numbers and ranges differ a hundredfold; else ""."""
        rows = sorted(row for row, ranges in self._ranges.items() if ranges.all() and np.isfinite(ranges).all())
        if not self._whole & set(rows):
            return ""
        logs = np.log10([self._ranges[row] for row in rows])
        scales = np.median(logs - np.median(logs, axis=0), axis=1)
        small, large = int(np.argmin(scales)), int(np.argmax(scales))
        ratio = 10 ** (scales[large] - scales[small])
        if ratio < _OTHER_SCALE or not self._whole & {rows[small], rows[large]}:
            return ""
        titles = [self._recordings.title(rows[index]) for index in (large, small)]
        return (
            f"the values of {titles[0]} span {ratio:.3g} times the range of {titles[1]}, and some are whole numbers: "
            "are they counts of a converter of another scale? Convert all to one unit"
        )


def _extreme(function: np.ufunc, block: np.ndarray) -> np.ndarray:
    values: np.ndarray = function.reduce(block, axis=0)
    return values
