"""One line on stderr about what a source was understood to hold: a wrong guess shows before it trains a model."""

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from cpc.data.store.splits import SPLITS

NUM_NAMED = 4
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # of torchrun, Lightning and Slurm


def say_contents(source: str | Path, unit: str, splits: Iterable[str], **groups: Collection[str]) -> None:
    """Say how many units of each split a source has, and its classes; once in a process, on the first rank only.

    Args:
        source: as the user names it.
        unit: what is counted, in the plural.
        splits: of every unit; "" where it has none.
        groups: the names of its classes or speakers, by what they are in the plural.
    """
    counts = Counter(splits)
    order = [*SPLITS, *sorted(counts.keys() - set(SPLITS))]
    split_counts = ", ".join(f"{split or '(none)'} {counts[split]}" for split in order if counts[split])
    said = [f"{counts.total()} {unit}", "no splits" if set(counts) == {""} else f"splits {split_counts}"]
    for plural, names in groups.items():
        more = ", ..." if len(names) > NUM_NAMED else ""
        named = f" ({', '.join(sorted(names)[:NUM_NAMED])}{more})" if names else ""
        said.append(f"{len(names) or 'no'} {plural}{named}")
    say(f"data: {source}: {', '.join(said)}")


@cache
def say(line: str) -> None:
    """Print a line on stderr, once in a process, on the first rank only."""
    if all(os.environ.get(rank, "0") == "0" for rank in _RANKS):
        print(line, file=sys.stderr, flush=True)
