"""Items of ABX tests, made from the alignments of a corpus."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from cpc.config.argument_rules import OutFile, checked
from cpc.data.audio.alignments import read_matching_alignments
from cpc.data.audio.file_names import shortest_names
from cpc.data.audio.item_files import Items, items_of_rows
from cpc.data.audio.manifest import read_manifest
from cpc.data.recordings.labels import Segment

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

    Returns:
        The items written.

    Raises:
        ValueError: if the manifest or the alignments cannot be read or do not fit each other, a file has no speaker, no
            phone has two neighbours, or a name holds a blank.
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
        raise ValueError(
            f"no phone of the {len(rows)} files has a neighbour on both sides, so there is no item: check the "
            "alignments and `silences`"
        )
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
