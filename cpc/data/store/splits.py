"""Splits named by files and folders, and random splits by a hash of each file or speaker.

Adding files does not move a file to another split, unless a split would have fewer than two files.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

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
                raise ValueError(
                    f"{path} names the splits {', '.join(sorted(found))}: rename it, so that it names one split"
                )
            return found.pop()
    return None


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
        raise ValueError(
            f"valid_share={valid_share} and test_share={test_share} must not be negative, and their sum must be below 1"
        )
    held_out = {name: share for name, share in (("test", test_share), ("valid", valid_share)) if share}
    hashes = {unit: _uniform_hash(unit, seed) for unit in units}
    if len(hashes) <= len(held_out):
        raise ValueError(
            f"{', '.join(sorted(hashes))}: these {len(hashes)} are too few, since "
            f"{', '.join(['train', *reversed(held_out)])} need at least one each; add some, or set `valid_share` or "
            "`test_share` to 0"
        )
    ordered = sorted(hashes, key=hashes.__getitem__)
    split_of = dict.fromkeys(ordered, "train")
    has_few = len(ordered) < 4 * len(held_out)
    fewest = 1 if has_few or min(Counter(units).values()) >= least_files else 2  # units of a split
    first, edge = 0, 0.0
    for num_remaining, (name, share) in zip(range(len(held_out), 0, -1), held_out.items(), strict=True):
        edge += share
        num_below = sum(value < edge for value in hashes.values())
        # This split gets at least one unit, and leaves `fewest` units for every further split, `train` included. If
        # these are too many, it gets one unit.
        last = max(min(max(num_below, first + fewest), len(ordered) - fewest * num_remaining), first + 1)
        split_of |= dict.fromkeys(ordered[first:last], name)
        first = last
    return [split_of[unit] for unit in units]


def _uniform_hash(unit: str, seed: int) -> float:
    """Return a hash of the unit, uniform in [0, 1)."""
    digest = hashlib.sha256(f"{seed} {unit}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
