"""Recordings decoded once into a pack of float32 samples, from which training reads windows. T samples, C channels."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from cpc.config.argument_rules import Choices
from cpc.data.images.arrays import open_npz
from cpc.data.recordings.labels import RecordingLabels, labels_of_recordings, runs_of_samples
from cpc.data.recordings.windows import PackedRecordings
from cpc.data.signals.arrays import SIGNAL_NAMES, release_arrays
from cpc.data.signals.folder import OPENERS
from cpc.data.signals.listing import Listing
from cpc.data.signals.recordings import Missing, Recordings
from cpc.data.store.atomic import json_text
from cpc.data.store.folders import name_a_few
from cpc.data.store.packed import FORMAT, RowSource, check_skipped, pack_rows
from cpc.data.store.shards import Shards, list_of, open_table

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

    Values are in the recordings' `units`; missing samples are NaN. Warnings name constant channels, and recordings of
    whole numbers whose range is a hundred times that of others.
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
            lowest = np.fmin(lowest, np.fmin.reduce(block, axis=0))
            highest = np.fmax(highest, np.fmax.reduce(block, axis=0))
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
                where = f"{len(rows)} of {len(self._recordings)} recordings"
                lines.append(f"{name}, in {where}, such as {self._recordings.title(rows[0])}")
        return f"channels are constant:\n{name_a_few(lines)}\nleave them out by `channels`" if lines else ""

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
        what = f"the values of {titles[0]} span {ratio:.3g} times the range of {titles[1]}"
        return f"{what}, and some are whole numbers: are they counts of another scale? Convert all to one unit"


TABLE_NAME = "signals.json"


def is_file_of_signals(path: Path) -> bool:
    """Return whether a file is in a format of signals; an npz needs an array of signals."""
    if path.suffix.lower() == ".npz":
        with open_npz(path) as archive:
            return any(f"{name}.npy" in archive.namelist() for name in SIGNAL_NAMES)
    return path.suffix.lower() in OPENERS


def write_table(recordings: Recordings, packed: PackedRecordings) -> bytes:
    """Return names, splits, groups and labels of recordings as JSON; labels per sample are runs of one code."""
    labels = {}
    for task, each in recordings.labels.items():
        if not each.vary_within:
            codes = [int(each.codes(row, 0, 1)[0]) for row in range(len(recordings))]
            labels[task] = {"classes": each.classes, "codes": codes}
        else:
            each.check(f"{recordings.source}, labels {task!r}", recordings.names, packed.lengths)
            runs = []  # of each recording: code, length, code, length, ...
            for row, length in enumerate(packed.lengths.tolist()):
                firsts, run_codes = runs_of_samples(each.codes(row, 0, length))
                runs.append(np.stack([run_codes[1:-1], np.diff(firsts)], axis=1).ravel().tolist())
            labels[task] = {"classes": each.classes, "runs": runs}
    names, splits, groups = recordings.names, recordings.splits, recordings.groups
    columns = {"names": names, "splits": splits, "groups": groups, "missing": recordings.missing, "labels": labels}
    return json_text({"format": 1, **columns, "units": recordings.units}).encode()


def open_sharded_signals(
    shards: Shards, *, missing: Missing, skip_bad: bool
) -> tuple[Listing, PackedRecordings, Missing]:
    """Return the recordings of shards, their samples, and whether samples may be missing."""
    with open_table(shards, TABLE_NAME, "signals") as table:
        packed = PackedRecordings(shards.folder, shards)
        num_channels = len(packed.channels)
        Choices(("refuse", "mask")).check("missing", table["missing"])
        listing = Listing(
            names=list_of(str, table["names"], len(packed)),
            channels=packed.channels,
            sample_rate_hz=float(packed.sample_rate_hz),
            num_samples=packed.lengths.tolist(),
            splits=list_of(str, table["splits"], len(packed)),
            groups=list_of(str, table["groups"], len(packed)),
            labels={task: _labels(entry, packed.lengths) for task, entry in table["labels"].items()},
            file_units=[list_of(str, table.get("units", [""] * num_channels), num_channels)] * len(packed),
        )
    if missing == "refuse" and table["missing"] == "mask":
        raise ValueError(f"{shards.source} may lack samples (its shards have missing=mask): set `missing` to mask")
    check_skipped(packed, "recording", skip_bad)
    return listing, packed, table["missing"]


def _labels(entry: dict[str, Any], lengths: np.ndarray) -> RecordingLabels:
    classes = list_of(str, entry["classes"])
    if "codes" in entry:
        names, codes = [*classes, ""], _integers(entry["codes"], len(lengths), len(classes))  # -1 is the last name
        return labels_of_recordings([names[code] for code in codes], classes)
    rows = zip(entry["runs"], lengths.tolist(), strict=True)
    runs = [_integers(row, len(row), max(length, len(classes)) + 1).reshape(-1, 2).T for row, length in rows]
    is_sound = all(codes.max(initial=-1) < len(classes) and counts.min(initial=1) > 0 for codes, counts in runs)
    if [int(counts.sum()) for _, counts in runs] != lengths.tolist() or not is_sound:
        raise ValueError("runs of labels do not fit the recordings")
    content = [(np.cumsum([0, *counts]), np.array([-1, *codes, -1])) for codes, counts in runs]
    return RecordingLabels((classes, content))


def _integers(values: Any, num: int, most: int) -> np.ndarray:
    """Return a list of integers from -1 to below `most`."""
    array = np.array(list_of(int, values, num), np.int64)
    if len(array) and not -1 <= array.min() <= array.max() < most:
        raise ValueError(f"integers from {array.min()} to {array.max()} lie outside of -1 to {most - 1}")
    return array
