"""One line on stderr about what a source was understood to hold: a wrong guess shows before it trains a model."""

import os
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from cpc.data.store.splits import SPLITS

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # of torchrun, Lightning and Slurm


def say_contents(source: str | Path, unit: str, splits: Iterable[str], **num_groups: int) -> None:
    """Say how many units of each split a source has, and how many classes; once in a process, on the first rank only.

    Args:
        source: as the user names it.
        unit: what is counted, in the plural.
        splits: of every unit; "" where it has none.
        num_groups: classes or speakers by their name in the plural.
    """
    counts = Counter(splits)
    order = [*SPLITS, *sorted(counts.keys() - set(SPLITS))]
    split_counts = ", ".join(f"{split or '(none)'} {counts[split]}" for split in order if counts[split])
    said = [f"{counts.total()} {unit}", "no splits" if set(counts) == {""} else f"splits {split_counts}"]
    said += [f"{number or 'no'} {name}" for name, number in num_groups.items()]
    say(f"data: {source}: {', '.join(said)}")


@cache
def say(line: str) -> None:
    """Print a line on stderr, once in a process, on the first rank only."""
    if all(os.environ.get(rank, "0") == "0" for rank in _RANKS):
        print(line, file=sys.stderr, flush=True)
