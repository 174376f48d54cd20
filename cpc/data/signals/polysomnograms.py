"""Recordings in EDF and BDF files, read by edfio; their annotations are intervals."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.extras import import_extra
from cpc.data.recordings.labels import Segment
from cpc.data.signals.channels import channels_rate
from cpc.data.signals.listing import ReadOptions, SignalFile
from cpc.data.store.text_files import number_or_nan, read_table
from cpc.data.store.untrusted import reading

_BLOCK_SAMPLES = 1 << 16
_DAMAGE = "cannot be read as an EDF or BDF file"
_SIZES = {  # first byte of each field, and the byte after it
    "size of the header": (184, 192),
    "number of records": (236, 244),
    "duration of a record": (244, 252),
    "number of signals": (252, 256),
}
_RANGES = ("physical_min", "physical_max", "digital_min", "digital_max")


class EdfFile(SignalFile):
    """An EDF, EDF+ or BDF file without gaps. Values are in the units that the file's header names."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        with reading(path, _DAMAGE):
            edf = _open(path)
            signals, is_continuous = edf.signals, edf.is_continuous
            self._num_records, self._record_seconds = edf.num_data_records, float(edf.data_record_duration)
            annotations = _segments(edf)
        if not signals:
            raise ValueError(f"{path} holds no signals, only annotations")
        if not is_continuous:
            raise ValueError(f"{path} has gaps in time (EDF+D); a recording has none: write each part to its own file")
        self.channels = _distinct([signal.label for signal in signals])
        rates = [float(signal.sampling_frequency) for signal in signals]
        self.units = [signal.physical_dimension.strip() for signal in signals]
        _, chosen = options.choose(self.channels, path)
        for column in chosen:
            _check_ranges(path, self.channels[column], signals[column])
        self.rate_hz = channels_rate(rates, chosen, self.channels, path)
        self._per_record = signals[chosen[0]].samples_per_data_record
        self.num_samples = self._per_record * self._num_records
        self.segments = {"annotation": annotations} if annotations else {}

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels, in the header's units."""
        step = max(1, _BLOCK_SAMPLES // self._per_record)
        with reading(self.path, _DAMAGE):
            signals = _open(self.path).signals
            for first in range(0, self._num_records, step):
                end = min(first + step, self._num_records)
                seconds = (first * self._record_seconds, end * self._record_seconds)
                yield np.stack([signals[column].get_data_slice(*seconds) for column in columns], axis=1)


def read_annotations(path: Path) -> list[Segment]:
    """Return the annotations of an EDF file, which may hold no signals; raise a ValueError if it is damaged."""
    with reading(path, _DAMAGE):
        return _segments(_open(path))


def _open(path: Path) -> Any:
    edfio = import_extra("edfio", "signals", f"{path}: EDF needs the package `edfio`")
    _check_sizes(path)
    is_bdf = path.suffix.lower() == ".bdf"  # read into memory, since 24 bits cannot be mapped
    edf = edfio.read_bdf(path) if is_bdf else edfio.read_edf(path, lazy_load_data=True)
    for signal in edf.signals:
        for name in _RANGES:  # edfio would return digital values where a header has a decimal comma
            setattr(signal, f"_{name}", getattr(signal, f"_{name}").replace(b",", b"."))
    return edf


def _segments(edf: Any) -> list[Segment]:
    return [
        Segment(each.onset, each.onset + (each.duration or 0.0), each.text.strip())
        for each in edf.annotations
        if each.text.strip() and each.onset >= 0
    ]


def _check_sizes(path: Path) -> None:
    """Raise an error on a header whose sizes are no numbers, or do not fit each other."""
    with path.open("rb") as stream:
        header = stream.read(256).decode("ascii", "replace")
    texts = {title: header[first:end].strip() for title, (first, end) in _SIZES.items()}
    values = [number_or_nan(text) for text in texts.values()]
    for (title, text), value in zip(texts.items(), values, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"{path}: the {title} is {text!r}, no number: correct the header")
    size, _, seconds, num_signals = values
    if size != 256 * (1 + num_signals) or seconds < 0:
        sizes = f"it has {size:g} bytes and {num_signals:g} signals, and that a record lasts {seconds:g} s"
        raise ValueError(f"{path}: the header says that {sizes}: it is damaged")


def _check_ranges(path: Path, channel: str, signal: Any) -> None:
    """Raise an error on a channel without a scale, of which edfio returns digital values."""
    texts = [getattr(signal, f"_{name}").decode("ascii", "replace").strip() for name in _RANGES]
    values = [number_or_nan(text) for text in texts]
    advice = "correct the header, or choose other channels by `channels`"
    for name, text, value in zip(_RANGES, texts, values, strict=True):
        if not math.isfinite(value) or (name.startswith("digital") and value % 1):
            raise ValueError(f"{path}: {name} of channel {channel} is {text!r}, not a finite number: {advice}")
    for kind, (lowest, highest) in (("physical", values[:2]), ("digital", values[2:])):
        if lowest == highest:
            ends = f"{kind}_min and {kind}_max"
            raise ValueError(f"{path}: {ends} of channel {channel} are both {lowest:g}: {advice}")


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names; a name that occurs again gets a number."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return distinct


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
            legal = "an onset is seconds, a duration seconds >= 0; n/a if unknown"
            raise ValueError(f"{path}, line {line}: an event from {onset!r} of duration {duration!r}; {legal}")
        intervals.append(Segment(start, start + length, label))
    return intervals
