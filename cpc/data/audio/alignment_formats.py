"""Time alignments: TIMIT `.phn`, CTM, CSV, CPC's `converted_aligned_phones.txt`, and Praat's TextGrids.

Every reader returns tracks: the segments of each audio file, in order of time and without overlap. Anything else in a
file raises a ValueError that names the file and the line.
"""

import codecs
import io
import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cpc.data.store.text_files import decode, read_table, require_utf8

PHN_RATE_HZ = 16_000
# CPC_audio's labels are 160 samples apart, at the 16 kHz of LibriSpeech.
ALIGNED_PHONES_HOP_SECONDS = 160 / 16_000
# Written times are rounded, so a segment may end a little after the next segment begins; the end is then cut.
OVERLAP_TOLERANCE_SECONDS = 1e-3
# A CTM rounds both start and duration to 10 ms, so their sum is up to 10 ms late.
CTM_OVERLAP_TOLERANCE_SECONDS = 10e-3
CSV_COLUMNS = ("path", "start", "end", "label")
CTM_MOST_FIELDS = 8  # confidence, type and speaker may follow the label

# Only ASCII blanks separate words; other blanks, such as U+00A0, may be part of a label.
_WORD = re.compile(r"[^ \t\n\r\f\v]+")


class Track(NamedTuple):
    """The segments of one audio file: starts and ends `[num_segments]` in seconds, ascending, and labels.

    Equal labels share one string object.
    """

    starts: np.ndarray
    ends: np.ndarray
    labels: list[str]


Row = tuple[int, str, float, float, str]  # line, audio file, start and end in seconds, label


def read_phn(file: Path) -> Track:
    """Read a TIMIT `.phn` file: `start end label` per line in order of time, in samples at 16 kHz."""

    def rows() -> Iterator[Row]:
        last_start = -np.inf
        for line_number, cells in _cells(file):
            if len(cells) != 3:
                raise ValueError(f"{file}, line {line_number}: {' '.join(cells)!r} is not 'start end label'")
            start, end = (_number(file, line_number, cell) / PHN_RATE_HZ for cell in cells[:2])
            if start < last_start:
                raise ValueError(f"{file}, line {line_number}: begins at {start:g} s, before the line above")
            last_start = start
            yield line_number, "", start, end, cells[2]

    return single_track(file, rows())


def read_ctm(file: Path) -> dict[str, Track]:
    """Read a CTM file, `file channel start duration label` per line; return tracks by the name in the first column.

    A confidence (a number, or NA), a type and a speaker may follow.
    """

    def rows() -> Iterator[Row]:
        channels: dict[str, str] = {}
        for line_number, cells in _cells(file, comment=";;"):
            if not 5 <= len(cells) <= CTM_MOST_FIELDS:
                line = " ".join(cells)
                raise ValueError(f"{file}, line {line_number}: {line!r} is not 'file channel start duration label'")
            if len(cells) > 5 and cells[5] != "NA":
                _number(file, line_number, cells[5])  # a blank inside the label would shift the following cells
            name, channel, *times, label = cells[:5]
            if channels.setdefault(name, channel) != channel:
                raise ValueError(f"{file}, line {line_number}: {name} has channels {channels[name]} and {channel}")
            start, duration = (_number(file, line_number, time) for time in times)
            yield line_number, name, start, start + duration, label

    return _tracks(file, rows(), CTM_OVERLAP_TOLERANCE_SECONDS)


def read_csv(file: Path) -> dict[str, Track]:
    """Read a CSV file with the columns path, start, end (seconds) and label; return tracks by path."""
    header, lines = read_table(file)
    missing = [name for name in CSV_COLUMNS if name not in header]
    if missing:
        raise ValueError(f"{file}: has no column {', '.join(missing)}, only {', '.join(header)}")
    ambiguous = [name for name in ("offset", "duration") if name in header]
    if ambiguous:
        raise ValueError(f"{file}: has the column {ambiguous[0]} beside start and end of the file's time: leave it out")
    columns = [header.index(name) for name in CSV_COLUMNS]

    def rows() -> Iterator[Row]:
        for line_number, cells in lines:
            path, start, end, label = (cells[column] for column in columns)
            yield line_number, path, _number(file, line_number, start), _number(file, line_number, end), label

    return _tracks(file, rows())


def index_aligned_phones(file: Path) -> dict[str, tuple[int, int]]:
    """Return, by stem, the offset in bytes and the line number of each utterance in a `converted_aligned_phones.txt`.

    LibriSpeech has a hundred million labels, so `read_aligned_phones` parses single utterances later.
    """
    positions: dict[str, tuple[int, int]] = {}
    offset = 0
    with file.open("rb") as stream:
        for line_number, line in enumerate(stream, start=1):
            if line_number == 1:
                require_utf8(file, line)
            stem, *rest = line.removeprefix(codecs.BOM_UTF8).split(maxsplit=1) or [b""]
            name = stem.decode("utf-8", errors="replace")
            if name and not rest:
                raise ValueError(f"{file}, line {line_number}: {name} has no labels")
            if name in positions:
                raise ValueError(f"{file}, line {line_number}: {name} also has the line {positions[name][1]}")
            if name:
                positions[name] = offset, line_number
            offset += len(line)
    return positions


def read_aligned_phones(file: Path, offset: int, line_number: int) -> Track:
    """Read one line of `converted_aligned_phones.txt`, `stem id id id ...`; a run of equal ids is one segment."""
    with file.open("rb") as stream:
        stream.seek(offset)
        words = stream.readline().split()[1:]
    try:
        ids = np.array(words, dtype=np.bytes_).astype(np.int64)
    except (ValueError, OverflowError):
        bad = max(words, key=lambda word: (not word.isdigit(), len(word)))
        raise ValueError(f"{file}, line {line_number}: {bad.decode(errors='replace')!r} is not a label id") from None
    if ids.min() < 0:
        raise ValueError(f"{file}, line {line_number}: {ids.min()} is not a label id")
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    first, last = np.append(0, changes), np.append(changes, len(ids))
    labels = [sys.intern(str(label)) for label in ids[first].tolist()]
    return Track(first * ALIGNED_PHONES_HOP_SECONDS, last * ALIGNED_PHONES_HOP_SECONDS, labels)


def single_track(file: Path, rows: Iterable[Row]) -> Track:
    """Return the track of a file that holds one utterance."""
    return _tracks(file, rows).get("", Track(np.zeros(0), np.zeros(0), []))


def _tracks(file: Path, rows: Iterable[Row], overlap_seconds: float = OVERLAP_TOLERANCE_SECONDS) -> dict[str, Track]:
    """Collect rows, which may come in any order, into tracks. A row takes 24 bytes besides its label."""
    names: dict[str, tuple[array[int], array[float], array[float], list[str]]] = {}
    for line, name, start, end, label in rows:
        if name not in names:
            names[name] = array("q"), array("d"), array("d"), []
        lines, starts, ends, labels = names[name]
        lines.append(line)
        starts.append(start)
        ends.append(end)
        labels.append(sys.intern(label))
    return {name: _track(file, overlap_seconds, *columns) for name, columns in names.items()}


def _track(file: Path, overlap_seconds: float, *columns: Any) -> Track:
    """Return the segments sorted by start, and check them; `columns` are lines, starts, ends and labels.

    Segments without duration are left out. If two neighbours overlap by rounding, the earlier one is cut.
    """
    lines, starts, ends = map(np.array, columns[:3])
    kept = np.flatnonzero((starts != ends) | ~(starts >= 0) | np.isinf(starts))
    order = kept[np.argsort(starts[kept], kind="stable")]
    lines, starts, ends, labels = lines[order], starts[order], ends[order], columns[3]
    overlaps = (starts[1:] < ends[:-1] - overlap_seconds - 1e-9) | (starts[1:] == starts[:-1])
    for bad, problem in (
        (~np.isfinite(starts + ends), "has a time that is not finite"),
        (~(starts >= 0), "starts before 0"),
        (~(ends >= starts), "ends before it starts"),
        (np.append(False, overlaps)[: len(starts)], "overlaps the segment before it"),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            what = f"the segment {labels[order[first]]!r} from {starts[first]:g} s to {ends[first]:g} s"
            raise ValueError(f"{file}, line {lines[first]}: {what} {problem}")
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    return Track(starts, ends, [labels[row] for row in order.tolist()])


def _cells(file: Path, comment: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield number and words of every line that is neither blank nor a comment."""
    for line_number, line in enumerate(io.StringIO(decode(file.read_bytes(), file), newline=None), start=1):
        if line.strip() and not (comment and line.startswith(comment)):
            yield line_number, _WORD.findall(line)


def _number(file: Path, line: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{file}, line {line}: {cell!r} is not a number") from None


# The values of a TextGrid, long or short: strings, numbers, flags. All other text is commentary, such as `intervals
# [1]:` and `xmin =`.
_VALUE = re.compile(
    r'"(?P<string>(?:[^"]|"")*)"'
    r"|(?<!\S)(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<flag><\w+>))(?!\S)"
)


def read_textgrid(file: Path, tier: str | None = None) -> Track:
    """Read an interval tier of a Praat TextGrid, by default `phones` or the only one; empty intervals are left out."""
    values = _Values(file)
    # The Penn aligner writes this name of the short format.
    if values.string() not in ("ooTextFile", "ooTextFile short") or values.string() != "TextGrid":
        raise ValueError(f"{file}: is not a TextGrid in text format; save it in Praat as text or short text")
    values.bounds()
    tiers: dict[str, tuple[float, float, list[Row]]] = {}
    points = []
    for _ in range(values.count() if values.take("flag", "<exists>") == "<exists>" else 0):
        tier_class = values.string()
        if tier_class not in ("IntervalTier", "TextTier"):
            values.fail("IntervalTier or TextTier", tier_class)
        name = values.string()
        if tier_class == "IntervalTier" and name in tiers:
            values.fail("another name, as this is the second interval tier", name)
        bounds = values.bounds()
        if tier_class == "IntervalTier":
            tiers[name] = (*bounds, [values.interval() for _ in range(values.count())])
        else:
            points.append(name)
            for _ in range(values.count()):
                values.number(), values.string()
    values.take(None, "the end of the file, after as many tiers and intervals as it announces")
    if tier is None:
        tier = next(iter(tiers)) if len(tiers) == 1 else "phones"
    if tier not in tiers:
        tier_names = ", ".join(tiers) + (f" (and the point tiers {', '.join(points)})" if points else "")
        raise ValueError(f"{file}: has no interval tier {tier!r}; its interval tiers are {tier_names}; set `tier`")
    return single_track(file, _labelled(file, *tiers[tier]))


def _labelled(file: Path, first: float, last: float, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the intervals that have a text; check that intervals are in order and within the bounds of their tier."""
    before = first
    for line, name, start, end, label in rows:
        for is_bad, problem in (
            (end < start, "ends before it starts"),
            (start < before - OVERLAP_TOLERANCE_SECONDS, f"overlaps the previous interval, which ends at {before:g} s"),
            (end > last + OVERLAP_TOLERANCE_SECONDS, f"ends after its tier, at {last:g} s"),
            ("\n" in label or "\r" in label, "has a line break in its text"),
        ):
            if is_bad:
                what = f"the interval {label[:40]!r} from {start:g} s to {end:g} s"
                raise ValueError(f"{file}, line {line}: {what} {problem}")
        before = end
        if label:
            yield line, name, start, end, label


class _Values:
    """The values of a TextGrid, one after the other. Any other text is commentary and is skipped, as in Praat."""

    def __init__(self, file: Path) -> None:
        self.line, self._position, self._file = 1, 0, file
        self._text = decode(file.read_bytes(), file)
        self._matches = _VALUE.finditer(self._text)

    def bounds(self) -> tuple[float, float]:
        first, last = self.number(), self.number()
        if not first <= last:
            self.fail("an end that is not before its start", f"{first:g} to {last:g}")
        return first, last

    def interval(self) -> Row:
        start, line = self.number(), self.line
        return line, "", start, self.number(), self.string().strip()

    def string(self) -> str:
        return self.take("string", "a string").replace('""', '"')

    def number(self) -> float:
        return float(self.take("number", "a number"))

    def count(self) -> int:
        value = self.number()
        if not (value >= 0 and value.is_integer()):
            self.fail("a count", f"{value:g}")
        return int(value)

    def take(self, kind: str | None, expected: str) -> str:
        """Return the next value, of one kind; None: there must be none."""
        match = next(self._matches, None)
        position = match.start() if match else len(self._text)
        self.line += self._text.count("\n", self._position, position)
        self._position = position
        if (match.lastgroup if match else None) != kind:
            self.fail(expected, match[0] if match else "the end of the file")
        return match[kind] if match and kind else ""

    def fail(self, expected: str, found: str) -> NoReturn:
        raise ValueError(f"{self._file}, line {self.line}: expected {expected}, found {' '.join(found[:60].split())}")
