"""Records of a run as arrays; n is the number of records, K the number of steps."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


def replace_surrogates(text: object) -> str:
    """Return text with a question mark for each surrogate, as names and records that are not UTF-8 contain.

    >>> replace_surrogates("run" + chr(0xDCFF)), replace_surrogates(3)
    ('run?', '3')
    """
    return str(text).encode("utf-8", "replace").decode("utf-8")


class Key(NamedTuple):
    """The values that all records of a table share: the key fields of the record type, and the columns."""

    names: tuple[str, ...]  # values of the key fields, such as split and strategy
    steps: tuple[int, ...]  # k of each column; (0,) for records without lists
    directions: tuple[str, ...]  # direction of each column; empty strings in sequences

    @property
    def step_labels(self) -> list[str]:
        """The labels of the columns: `k = 3`, `down, k = 2`."""
        pairs = zip(self.directions, self.steps, strict=True)
        return [f"{direction}, k = {k}" if direction else f"k = {k}" for direction, k in pairs]


@dataclass
class Table:
    """Records with the same key, in the order of the file."""

    key: Key
    means: dict[str, np.ndarray]  # `[n]`: training step, and means over k; float32, but steps and times float64
    by_step: dict[str, np.ndarray]  # `[n, K]`: fields that are plotted for every k
    last: dict[str, Any]  # all fields of the last record, with the types of docs/records.md

    def extend(self, later: "Table") -> None:
        """Append the records of a later table."""
        for columns, more in ((self.means, later.means), (self.by_step, later.by_step)):
            columns.update({name: np.concatenate([values, more[name]]) for name, values in columns.items()})
        self.last = later.last

    def last_mean(self, name: str) -> float:
        """Return the last record's mean over the steps k."""
        return float(self.means[name][-1])


def mean_over_steps(values: np.ndarray, num_rows: np.ndarray) -> np.ndarray:
    """Return the mean `[n]` of values `[n, K]` over the steps that had rows; NaN if one of these values is not finite.

    If `num_rows` `[n, K]` is NaN, a value of NaN counts as a step without rows.
    """
    is_counted = ~np.isnan(values) | (np.nan_to_num(num_rows) > 0)
    count = is_counted.sum(1)
    total = np.where(is_counted, values, 0).sum(1, dtype=np.float64)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0).astype(values.dtype)
