"""Labels in a file beside a recording: events of BIDS, and hypnograms of Sleep-EDF."""

import math
from collections.abc import Sequence
from pathlib import Path

from cpc.data.recordings.labels import Segment
from cpc.data.signals.polysomnograms import read_annotations
from cpc.data.store.tables import number_or_nan, read_table

RECORDING_SUFFIXES = (".edf", ".bdf", ".hea")  # csv and tsv files beside these are tables about them
_HYPNOGRAM, _PSG = "-hypnogram.edf", "-psg.edf"
_UNKNOWN = ("", "n/a", "Sleep stage ?")


def split_sidecars(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the recordings among files, and the hypnograms; also the tables, if there are EDF, BDF or WFDB files."""
    are_tables = any(name.lower().endswith(RECORDING_SUFFIXES) for name in names)
    suffixes = (_HYPNOGRAM, ".csv", ".tsv") if are_tables else (_HYPNOGRAM,)
    sidecars = [name for name in names if name.lower().endswith(suffixes)]
    return [name for name in names if not name.lower().endswith(suffixes)], sidecars


def sidecar_segments(path: Path) -> dict[str, list[Segment]]:
    """Return the labels in the files beside a recording, by task.

    `NAME_events.tsv` beside `NAME_eeg.edf` (or another word than `eeg`) is the task `trial_type`, its column.
    `SC4001EC-Hypnogram.edf` beside `SC4001E0-PSG.edf`, whose last letters may differ, is the task `hypnogram`. Events
    without a type or an onset, and unscored stages, have no label.

    Raises:
        ValueError: if a file cannot be read, a time is illegal, or several hypnograms fit; the message names the file.
    """
    found: dict[str, list[Segment]] = {}
    start, _, _ = path.stem.rpartition("_")
    events = path.with_name(f"{start}_events.tsv")
    if start and path.suffix.lower() in RECORDING_SUFFIXES and events.is_file():
        found["trial_type"] = _read_events(events)
    if path.name.lower().endswith(_PSG):
        start = path.name[: -len(_PSG) - 1]
        fitting = [
            file
            for file in sorted(path.parent.iterdir())
            if file.name.startswith(start) and file.name[len(start) + 1 :].lower() == _HYPNOGRAM
        ]
        if len(fitting) > 1:
            raise ValueError(f"{path}: several hypnograms fit: {', '.join(file.name for file in fitting)}; keep one")
        if fitting:
            found["hypnogram"] = read_annotations(fitting[0])
    known = {task: [each for each in rows if each.label not in _UNKNOWN] for task, rows in found.items()}
    return {task: rows for task, rows in known.items() if rows}


def _read_events(path: Path) -> list[Segment]:
    names, rows = read_table(path)
    if not {"onset", "duration", "trial_type"} <= set(names):
        return []  # events without types, which BIDS allows
    columns = [names.index(name) for name in ("onset", "duration", "trial_type")]
    intervals = []
    for line, cells in rows:
        onset, duration, label = (cells[column].strip() for column in columns)
        if onset == "n/a":
            continue  # nobody knows when it was
        start, length = number_or_nan(onset), 0.0 if duration == "n/a" else number_or_nan(duration)
        if not (math.isfinite(start) and 0 <= length < math.inf):
            raise ValueError(
                f"{path}, line {line}: an event from {onset!r} of duration {duration!r}; an onset is seconds, a "
                "duration seconds >= 0; n/a if unknown"
            )
        intervals.append(Segment(start, start + length, label))
    return intervals
