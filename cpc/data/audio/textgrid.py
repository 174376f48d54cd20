"""Time alignments in Praat's TextGrids, long or short, UTF-8 or UTF-16."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from cpc.data.audio.alignment_formats import OVERLAP_TOLERANCE_SECONDS, Row, Track, single_track
from cpc.data.store.text_files import decode

# The values of a TextGrid, long or short: strings, numbers, flags. All other text is commentary, such as `intervals
# [1]:` and `xmin =`.
_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)([-+]?\.?\d[\d.]*(?:[eE][-+]?\d+)?)(?!\S)|(?<!\S)(<\w+>)(?!\S)')


def read_textgrid(file: Path, tier: str | None = None) -> Track:
    """Read one interval tier of a Praat TextGrid, long or short, UTF-8 or UTF-16; intervals without text are left out.

    Args:
        file: the TextGrid.
        tier: name of the tier; None: `phones`, or the only interval tier.
    """
    values = _Values(file)
    # The Penn aligner writes this name of the short format.
    if values.string() not in ("ooTextFile", "ooTextFile short") or values.string() != "TextGrid":
        raise ValueError(f"{file}: is not a TextGrid in text format; save it in Praat as text or short text")
    values.bounds()
    tiers: dict[str, tuple[float, float, list[Row]]] = {}
    points = []
    for _ in range(values.count() if values.flag() == "<exists>" else 0):
        tier_class = values.string()
        if tier_class not in ("IntervalTier", "TextTier"):
            raise ValueError(
                f"{file}, line {values.line}: a tier must be an IntervalTier or a TextTier, not {tier_class!r}"
            )
        name = values.string()
        if tier_class == "IntervalTier" and name in tiers:
            raise ValueError(
                f"{file}, line {values.line}: a second interval tier is called {name!r}; rename one of them"
            )
        bounds = values.bounds()
        if tier_class == "IntervalTier":
            tiers[name] = (*bounds, [values.interval() for _ in range(values.count())])
        else:
            points.append(name)
            for _ in range(values.count()):
                values.number(), values.string()
    values.end()
    if tier is None:
        tier = next(iter(tiers)) if len(tiers) == 1 else "phones"
    if tier not in tiers:
        others = f" (and the point tiers {', '.join(points)})" if points else ""
        raise ValueError(
            f"{file}: has no interval tier {tier!r}; its interval tiers are {', '.join(tiers) or 'none'}{others}; "
            "name one with `tier`"
        )
    return single_track(file, _labelled(file, *tiers[tier]))


def _labelled(file: Path, first: float, last: float, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the intervals that have a text; check that intervals are in order and within the bounds of their tier."""
    before = first
    for line, name, start, end, label in rows:
        for is_bad, problem in (
            (end < start, "ends before it starts"),
            (start < before - OVERLAP_TOLERANCE_SECONDS, f"overlaps the previous interval, which ends at {before:g} s"),
            (end > last + OVERLAP_TOLERANCE_SECONDS, f"ends after its tier, at {last:g} s"),
            ("\n" in label or "\r" in label, "has a line break in its text; close its quote, or join the lines"),
        ):
            if is_bad:
                raise ValueError(
                    f"{file}, line {line}: the interval {label[:40]!r} from {start:g} s to {end:g} s {problem}"
                )
        before = end
        if label:
            yield line, name, start, end, label


class _Values:
    """The values of a TextGrid, one after the other. Any other text is commentary and is skipped, as in Praat."""

    def __init__(self, file: Path) -> None:
        self.line = 1
        self._file = file
        self._text = decode(file.read_bytes(), file)
        self._matches = _VALUE.finditer(self._text)
        self._position = 0

    def bounds(self) -> tuple[float, float]:
        first, last = self.number(), self.number()
        if not first <= last:
            self._fail("an end that is not before its start", f"{first:g} to {last:g}")
        return first, last

    def interval(self) -> Row:
        start, line = self.number(), self.line
        return line, "", start, self.number(), self.string().strip()

    def string(self) -> str:
        return self._next(1, "a string").replace('""', '"')

    def number(self) -> float:
        text = self._next(2, "a number")
        try:
            return float(text)
        except ValueError:
            self._fail("a number", text)

    def count(self) -> int:
        value = self.number()
        if not (value >= 0 and value.is_integer()):
            self._fail("a count", f"{value:g}")
        return int(value)

    def flag(self) -> str:
        return self._next(3, "<exists>")

    def end(self) -> None:
        if match := self._next_match():
            self._fail("the end of the file, after as many tiers and intervals as it announces", match[0])

    def _next(self, group: int, expected: str) -> str:
        match = self._next_match()
        if match is None or match[group] is None:
            self._fail(expected, match[0] if match else "the end of the file")
        return match[group]

    def _next_match(self) -> re.Match[str] | None:
        match = next(self._matches, None)
        position = match.start() if match else len(self._text)
        self.line += self._text.count("\n", self._position, position)
        self._position = position
        return match

    def _fail(self, expected: str, found: str) -> NoReturn:
        raise ValueError(f"{self._file}, line {self.line}: expected {expected}, found {' '.join(found[:60].split())}")
