"""Recordings in parquet files, read by pyarrow."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cpc.config.extras import install_hint
from cpc.data.signals.tables import NUM_COUNTED, Rows, SignalTable
from cpc.data.store.untrusted import reading

_BLOCK_ROWS = 1 << 16
_NUMBERS = ("int", "uint", "float", "halffloat", "double", "decimal")  # names of types


class ParquetTable(SignalTable):
    """A parquet file; a numbered index that pandas stores beside the columns is left out."""

    def texts(self, name: str) -> list[str]:
        """Return the cells of one column."""
        return [
            "" if value is None else str(value)
            for batch in self._batches([name])
            for value in batch.column(0).to_pylist()
        ]

    def _open(self) -> tuple[list[str], int]:
        with reading(self.path, "cannot be read as a parquet file"), _parquet().ParquetFile(self.path) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            if len(set(names)) < len(names):
                raise ValueError(f"{self.path} names a column twice: {', '.join(names)}")
            self._types = {field.name: str(field.type) for field in file.schema_arrow}
            return names, int(file.metadata.num_rows)

    def _head(self, names: Sequence[str]) -> np.ndarray:
        head = np.full((min(NUM_COUNTED, self.num_samples), len(names)), np.nan)
        numeric = [place for place, name in enumerate(names) if self._types[name].startswith(_NUMBERS)]
        batch = next(self._batches([names[place] for place in numeric], NUM_COUNTED), None) if numeric else None
        if batch is not None:
            head[: len(batch), numeric] = _numbers(batch, len(numeric))
        return head

    def _rows(self, numbers: Sequence[str], time: str | None) -> Iterator[Rows]:
        for name in numbers:
            if not self._types[name].startswith(_NUMBERS):
                raise ValueError(
                    f"{self.path}, line 1: the column {name!r} holds {self._types[name]}, no numbers; choose other "
                    "columns by `channels`, or name a column of labels `label`"
                )
        is_dates = time is not None and self._types[time].startswith(("timestamp", "date"))
        for batch in self._batches([*numbers, *([] if time is None else [time])]):
            times = None
            if time is not None:
                times = batch.column(time).to_numpy(zero_copy_only=False)
                with reading(self.path, f"the column {time!r} holds no times"):
                    times = times.astype("datetime64[ns]").astype(np.int64) * 1e-9 if is_dates else times.astype(float)
            yield Rows(_numbers(batch, len(numbers)), times, is_dates)

    def _batches(self, names: Sequence[str], num_rows: int = _BLOCK_ROWS) -> Iterator[Any]:
        with reading(self.path, "cannot be read as a parquet file"), _parquet().ParquetFile(self.path) as file:
            for batch in file.iter_batches(num_rows, columns=list(names), use_threads=False):
                if len(batch):
                    yield batch


def _numbers(batch: Any, num_columns: int) -> np.ndarray:
    """Return the first columns of a batch as float64, NaN where empty."""
    values = np.empty((len(batch), num_columns))
    for place in range(num_columns):
        values[:, place] = np.asarray(batch.column(place).to_numpy(zero_copy_only=False), np.float64)
    return values


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"parquet files need the package `pyarrow`: {install_hint('signals')}") from error
    return pyarrow.parquet
