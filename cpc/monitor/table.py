"""The rows of one table in columns on disk, of which memory holds what is drawn.

n records, K steps.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpc.monitor.kinds import Key


class Table:
    """Records that share a key: one file per column, appended to, so that any of them is read without the others.

    A hundred runs of 10,000 records with 12 steps are 300 MB of columns, more than a page that stays open for days may
    hold. Their means over the steps, which the overview draws, have files of their own and stay in memory once asked
    for: some 30 MB.

    Args:
        folder: of the columns' files; made with the first rows.
        key: what the records share.
        num_rows: rows whose columns are whole: what a kill has written beyond is cut off.
        last: what `kinds.known` takes from the last record.

    Raises:
        OSError: if there are rows, and their files are missing or too short.
    """

    def __init__(self, folder: Path, key: Key, num_rows: int = 0, last: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.key = key
        self.num_rows = num_rows
        self.last = last or {}
        self._means: dict[str, np.ndarray] = {}
        if num_rows:
            for path in folder.iterdir():
                width = 1 if path.stem.endswith(".mean") else len(key.steps)
                num_bytes = num_rows * width * np.dtype(path.suffix[1:]).itemsize
                size = path.stat().st_size
                if size < num_bytes:
                    raise OSError(f"{path} is shorter than its {num_rows} rows")
                if size > num_bytes:
                    os.truncate(path, num_bytes)
            self._means["step"] = self._read("step.mean", 1)[:, 0]
        else:
            shutil.rmtree(folder, ignore_errors=True)  # left behind by a kill before the first index

    def append(self, columns: Mapping[str, np.ndarray], last: dict[str, Any]) -> None:
        """Add rows: `step` is `[n]`, every other column `[n, K]`.

        Raises:
            OSError: if they cannot be written.
        """
        self.folder.mkdir(exist_ok=True)  # not its parents: a run that was deleted must not come back
        num_rows = columns.get("num_rows")
        for name, values in columns.items():
            mean = mean_over_steps(values.reshape(len(values), -1), num_rows)
            self._write(f"{name}.mean", mean)
            if len(self.key.steps) > 1 and name != "step":
                self._write(name, values)
            if name in self._means:
                self._means[name] = np.concatenate([self._means[name], mean])
        self._means.setdefault("step", columns["step"])
        self.num_rows += len(columns["step"])
        self.last = last

    def mean(self, name: str) -> np.ndarray:
        """A column's mean over the steps, `[n]`: of the step itself, the step.

        NaN throughout if the run's folder was deleted before anybody asked.
        """
        if name not in self._means:
            try:
                self._means[name] = self._read(f"{name}.mean", 1)[:, 0]
            except FileNotFoundError:
                return np.full(self.num_rows, np.nan)
        return self._means[name]

    def last_mean(self, name: str) -> float:
        """A column's last mean over the steps."""
        return float(self.mean(name)[-1])

    def column(self, name: str) -> np.ndarray:
        """A column `[n, K]`, read from disk.

        Raises:
            FileNotFoundError: if the run's folder was deleted.
        """
        width = len(self.key.steps)
        return self._read(name if width > 1 else f"{name}.mean", width)

    def _write(self, name: str, values: np.ndarray) -> None:
        with (self.folder / f"{name}.{values.dtype.str[1:]}").open("ab") as file:
            values.tofile(file)

    def _read(self, name: str, width: int) -> np.ndarray:
        path = self.folder / f"{name}.f8"
        path = path if path.exists() else path.with_suffix(".f4")
        values: np.ndarray = np.fromfile(path, path.suffix[1:], self.num_rows * width)
        if len(values) < self.num_rows * width:
            raise OSError(f"{path} is shorter than its {self.num_rows} rows")
        return values.reshape(-1, width)


def mean_over_steps(values: np.ndarray, num_rows: np.ndarray | None) -> np.ndarray:
    """`[n, K]` to `[n]`: the mean over the steps that had rows; NaN where one that had rows is not finite.

    Args:
        values: a column.
        num_rows: rows per step `[n, K]`; where that is unknown, a NaN counts as a step without rows.
    """
    if values.shape[1] == 1:
        return values[:, 0]
    is_known = ~np.isnan(values)
    had_rows = is_known if num_rows is None else is_known | (np.nan_to_num(num_rows) > 0)
    count = had_rows.sum(1)
    total = np.where(had_rows, values, 0).sum(1, dtype=np.float64)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0).astype(values.dtype)
