"""The rows of one table in columns on disk, and their means over the steps in memory.

n records, K steps.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpc.monitor.kinds import Key

_BLOCK_ROWS = 1 << 16


class Table:
    """Records that share a key: one file per column, appended to, so that any of them is read without the others.

    A hundred runs of 10,000 records with 12 steps are 300 MB of columns, more than a page that stays open for days may
    hold; their means over the steps, which the overview shows, are 40 MB.

    Args:
        folder: of the columns' files; made with the first rows.
        key: what the records share.
        num_rows: rows whose columns are whole: what a kill has written beyond is cut off.
        last: the last record as it stood.
    """

    def __init__(self, folder: Path, key: Key, num_rows: int = 0, last: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.key = key
        self.num_rows = num_rows
        self.last = last or {}
        self._means: dict[str, np.ndarray] = {}
        if num_rows:
            for path in self._paths():
                with path.open("r+b") as file:
                    file.truncate(num_rows * self._row_bytes(path))
            self._means = self._means_of_all()
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
            suffix = "f64" if values.dtype == np.float64 else "f32"
            with (self.folder / f"{name}.{suffix}").open("ab") as file:
                values.tofile(file)
        for name, values in columns.items():
            mean = mean_over_steps(values.reshape(len(values), -1), num_rows)
            self._means[name] = np.concatenate([self._means[name], mean]) if name in self._means else mean
        self.num_rows += len(columns["step"])
        self.last = last

    def mean(self, name: str) -> np.ndarray:
        """A column's mean over the steps, `[n]`: of the step itself, the step."""
        return self._means[name]

    def column(self, name: str) -> np.ndarray:
        """A column `[n, K]`, read from disk.

        Raises:
            FileNotFoundError: if the run's folder was deleted.
        """
        return self._read(self._paths(name)[0])

    def _paths(self, name: str = "*") -> list[Path]:
        paths = sorted(self.folder.glob(f"{name}.f*"))
        if not paths:
            raise FileNotFoundError(f"{self.folder} has lost its columns")
        return paths

    def _means_of_all(self) -> dict[str, np.ndarray]:
        """Block by block: all columns of a million records at once would not fit."""
        means: dict[str, list[np.ndarray]] = {}
        for start in range(0, self.num_rows, _BLOCK_ROWS):
            block = {path.stem: self._read(path, start, _BLOCK_ROWS) for path in self._paths()}
            for name, values in block.items():
                means.setdefault(name, []).append(mean_over_steps(values, block.get("num_rows")))
        return {name: np.concatenate(blocks) for name, blocks in means.items()}

    def _read(self, path: Path, start: int = 0, num_rows: int | None = None) -> np.ndarray:
        count = min(self.num_rows - start, self.num_rows if num_rows is None else num_rows)
        dtype = np.float64 if path.suffix == ".f64" else np.float32
        row_bytes = self._row_bytes(path)
        width = row_bytes // np.dtype(dtype).itemsize
        return np.fromfile(path, dtype, count * width, offset=start * row_bytes).reshape(-1, width)

    def _row_bytes(self, path: Path) -> int:
        return (8 if path.suffix == ".f64" else 4) * (1 if path.stem == "step" else len(self.key.steps))


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
