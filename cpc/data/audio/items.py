"""Items of ABX tests, made from the alignments of a corpus."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cpc.config.argument_rules import OutFile, checked
from cpc.data.audio.alignments import read_matching_alignments
from cpc.data.audio.manifest import read_manifest, shortest_names
from cpc.data.recordings.labels import Segment
from cpc.data.store.atomic import write_atomically
from cpc.data.store.folders import refuse, require_utf8
from cpc.data.store.text_files import number_or_nan, read_text

HEADER = "#file onset offset #phone prev-phone next-phone speaker"


@dataclass(frozen=True)
class Items:
    """The items of an ABX test by column: names of files, times `[n]` in seconds, phones, neighbours, speakers."""

    files: Sequence[str]
    onset_seconds: np.ndarray
    offset_seconds: np.ndarray
    phones: Sequence[str]
    previous: Sequence[str]
    following: Sequence[str]
    speakers: Sequence[str]

    def __len__(self) -> int:
        return len(self.files)

    def line(self, row: int) -> str:
        """Return the line of an item in the file."""
        times = (str(round(float(seconds[row]), 6)) for seconds in (self.onset_seconds, self.offset_seconds))
        labels = (column[row] for column in (self.phones, self.previous, self.following, self.speakers))
        return " ".join((self.files[row], *times, *labels))

    def take(self, rows: Sequence[int] | np.ndarray) -> "Items":
        """Return only these items, in this order."""
        files, *labels = (
            [column[row] for row in rows]
            for column in (self.files, self.phones, self.previous, self.following, self.speakers)
        )
        return Items(files, self.onset_seconds[rows], self.offset_seconds[rows], *labels)

    def write(self, path: str | Path) -> None:
        """Write the item file, atomically; a ValueError on names with blanks, which would shift the columns."""
        names = {*self.files, *self.phones, *self.previous, *self.following, *self.speakers}
        unfit = sorted(name for name in names if name.split() != [name])
        problem = "names of files, phones or speakers are empty or hold a blank, which divides the columns"
        refuse(problem, map(repr, unfit), "rename them")
        lines = list(map(self.line, range(len(self))))
        rounded = [line for line in lines if len(set(line.split()[1:3])) == 1]
        refuse("items are shorter than a microsecond, the precision of written times", rounded, "leave them out")
        require_utf8(sorted(names), "an item file")
        with write_atomically(path) as new:
            new.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")


def read_items(path: str | Path) -> Items:
    """Read an item file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no item file {path}; write one with `cpc data items DIR --out FILE.item`")
    header, *lines = read_text(path).split("\n")
    if header.replace("#", "").split() != HEADER.replace("#", "").split():
        raise ValueError(f"{path}, line 1: {header[:80]!r} is not the header of an item file, {HEADER!r}")
    rows = []
    line_of: dict[tuple[str, float, float], int] = {}
    for line_number, line in enumerate(lines, start=2):
        cells, where = line.split(), f"{path}, line {line_number}"
        if not cells:
            continue
        if len(cells) != len(HEADER.split()):
            raise ValueError(f"{where}: {len(cells)} fields under the 7 of {HEADER!r}")
        onset, offset = (number_or_nan(cell) for cell in cells[1:3])
        if not 0 <= onset < offset < np.inf:
            raise ValueError(f"{where}: the item is from {cells[1]} to {cells[2]} s; times are seconds, onset first")
        if (first := line_of.setdefault((cells[0], onset, offset), line_number)) != line_number:
            raise ValueError(f"{where}: {cells[0]} from {cells[1]} to {cells[2]} s is in line {first} already")
        rows.append((cells[0], onset, offset, *cells[3:]))
    if not rows:
        raise ValueError(f"{path} has a header and no items")
    return items_of_rows(rows)


def items_of_rows(rows: Iterable[tuple[Any, ...]]) -> Items:
    """Return items from rows with the columns of `Items`."""
    files, onsets, offsets, *labels = map(list, zip(*rows, strict=True))
    return Items(files, np.array(onsets), np.array(offsets), *labels)


Span = Literal["phone", "triphone"]

# Labels of LibriSpeech's alignments (SIL, sp, spn), TIMIT's (h#, pau, epi) and the synthesised corpus (sil).
SILENCES = ("SIL", "sil", "sp", "spn", "h#", "pau", "epi")
MOST_GAP_SECONDS = 0.02  # largest gap between neighbours: CTM rounds start and duration each to 10 ms


@checked
def write_items(
    data: str | Path,
    out: OutFile,
    *,
    alignments: str | Path | None = None,
    tier: str | None = None,
    split: str | None = None,
    span: Span = "phone",
    silences: Sequence[str] = SILENCES,
) -> Items:
    """`cpc data items`: write the item file of an ABX test, from the alignments of a corpus.

    An item is a phone with a neighbour on both sides. Files are named by their stems, or by their paths without suffix
    if two files have the same stem.

    Args:
        data: manifest CSV, or the folder that holds it.
        out: item file to write.
        alignments: file or folder of alignments; beside the manifest if not given.
        tier: tier of TextGrids that holds the phones; `phones`, or the only interval tier if not given.
        split: take items only from this split.
        span: extent of an item: `phone`; or `triphone`, which adds the time of the two neighbours, as in ZeroSpeech's
            tests. A triphone has no silence as a neighbour.
        silences: labels that are not phones; they may be neighbours, but not items.

    Raises:
        ValueError: if the alignments do not fit, a file has no speaker, no phone has two neighbours, or a name holds a
            blank.
    """
    manifest = read_manifest(data)
    rows = manifest.rows(split).tolist()
    aligned = read_matching_alignments(manifest, rows, alignments, tier, "an item file")
    names, speakers = shortest_names(manifest.paths), manifest.column("speaker")
    columns: list[tuple[str, float, float, str, str, str, str]] = []
    for row in rows:
        if manifest.paths[row] in aligned:
            segments = aligned.segments(manifest.paths[row])
            if segments and not speakers[row]:
                raise ValueError(f"{manifest.paths[row]} has no speaker: fill the manifest's speaker column")
            columns += [(names[row], *item, speakers[row]) for item in _items(segments, span, frozenset(silences))]
    if not columns:
        raise ValueError(f"no phone of the {len(rows)} files has a neighbour on both sides: check `silences`")
    items = items_of_rows(columns)
    items.write(out)
    return items


def describe_result(items: Items, options: Mapping[str, Any]) -> str:
    """Return the line that the command line prints."""
    counts = f"{len(set(items.phones))} phones of {len(set(items.speakers))} speakers in {len(set(items.files))}"
    return f"{len(items)} items of {counts} files written to {options['out']}"


def _items(
    segments: Sequence[Segment], span: Span, silences: frozenset[str]
) -> Iterator[tuple[float, float, str, str, str]]:
    """Yield onset, offset, phone, previous phone and following phone of each item."""
    touches = [after.start_seconds - before.end_seconds <= MOST_GAP_SECONDS for before, after in pairwise(segments)]
    for i, (begins, ends) in enumerate(pairwise(touches), start=1):
        before, phone, after = segments[i - 1 : i + 2]
        silent = {phone.label} if span == "phone" else {before.label, phone.label, after.label}
        if begins and ends and not silent & silences:
            first, last = (phone, phone) if span == "phone" else (before, after)
            yield first.start_seconds, last.end_seconds, phone.label, before.label, after.label
