"""Signals in shards: the samples of a pack, and a table of their recordings and labels, in a folder or behind a URL.

n recordings.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.images.arrays import open_npz
from cpc.data.recordings.labels import RecordingLabels, labels_of_recordings
from cpc.data.recordings.pack import PackedRecordings
from cpc.data.signals.arrays import SIGNAL_NAMES
from cpc.data.signals.folder import OPENERS
from cpc.data.signals.listing import Listing
from cpc.data.signals.recordings import Missing, Recordings
from cpc.data.store.atomic import json_text
from cpc.data.store.packed import check_skipped
from cpc.data.store.shards import Shards, list_of, open_table

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
            runs = [_runs(each.codes(row, 0, length)) for row, length in enumerate(packed.lengths.tolist())]
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
        if table["missing"] not in ("refuse", "mask"):
            raise ValueError(f"missing is {table['missing']!r}")
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
        raise ValueError(
            f"{shards.source} may lack samples, because its shards were made with missing=mask: set `missing` to "
            "mask, or shard the recordings again without it"
        )
    check_skipped(packed, "recording", skip_bad)
    return listing, packed, table["missing"]


def _runs(codes: np.ndarray) -> list[int]:
    """Return the code of each run of equal codes, and its length: code, length, code, length, ..."""
    firsts = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
    return np.stack([codes[firsts], np.diff(firsts, append=len(codes))], axis=1).ravel().tolist()


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
