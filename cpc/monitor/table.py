"""Records of a run as arrays.

n records, K steps.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Key(NamedTuple):
    """What the records of a table share: the kind's key fields, and the columns."""

    names: tuple[str, ...]
    steps: tuple[int, ...]  # k of each column; (0,) of records without lists
    directions: tuple[str, ...]  # of each column; empty in sequences

    @property
    def step_words(self) -> list[str]:
        """The columns in words: `k = 3`, `down, k = 2`."""
        pairs = zip(self.directions, self.steps, strict=True)
        return [f"{direction}, k = {k}" if direction else f"k = {k}" for direction, k in pairs]


@dataclass
class Table:
    """Records with the same key, in the order of the file."""

    key: Key
    means: dict[str, np.ndarray]  # the training step, and each number's mean over k `[n]`; float32 but steps and times
    by_step: dict[str, np.ndarray]  # the numbers that are drawn for every k `[n, K]`
    last: dict[str, Any]  # fields of the last record, typed as docs/records.md has them

    def extend(self, later: "Table") -> None:
        """Add the records that follow."""
        for columns, more in ((self.means, later.means), (self.by_step, later.by_step)):
            columns.update({name: np.concatenate([values, more[name]]) for name, values in columns.items()})
        self.last = later.last

    def last_mean(self, name: str) -> float:
        """The last record's mean over the steps k."""
        return float(self.means[name][-1])


def mean_over_steps(values: np.ndarray, num_rows: np.ndarray) -> np.ndarray:
    """`[n, K]` to `[n]`: the mean over the steps that had rows; NaN where one that had rows is not finite.

    Where `num_rows` `[n, K]` is NaN, a NaN counts as a step without rows.
    """
    is_counted = ~np.isnan(values) | (np.nan_to_num(num_rows) > 0)
    count = is_counted.sum(1)
    total = np.where(is_counted, values, 0).sum(1, dtype=np.float64)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0).astype(values.dtype)
