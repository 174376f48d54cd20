"""Splits, named by files and folders or drawn at random, and lines that tell a user what a source holds.

Adding files does not move a file to another drawn split, unless a split would have fewer than two files.
"""

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path, PurePath

import numpy as np
from jaxtyping import Int64

SPLITS = ("train", "valid", "test", "unlabelled")
_WORDS = {
    "train": "train training",
    "valid": "valid validation val dev devel development",
    "test": "test testing eval evaluation",
    "unlabelled": "unlabelled unlabeled unsupervised unsup",
}
SPLIT_OF = {word: split for split, words in _WORDS.items() for word in words.split()}


def split_called(name: str) -> str | None:
    """Return the split that a whole name stands for, such as `Validation`; None if the name is not a split."""
    return SPLIT_OF.get(name.lower())


def split_named(path: str) -> str | None:
    """Return the split that a word in a path stands for. The search goes from the file name to the outermost folder."""
    for part in reversed(PurePath(path).parts):
        if found := _splits_in(part):
            if len(found) > 1:
                raise ValueError(f"{path} names the splits {', '.join(sorted(found))}: rename it to name one")
            return found.pop()
    return None


def rows_of_split(splits: Sequence[str], split: str | None, noun: str) -> Int64[np.ndarray, " n"]:
    """Return the rows of a split (None: all); a ValueError, which names all splits, if there are none."""
    rows = np.flatnonzero([split in (None, each) for each in splits])
    if not len(rows) and split is not None:
        raise ValueError(f"no {noun} is of split {split!r}; the splits are {', '.join(sorted(set(splits)))}")
    return rows


def splits_of_folders(folders: Iterable[str]) -> dict[str, str]:
    """Return the split of each folder if all names are splits, or all contain one and there are several; else {}."""
    names = sorted(set(folders))
    called = {name: split for name in names if (split := split_called(name))}
    if len(called) == len(names):
        return called
    worded = {name: found.pop() for name in names if len(found := _splits_in(name)) == 1}
    return worded if len(worded) == len(names) and len(set(worded.values())) > 1 else {}


def _splits_in(name: str) -> set[str]:
    return {SPLIT_OF[word] for word in re.split(r"[\W\d_]+", name.lower()) if word in SPLIT_OF}


def draw_splits(
    units: Sequence[str], *, valid_share: float, test_share: float, seed: int = 0, least_files: int = 2
) -> list[str]:
    """Draw the split of every unit: `train`, `valid` or `test`; equal units are in the same split.

    A unit is a path or a speaker. A held-out split with a share above 0 has at least one unit; it has `least_files`
    files or more (one suffices if a file has many sequences), unless fewer than half of the units would be left for
    `train`.
    """
    if not (valid_share >= 0 and test_share >= 0 and valid_share + test_share < 1):
        shares = f"valid_share={valid_share} and test_share={test_share}"
        raise ValueError(f"{shares} must not be negative, and their sum must be below 1")
    held_out = {name: share for name, share in (("test", test_share), ("valid", valid_share)) if share}
    hashes = {unit: _uniform_hash(unit, seed) for unit in units}
    if len(hashes) <= len(held_out):
        need = f"{', '.join(['train', *reversed(held_out)])} need at least one each"
        raise ValueError(f"{', '.join(sorted(hashes))}: these {len(hashes)} are too few, since {need}")
    ordered = sorted(hashes, key=hashes.__getitem__)
    split_of = dict.fromkeys(ordered, "train")
    has_few = len(ordered) < 4 * len(held_out)
    fewest = 1 if has_few or min(Counter(units).values()) >= least_files else 2  # units of a split
    first, edge = 0, 0.0
    for num_remaining, (name, share) in zip(range(len(held_out), 0, -1), held_out.items(), strict=True):
        edge += share
        num_below = sum(value < edge for value in hashes.values())
        # This split leaves `fewest` units for every further split, `train` included, and gets at least one unit.
        last = max(min(max(num_below, first + fewest), len(ordered) - fewest * num_remaining), first + 1)
        split_of |= dict.fromkeys(ordered[first:last], name)
        first = last
    return [split_of[unit] for unit in units]


def _uniform_hash(unit: str, seed: int) -> float:
    """Return a hash of the unit, uniform in [0, 1)."""
    digest = hashlib.sha256(f"{seed} {unit}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


NUM_NAMED = 4
_IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)
# For each variable of torchrun, Lightning and Slurm that holds a rank, the variable of the number of processes.
_SIZES = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}


def describe_splits(
    title: str, splits: Sequence[str], published: Mapping[str, int] | None = None, **columns: np.ndarray
) -> str:
    """Return a table of the rows of each split and the sums of columns; `published` numbers of rows if they differ."""
    published = published or {}
    lines = [title, "".join(f"{name:12}" for name in ("split", "rows", *columns))]
    for split in dict.fromkeys([*published, *splits]):
        is_here = np.array(splits) == split
        sums = (f"{column[is_here].sum():<12.6g}" for column in columns.values())
        differs = published and published.get(split) != is_here.sum()
        note = f"(published: {published.get(split, 0)})" if differs else ""
        lines.append(f"{split:12}{is_here.sum():<12}{''.join(sums)}{note}")
    return "\n".join(lines)


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
