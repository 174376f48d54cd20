"""A folder of recordings, one per file, with or without `manifest.csv` and `labels.csv`."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from cpc.data.audio.manifest import MANIFEST_NAME, Manifest
from cpc.data.recordings.labels import (
    RecordingLabels,
    Runs,
    Segment,
    encode_names,
    labels_of_recordings,
    runs_of_samples,
    sort_names,
)
from cpc.data.signals.arrays import list_npy, open_npy, read_array, transposed
from cpc.data.signals.channels import common_channels, common_rate, find_channel
from cpc.data.signals.listing import GROUP_NAMES, Listing, ReadOptions, SignalFile
from cpc.data.signals.physionet import WfdbRecord
from cpc.data.signals.polysomnograms import EdfFile, sidecar_segments, split_sidecars
from cpc.data.signals.tables import CommaTable, ParquetTable, SignalTable, leave_out_counters
from cpc.data.store.contents import say, split_called
from cpc.data.store.folders import (
    composed,
    file_version,
    find_files,
    map_in_order,
    names_in_table,
    refuse,
    refuse_doubles,
)
from cpc.data.store.text_files import number_or_nan, read_table

INTERVALS_NAME = "labels.csv"


class ArrayFile(SignalFile):
    """An npy file of one recording."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        listing = list_npy(path)
        if (num := len(listing.names)) > 1:
            raise ValueError(f"{path} holds {num} recordings; in a folder each file is one, [T, C]")
        self.channels, self.num_samples = listing.channels, listing.num_samples[0]

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:  # noqa: D102
        return read_array(np.array([[0, self.num_samples]]), open_npy(self.path), 0, columns)


OPENERS: dict[str, Callable[[Path, ReadOptions], SignalFile]] = {
    ".csv": CommaTable,
    ".tsv": CommaTable,
    ".parquet": ParquetTable,
    ".npy": ArrayFile,
    ".edf": EdfFile,
    ".bdf": EdfFile,
    ".hea": WfdbRecord,
}


def list_files(root: Path, names: Sequence[str], options: ReadOptions) -> Listing:
    """List files as recordings, by paths relative to `root`. All have the chosen channels, perhaps among others."""
    files: list[SignalFile] = []
    for name in names:
        path = root / name
        opener = OPENERS.get(path.suffix.lower())
        if opener is None:
            raise ValueError(f"{path} is of no known format; known are {' '.join(OPENERS)}")
        files.append(opener(path, options))
        files[-1].segments |= sidecar_segments(path)
    tables = [file for file in files if isinstance(file, SignalTable)]
    leave_out_counters(tables)
    _say_counters(root, tables)
    if options.channels is None and options.model_channels is None:
        shared = common_channels([file.channels for file in files], names, root)
    else:
        chosen = [options.choose(file.channels, file.path)[0] for file in files]
        common_channels(chosen, names, root)
        shared = list(files[0].channels)
    problems = [transposed(file.path, file.num_samples, len(file.channels)) for file in files]
    tasks = sorted({task for file in files for task in file.segments})
    labelled = sorted({task for file in files for task in file.sample_labels})
    rate = common_rate([file.rate_hz for file in files], names, root)
    columns = [
        [find_channel(name, file.channels) for name in shared] if list(file.channels) != shared else range(len(shared))
        for file in files
    ]
    units = [
        [file.units[column] if file.units and column >= 0 else "" for column in own]
        for file, own in zip(files, columns, strict=True)
    ]
    return Listing(
        names=list(names),
        channels=shared,
        sample_rate_hz=rate,
        num_samples=[file.num_samples for file in files],
        read_blocks=partial(_read_file, files, columns),
        version=[*names, *((part.name, *file_version(part)) for file in files for part in file.parts)],
        labels={task: RecordingLabels(partial(_labels_of_columns, files, task)) for task in labelled},
        segments={task: [file.segments.get(task, []) for file in files] for task in tasks},
        file_units=units,
        own_rates_hz=[file.rate_hz for file in files],
        layout_problem=next(filter(None, problems), ""),
    )


def list_folder(root: Path, options: ReadOptions) -> Listing:
    """List the recordings of a folder.

    `manifest.csv` has a column `path`, optional columns `split` and `group` (or `user`, `subject`), and any number of
    further columns, each a task with one label per recording. Without it, `find_recordings` finds the recordings. Files
    beside a recording may hold labels too (see `sidecar_segments`). `labels.csv`, optional, has the columns path,
    start, end (seconds from the recording's first sample) and label, and perhaps task.
    """
    table, columns = root / MANIFEST_NAME, {}
    if table.is_file():
        columns = _read_columns(table, ("path",))
        try:
            Manifest(root, columns).require_files(table)
        except ValueError as error:
            raise ValueError(f"{table}: {error}") from error
        names = columns.pop("path")
        if not names:
            raise ValueError(f"{table} has a header and no rows")
    else:
        names = find_recordings(root)
        refuse_doubles(root, names)
    listing = list_files(root, names, options)
    if "split" in columns:
        listing.splits = [split_called(split) or split for split in columns.pop("split")]
    for name in GROUP_NAMES:
        if name in columns:
            listing.groups = columns.pop(name)
            break
    listing.labels |= {task: labels_of_recordings(values) for task, values in columns.items()}
    if (root / INTERVALS_NAME).is_file():
        listing.segments = {**listing.segments, **read_segments(root / INTERVALS_NAME, names)}
    return listing


def find_recordings(root: Path, more_suffixes: Collection[str] = (), tables: Collection[Path] = ()) -> list[str]:
    """Return the recordings below a folder, relative to it, and print how many files about recordings were left out."""
    found = find_files(root, {*OPENERS, *more_suffixes}, "signal")
    below = [table.resolve() for table in tables if table.resolve().is_relative_to(root.resolve())]
    left_out = {MANIFEST_NAME, INTERVALS_NAME, *(table.relative_to(root.resolve()).as_posix() for table in below)}
    names, sidecars = split_sidecars([name for name in found if name not in left_out])
    if not names:
        raise ValueError(f"no recordings below {root}, only tables of labels, such as {found[0]}")
    if sidecars:
        left = f"left out {len(sidecars)} tables and hypnograms beside recordings, such as {sidecars[0]}"
        say(f"data: {root}: {left} (a table that is a recording must be named in {MANIFEST_NAME})")
    return names


def read_segments(path: Path, names: Sequence[str]) -> dict[str, list[list[Segment]]]:
    """Read a table of segments: path (or file name, or stem), start, end (seconds), label, and perhaps task."""
    columns = _read_columns(path, ("path", "start", "end", "label"))
    keys = list(map(composed, columns["path"]))
    names_there = names_in_table(names, keys)
    shared = sorted(name for name, count in Counter(names_there).items() if count > 1 and name in keys)
    refuse(f"names in {path} are those of several recordings", shared, "write their paths")
    row_of = {name: row for row, name in enumerate(names_there)}
    tasks = columns.get("task", ["interval"] * len(columns["path"]))
    segments: dict[str, list[list[Segment]]] = {task: [[] for _ in names] for task in dict.fromkeys(tasks)}
    cells = zip(keys, *(columns[name] for name in ("start", "end", "label")), tasks, strict=True)
    for number, (name, start, end, label, task) in enumerate(cells, start=1):
        times = [number_or_nan(time) for time in (start, end)]
        if name not in row_of or not 0 <= times[0] <= times[1] < math.inf:
            legal = f"a path is one of the recordings' ({names[0]}, ...), and times are seconds, 0 <= start <= end"
            raise ValueError(f"{path}, row {number}: {name} from {start!r} to {end!r}; {legal}")
        segments[task][row_of[name]].append(Segment(times[0], times[1], label))
    return segments


def _read_columns(path: Path, required: Sequence[str]) -> dict[str, list[str]]:
    names, rows = read_table(path, errors="surrogateescape")
    absent = [name for name in required if name not in names]
    if absent:
        raise ValueError(f"{path} has no column {absent[0]!r}, only {', '.join(names)}")
    cells = [row for _, row in rows]
    return {name: [row[column].strip() for row in cells] for column, name in enumerate(names)}


def _say_counters(root: Path, tables: Sequence[SignalTable]) -> None:
    """Print the columns of tables that are no channels, because they are times or counters."""
    times = sorted({file.time_column for file in tables if file.time_column})
    if counters := sorted({name for file in tables for name in file.counters}):
        rate = f"; the rate is that of {', '.join(times)}" if times else ""
        names = f"the columns {', '.join(counters)} are times or counters and no channels"
        say(f"data: {root}: {names} (to read one, name it in `channels`){rate}")


def _read_file(
    files: Sequence[SignalFile], columns: Sequence[Sequence[int]], row: int, chosen: Sequence[int]
) -> Iterator[np.ndarray]:
    file, places = files[row], [columns[row][column] for column in chosen]
    if -1 in places:
        raise ValueError(f"{file.path} has several channels of one name: {', '.join(file.channels)}; rename them")
    return file.blocks(places)


def _labels_of_columns(files: Sequence[SignalFile], task: str) -> tuple[list[str], list[Runs]]:
    """Return the labels per sample in a column of every file."""
    texts = [file.texts(task) if task in file.sample_labels else [] for file in files]
    classes = sort_names({name for column in texts for name in set(column)})
    return classes, [runs_of_samples(encode_names(column, classes)) for column in texts]


def header_errors(files: Sequence[Path], num_workers: int) -> list[str | None]:
    """Return, for each file, the message of the error if its header cannot be read; the samples are not decoded."""
    options = ReadOptions(None, [0])  # channels of other rates are no error

    def error(file: Path) -> str | None:
        try:
            OPENERS[file.suffix.lower()](file, options)
        except (ValueError, OSError) as problem:
            return str(problem)
        return None

    return list(map_in_order(error, files, num_workers))
