"""File formats of time alignments: TIMIT `.phn`, Praat TextGrid, CTM, CSV, and CPC's `converted_aligned_phones.txt`.

Every reader returns tracks: per audio file the segments in order of time, none overlapping another. Whatever breaks
that is a ValueError with the file and the line.
"""

import codecs
import csv
import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

PHN_RATE_HZ = 16_000
# CPC_audio's labels are 160 samples apart, at LibriSpeech's 16 kHz.
ALIGNED_PHONES_HOP_SECONDS = 160 / 16_000
# Times are rounded when they are written (CTM: start and duration each to 10 ms or 1 ms), so neighbours may touch.
OVERLAP_TOLERANCE_SECONDS = 1e-3

# The values of a TextGrid, long or short: strings, numbers, flags. `intervals [1]:` and `xmin =` are commentary.
_TEXTGRID_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)([-+]?\.?\d[\d.]*(?:[eE][-+]?\d+)?)(?!\S)|(?<!\S)(<\w+>)(?!\S)')


class Track(NamedTuple):
    """The segments of one audio file, compactly.

    Attributes:
        starts: `[num_segments]` float64, seconds, ascending.
        ends: `[num_segments]` float64, seconds.
        labels: one per segment; equal labels are one string object.
    """

    starts: np.ndarray
    ends: np.ndarray
    labels: list[str]


Row = tuple[int, str, float, float, str]  # line, audio file, start and end in seconds, label


def read_phn(file: Path) -> Track:
    """A TIMIT `.phn` file: `start end label` per line, in samples at 16 kHz."""

    def rows() -> Iterator[Row]:
        for number, cells in _cells(file):
            if len(cells) != 3:
                raise ValueError(f"{file}, line {number}: {' '.join(cells)!r} is not 'start end label'")
            start, end = (_number(file, number, cell) / PHN_RATE_HZ for cell in cells[:2])
            yield number, "", start, end, cells[2]

    return _only_track(file, rows())


def read_textgrid(file: Path, tier: str | None = None) -> Track:
    """One interval tier of a Praat TextGrid, long or short, UTF-8 or UTF-16; intervals without a text are left out.

    Args:
        file: the TextGrid.
        tier: name of the tier; None: `phones`, or the only interval tier there is.
    """
    values = _TextGridValues(file)
    if (values.string(), values.string()) != ("ooTextFile", "TextGrid"):
        raise ValueError(f"{file}: is not a TextGrid in text format; save it in Praat as text or short text")
    values.number(), values.number()
    tiers: dict[str, list[Row]] = {}
    others = []
    for _ in range(values.count() if values.flag() == "<exists>" else 0):
        kind, name = values.string(), values.string()
        values.number(), values.number()
        rows = []
        for _ in range(values.count()):
            start, line = values.number(), values.line
            end = values.number() if kind == "IntervalTier" else start
            label = values.string().strip()
            if label:
                rows.append((line, "", start, end, label))
        if kind == "IntervalTier":
            tiers[name] = rows
        else:
            others.append(name)
    if tier is None:
        tier = next(iter(tiers)) if len(tiers) == 1 else "phones"
    if tier not in tiers:
        points = f" (and the point tiers {', '.join(others)})" if others else ""
        raise ValueError(
            f"{file}: has no interval tier {tier!r}, only {', '.join(tiers) or 'none'}{points}; name one with tier"
        )
    return _only_track(file, tiers[tier])


def read_ctm(file: Path) -> dict[str, Track]:
    """A CTM file, `file channel start duration label` per line: tracks by the name in its first column."""

    def rows() -> Iterator[Row]:
        channels: dict[str, str] = {}
        for number, cells in _cells(file, comment=";;"):
            if len(cells) < 5:
                raise ValueError(
                    f"{file}, line {number}: {' '.join(cells)!r} is not 'file channel start duration label'"
                )
            name, channel, *times, label = cells[:5]
            if channels.setdefault(name, channel) != channel:
                raise ValueError(
                    f"{file}, line {number}: {name} has the channels {channels[name]} and {channel}; keep one of them"
                )
            start, duration = (_number(file, number, time) for time in times)
            yield number, name, start, start + duration, label

    return _tracks(file, rows())


def read_csv(file: Path) -> dict[str, Track]:
    """A CSV file with the columns path, start, end (seconds) and label: tracks by path."""
    reader = csv.reader(_decoded(file).splitlines())

    def rows() -> Iterator[Row]:
        header = next(reader, [])
        missing = [name for name in ("path", "start", "end", "label") if name not in header]
        if missing:
            raise ValueError(f"{file}: has no column {', '.join(missing)}, only {', '.join(header)}")
        path_at, start_at, end_at, label_at = (header.index(name) for name in ("path", "start", "end", "label"))
        for cells in filter(None, reader):
            number = reader.line_num
            if len(cells) != len(header):
                raise ValueError(f"{file}, line {number}: {len(cells)} cells under {len(header)} columns")
            start, end = (_number(file, number, cells[at]) for at in (start_at, end_at))
            yield number, cells[path_at], start, end, cells[label_at]

    try:
        return _tracks(file, rows())
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num}: is not a CSV ({error})") from error


def index_aligned_phones(file: Path) -> dict[str, tuple[int, int]]:
    """Where each utterance of a `converted_aligned_phones.txt` is: stem -> offset in bytes, line number.

    The labels are parsed when they are asked for: LibriSpeech has a hundred million.
    """
    places: dict[str, tuple[int, int]] = {}
    offset = 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            stem, *rest = line.split(maxsplit=1) or [b""]
            name = stem.decode("utf-8", errors="replace")
            if name and not rest:
                raise ValueError(f"{file}, line {number}: {name} has no labels")
            if name in places:
                raise ValueError(f"{file}, line {number}: {name} is in line {places[name][1]} already")
            if name:
                places[name] = offset, number
            offset += len(line)
    return places


def read_aligned_phones(file: Path, offset: int, number: int) -> Track:
    """One line of `converted_aligned_phones.txt`, `stem id id id ...`; a run of equal ids is one segment."""
    with file.open("rb") as stream:
        stream.seek(offset)
        words = stream.readline().split()[1:]
    try:
        ids = np.array(words, dtype=np.bytes_).astype(np.int64)
    except (ValueError, OverflowError):
        bad = max(words, key=lambda word: (not word.isdigit(), len(word)))
        raise ValueError(f"{file}, line {number}: {bad.decode(errors='replace')!r} is not a label id") from None
    if ids.min() < 0:
        raise ValueError(f"{file}, line {number}: {ids.min()} is not a label id")
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    first, last = np.append(0, changes), np.append(changes, len(ids))
    labels = [sys.intern(str(label)) for label in ids[first].tolist()]
    return Track(first * ALIGNED_PHONES_HOP_SECONDS, last * ALIGNED_PHONES_HOP_SECONDS, labels)


class _TextGridValues:
    """The values of a TextGrid one after the other, as Praat reads them: what is expected decides what is skipped."""

    def __init__(self, file: Path) -> None:
        self.line = 1
        self._file = file
        self._text = _decoded(file)
        self._values = _TEXTGRID_VALUE.finditer(self._text)
        self._place = 0

    def string(self) -> str:
        return self._next(1, "a string").replace('""', '"')

    def number(self) -> float:
        found = self._next(2, "a number")
        try:
            return float(found)
        except ValueError:
            self._fail("a number", found)

    def count(self) -> int:
        number = self.number()
        if not (number >= 0 and number.is_integer()):
            self._fail("a count", f"{number:g}")
        return int(number)

    def flag(self) -> str:
        return self._next(3, "<exists>")

    def _next(self, group: int, expected: str) -> str:
        match = next(self._values, None)
        place = len(self._text) if match is None else match.start()
        self.line += self._text.count("\n", self._place, place)
        self._place = place
        if match is None or match[group] is None:
            self._fail(expected, "the end of the file" if match is None else match[0])
        return match[group]

    def _fail(self, expected: str, found: str) -> NoReturn:
        raise ValueError(f"{self._file}, line {self.line}: expected {expected}, found {found}")


def _only_track(file: Path, rows: Iterable[Row]) -> Track:
    return _tracks(file, rows).get("", Track(np.zeros(0), np.zeros(0), []))


def _tracks(file: Path, rows: Iterable[Row]) -> dict[str, Track]:
    """Rows in any order as tracks; 24 bytes a row beside the label."""
    names: dict[str, tuple[array[int], array[float], array[float], list[str]]] = {}
    for line, name, start, end, label in rows:
        if name not in names:
            names[name] = array("q"), array("d"), array("d"), []
        lines, starts, ends, labels = names[name]
        lines.append(line)
        starts.append(start)
        ends.append(end)
        labels.append(sys.intern(label))
    return {name: _track(file, *columns) for name, columns in names.items()}


def _track(file: Path, *columns_and_labels: Any) -> Track:
    """Sorted by start and checked; a segment without duration is left out, as no frame lies in it."""
    *columns, labels = columns_and_labels
    order = np.argsort(columns[1], kind="stable")
    lines, starts, ends = (np.array(column)[order] for column in columns)
    for bad, problem in (
        (~np.isfinite(starts + ends), "has a time that is not finite"),
        (~(starts >= 0), "starts before 0"),
        (~(ends >= starts), "ends before it starts"),
        (np.append(False, starts[1:] < ends[:-1] - OVERLAP_TOLERANCE_SECONDS), "overlaps the segment before it"),
    ):
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"{file}, line {lines[at]}: the segment {labels[order[at]]!r} from {starts[at]:g} s to "
                f"{ends[at]:g} s {problem}"
            )
    kept = ends > starts
    return Track(starts[kept], ends[kept], [labels[row] for row in order[kept].tolist()])


def _decoded(file: Path) -> str:
    data = file.read_bytes()
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: is neither UTF-8 nor UTF-16 text ({error})") from error


def _cells(file: Path, comment: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Number and words of every line that is neither blank nor a comment."""
    for number, line in enumerate(_decoded(file).splitlines(), start=1):
        if line.strip() and not (comment and line.startswith(comment)):
            yield number, line.split()


def _number(file: Path, line: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{file}, line {line}: {cell!r} is not a number") from None
