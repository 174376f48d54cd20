"""One line on stderr about the content of a source, so that the user notices a wrong guess before training."""

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from cpc.data.store.splits import SPLITS

NUM_NAMED = 4
_IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)
# For each variable of torchrun, Lightning and Slurm that holds a rank, the variable of the number of processes.
_SIZES = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}


def say_contents(source: str | Path, unit: str, splits: Iterable[str], **groups: Collection[str]) -> None:
    """Print the number of units in each split of a source, and its groups by their plural noun, as `say` does."""
    counts = Counter(splits)
    order = [*SPLITS, *sorted(counts.keys() - set(SPLITS))]
    split_counts = ", ".join(f"{split or '(none)'} {counts[split]}" for split in order if counts[split])
    parts = [f"{counts.total()} {unit}", "no splits" if set(counts) == {""} else f"splits {split_counts}"]
    for plural, names in groups.items():
        more = ", ..." if len(names) > NUM_NAMED else ""
        named = f" ({', '.join(sorted(names)[:NUM_NAMED])}{more})" if names else ""
        parts.append(f"{len(names) or 'no'} {plural}{named}")
    say(f"data: {source}: {', '.join(parts)}")


def say(line: str) -> None:
    """Print a line on stderr, only once per process, on the first rank, and not within `quiet`."""
    if not is_quiet():
        _say_once(line)


@contextmanager
def quiet(is_wanted: bool = True) -> Iterator[None]:
    """Print no lines about data while the block runs; `is_wanted=False`: print them."""
    token = _IS_QUIET.set(is_wanted)
    try:
        yield
    finally:
        _IS_QUIET.reset(token)


def is_quiet() -> bool:
    """Return whether a block of `quiet` runs."""
    return _IS_QUIET.get()


@cache
def _say_once(line: str) -> None:
    if not later_ranks(is_launched=True):
        print(line, file=sys.stderr, flush=True)


def later_ranks(*, is_launched: bool) -> list[str]:
    """Return the variables, such as `RANK=1`, of a later rank of a launcher, or those that it left behind."""
    return [
        f"{rank}={os.environ[rank]}"
        for rank, size in _SIZES.items()
        if os.environ.get(rank, "0") != "0" and (os.environ.get(size, "1") != "1") == is_launched
    ]
