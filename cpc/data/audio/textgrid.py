"""Praat's TextGrid as a file of time alignments, long or short, UTF-8 or UTF-16."""

import re
from pathlib import Path
from typing import NoReturn

from cpc.data.audio.alignment_formats import OVERLAP_TOLERANCE_SECONDS, Row, Track, decode_text, single_track

# The values of a TextGrid, long or short: strings, numbers, flags. `intervals [1]:` and `xmin =` are commentary.
_TEXTGRID_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)([-+]?\.?\d[\d.]*(?:[eE][-+]?\d+)?)(?!\S)|(?<!\S)(<\w+>)(?!\S)')


def read_textgrid(file: Path, tier: str | None = None) -> Track:
    """One interval tier of a Praat TextGrid, long or short, UTF-8 or UTF-16; intervals without a text are left out.

    Args:
        file: the TextGrid.
        tier: name of the tier; None: `phones`, or the only interval tier there is.
    """
    values = _TextGridValues(file)
    # The Penn aligner calls the short format by name.
    if values.string() not in ("ooTextFile", "ooTextFile short") or values.string() != "TextGrid":
        raise ValueError(f"{file}: is not a TextGrid in text format; save it in Praat as text or short text")
    values.bounds()
    tiers: dict[str, list[Row]] = {}
    others = []
    for _ in range(values.count() if values.flag() == "<exists>" else 0):
        kind = values.string()
        if kind not in ("IntervalTier", "TextTier"):
            raise ValueError(f"{file}, line {values.line}: a tier is an IntervalTier or a TextTier, not {kind!r}")
        name = values.string()
        if kind == "IntervalTier" and name in tiers:
            raise ValueError(
                f"{file}, line {values.line}: a second interval tier is called {name!r}; rename one of them"
            )
        rows = values.intervals() if kind == "IntervalTier" else values.points()
        if kind == "IntervalTier":
            tiers[name] = rows
        else:
            others.append(name)
    values.end()
    if tier is None:
        tier = next(iter(tiers)) if len(tiers) == 1 else "phones"
    if tier not in tiers:
        points = f" (and the point tiers {', '.join(others)})" if others else ""
        raise ValueError(
            f"{file}: has no interval tier {tier!r}, only {', '.join(tiers) or 'none'}{points}; name one with `tier`"
        )
    for line, *_, label in tiers[tier]:
        if "\n" in label or "\r" in label:
            raise ValueError(
                f"{file}, line {line}: the label {label[:40]!r} holds a line break; close its quote, or join it"
            )
    return single_track(file, tiers[tier])


class _TextGridValues:
    """The values of a TextGrid one after the other, as Praat reads them: what is expected decides what is skipped."""

    def __init__(self, file: Path) -> None:
        self.line = 1
        self._file = file
        self._text = decode_text(file)
        self._values = _TEXTGRID_VALUE.finditer(self._text)
        self._place = 0

    def bounds(self) -> tuple[float, float]:
        first, last = self.number(), self.number()
        if not first <= last:
            self._fail("an end that is not before its start", f"{first:g} to {last:g}")
        return first, last

    def intervals(self) -> list[Row]:
        """The labelled intervals of a tier; each begins where the one before it ends, or later."""
        last, stop = self.bounds()
        rows = []
        for _ in range(self.count()):
            start, line = self.number(), self.line
            end, label = self.number(), self.string().strip()
            if not last - OVERLAP_TOLERANCE_SECONDS <= start <= end <= stop + OVERLAP_TOLERANCE_SECONDS:
                raise ValueError(
                    f"{self._file}, line {line}: the interval {label!r} from {start:g} s to {end:g} s runs backwards, "
                    f"overlaps the one before it (until {last:g} s), or leaves its tier (until {stop:g} s)"
                )
            last = end
            if label:
                rows.append((line, "", start, end, label))
        return rows

    def points(self) -> list[Row]:
        """Nothing of a tier of points, which has no segments."""
        self.bounds()
        for _ in range(self.count()):
            self.number(), self.string()
        return []

    def end(self) -> None:
        match = next(self._values, None)
        if match is not None:
            self._move(match.start())
            self._fail("the end of the file, after as many tiers and intervals as it announces", match[0])

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
        self._move(len(self._text) if match is None else match.start())
        if match is None or match[group] is None:
            self._fail(expected, "the end of the file" if match is None else match[0])
        return match[group]

    def _move(self, place: int) -> None:
        self.line += self._text.count("\n", self._place, place)
        self._place = place

    def _fail(self, expected: str, found: str) -> NoReturn:
        raise ValueError(f"{self._file}, line {self.line}: expected {expected}, found {found}")
