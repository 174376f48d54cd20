"""The recordings of ABX items, and their frames.

n items.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.data.audio.items import Items
from cpc.data.audio.manifest import bare_path, is_end_of
from cpc.data.audio.probe_data import AudioProbeData
from cpc.data.recordings.labels import MOST_SECONDS_AFTER_END
from cpc.data.store.folders import name_a_few
from cpc.probes.store import FeatureStore

# Times are rounded. An item that ends after its recording by less than this time is not counted as cut.
_ROUNDING_SECONDS = 1e-3


class Spans(NamedTuple):
    """The frames of n items in a store.

    Attributes:
        starts: `[n]` int64 first frame of each item.
        lengths: `[n]` int64 number of frames of each item; 0 if no frame's centre is in the item.
    """

    starts: np.ndarray
    lengths: np.ndarray


def locate(items: Items, source: Path, probe_data: AudioProbeData, skip_bad: bool) -> tuple[Items, np.ndarray, int]:
    """Return the items with a recording, their rows `[n]`, and how many end up to 50 ms after their recording.

    Items without a recording, or that begin or end later, are an error; with `skip_bad` they are left out with a
    warning. The audio is opened only after all names are found. `source` is the item file, for messages.
    """
    manifest = probe_data.corpus.table
    row_of = rows_of_names(items.files, manifest.paths)
    rows = np.array([row_of.get(name, -1) for name in items.files], np.int64)
    absent = list(dict.fromkeys(name for name in items.files if name not in row_of))
    problem = f"are of {len(absent)} files that the manifest in {manifest.root} does not list:\n{name_a_few(absent)}"
    items, rows = _kept(items, rows, rows >= 0, f"items of {source} {problem}", skip_bad)
    probe_data.prepare()
    ends_seconds = 60 * np.asarray(probe_data.minutes(rows))
    is_within = items.onset_seconds < ends_seconds
    is_within &= items.offset_seconds <= ends_seconds + MOST_SECONDS_AFTER_END
    late = np.flatnonzero(~is_within).tolist()
    lines = name_a_few([f"{items.line(item)} (it lasts {ends_seconds[item]:g} s)" for item in late])
    num_cut = int((is_within & (items.offset_seconds > ends_seconds + _ROUNDING_SECONDS)).sum())
    problem = f"items of {source} begin or end after their recording's end:\n{lines}"
    return *_kept(items, rows, is_within, problem, skip_bad), num_cut


def rows_of_names(names: Sequence[str], paths: Sequence[str]) -> dict[str, int]:
    """Return the row of each name: of the equal path, or of the only path that ends with it, without suffix."""
    row_of_path, bare = {path: row for row, path in enumerate(paths)}, [bare_path(path) for path in paths]
    rows_of_stem = defaultdict(list)
    for row, path in enumerate(bare):
        rows_of_stem[path.rpartition("/")[2]].append(row)
    row_of: dict[str, int] = {}
    for name in dict.fromkeys(names):
        bare_name = bare_path(name)
        rows = [row for row in rows_of_stem[bare_name.rpartition("/")[2]] if is_end_of(bare[row], bare_name)]
        rows = [row_of_path[name]] if name in row_of_path else rows
        if len(rows) > 1:
            found = name_a_few([paths[row] for row in rows])
            raise ValueError(f"items of {name!r} may be of {len(rows)} files:\n{found}\nwrite their whole paths")
        if rows:
            row_of[name] = rows[0]
    return row_of


def frames_of_items(items: Items, rows: np.ndarray, store: FeatureStore) -> Spans:
    """Return the frames of each item in the store: the frames with onset <= centre < offset.

    An item that ends after its recording `rows[i]` gets the frames up to the end of the recording; `cpc abx` counts
    such items. libri-light, and published results that use it, drop the last of these frames by mistake.
    """
    first, end = (_frames_before(each, store.extractor.times) for each in (items.onset_seconds, items.offset_seconds))
    slices = [store.span(row) for row in rows.tolist()]
    starts, stops = (np.array([getattr(each, name) for each in slices], np.int64) for name in ("start", "stop"))
    end = np.minimum(starts + end, stops)
    return Spans(starts + first, np.maximum(end - starts - first, 0))


def _frames_before(seconds: np.ndarray, times: Any) -> np.ndarray:
    """Return, for each time, the number of frames of a file whose centre is before this time."""
    hops = (seconds * times.sample_rate_hz - times.first_centre_samples) / times.hop_samples
    # Decimal times may differ from a centre by a rounding error of 1e-9.
    return np.maximum(np.ceil(hops.round(6)), 0).astype(np.int64)


def _kept(items: Items, rows: np.ndarray, is_fit: np.ndarray, problem: str, skip_bad: bool) -> tuple[Items, np.ndarray]:
    problem = f"{(~is_fit).sum()} of {len(items)} {problem}"
    if not is_fit.all() and not (skip_bad and is_fit.any()):
        raise ValueError(f"{problem}\nname the audio with `data`, or set `skip_bad` to go on without such items")
    if not is_fit.all():
        warnings.warn(f"left out {problem}", stacklevel=4)
    kept = np.flatnonzero(is_fit)
    return items.take(kept), rows[kept]
