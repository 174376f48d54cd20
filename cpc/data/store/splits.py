"""Splits that names say, and splits by chance that stay as they are: a hash of each file, or of its speaker, decides.

So a split by chance depends neither on the order of files nor on what other files there are, and files that are added
later move none of those that were there. Only a corpus of so few that a split would be empty is looked at as a whole.
"""

import hashlib
import re
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
    """Return the split that a whole name says, as `Validation`; None if it says none."""
    return SPLIT_OF.get(name.lower())


def split_named(path: str) -> str | None:
    """Return the split that a word of a file's name, or else of a folder's, says; the innermost part decides.

    Raises:
        ValueError: if one part names several splits.
    """
    for part in reversed(PurePath(path).parts):
        if found := _splits_in(part):
            if len(found) > 1:
                raise ValueError(f"{path} names the splits {', '.join(sorted(found))}: rename it, so that it names one")
            return found.pop()
    return None


def splits_of_folders(folders: Iterable[str]) -> dict[str, str]:
    """Return the split of each folder, if every folder says one; otherwise nothing.

    All of them must be called as a split (`Validation`), or have a word that says one (`train2017`, `dev-clean`). Words
    must say different splits: a class may be called `train station`.
    """
    names = sorted(set(folders))
    called = {name: split for name in names if (split := split_called(name))}
    if len(called) == len(names):
        return called
    worded = {name: found.pop() for name in names if len(found := _splits_in(name)) == 1}
    return worded if len(worded) == len(names) and len(set(worded.values())) > 1 else {}


def _splits_in(name: str) -> set[str]:
    return {SPLIT_OF[word] for word in re.split(r"[\W\d_]+", name.lower()) if word in SPLIT_OF}


def draw_splits(units: Sequence[str], *, valid_share: float, test_share: float, seed: int = 0) -> list[str]:
    """The split of every unit: `train`, `valid` or `test`; equal units share one.

    Args:
        units: what is kept together, file by file: the file's own path, or its speaker.
        valid_share: expected share of the units in `valid`; with a share above 0 at least one is there.
        test_share: likewise, in `test`.
        seed: of the draw.

    Raises:
        ValueError: if the shares leave nothing for `train`, or there are fewer units than splits.
    """
    if not (valid_share >= 0 and test_share >= 0 and valid_share + test_share < 1):
        raise ValueError(
            f"valid_share={valid_share} and test_share={test_share}: shares are not negative, and together less than "
            "1, since the rest is for training"
        )
    held_out = {name: share for name, share in (("test", test_share), ("valid", valid_share)) if share}
    places = {unit: _place(unit, seed) for unit in units}
    if len(places) <= len(held_out):
        raise ValueError(
            f"{', '.join(sorted(places))}: these {len(places)} are too few for one each in "
            f"{', '.join(['train', *reversed(held_out)])}; add some, or set `valid_share` or `test_share` to 0"
        )
    ordered = sorted(places, key=places.__getitem__)
    split_of = dict.fromkeys(ordered, "train")
    first, edge = 0, 0.0
    for num_to_come, (name, share) in zip(range(len(held_out), 0, -1), held_out.items(), strict=True):
        edge += share
        num_below = sum(place < edge for place in places.values())
        # At least one here, and at least one for every split to come, `train` among them.
        last = min(max(num_below, first + 1), len(ordered) - num_to_come)
        split_of |= dict.fromkeys(ordered[first:last], name)
        first = last
    return [split_of[unit] for unit in units]


def _place(unit: str, seed: int) -> float:
    """A point in [0, 1) that is the unit's own."""
    digest = hashlib.sha256(f"{seed} {unit}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
