"""Extreme classification: points with sparse features and a few of many classes, in the repository's text format.

P points, F features, n classes.
"""

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
from jaxtyping import Int
from scipy import sparse

from benchmarks.extreme.lines import Lines, MalformedLineError, parse_lines
from cpc.data.store.atomic import write_atomically

_BLOCK_BYTES = 4 * 2**20  # what a block's arrays take, some ten times of it, fits a processor's last cache


@dataclass(frozen=True)
class ExtremePoints:
    """Points and their classes, as compressed sparse rows with sorted columns.

    Attributes:
        features: `[P, F]` float32.
        labels: `[P, n]` bool: the classes of each point, possibly none.
    """

    features: sparse.csr_array
    labels: sparse.csr_array

    def __post_init__(self) -> None:
        assert self.features.shape[0] == self.labels.shape[0]

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        """The number of features F."""
        return self.features.shape[1]

    @property
    def num_classes(self) -> int:
        """The number of classes n."""
        return self.labels.shape[1]


def read_extreme(path: str | Path) -> ExtremePoints:
    """Read the text format of the extreme classification repository (Bhatia et al. 2016).

    The first line is `P F n`; every further line is one point, `label,label feature:value feature:value`, both counted
    from 0, without labels where it has none. The trap: files of the libsvm family count from 1 and have no header.

    Raises:
        ValueError: naming file and line, where a line is malformed, holds a label or a feature out of the header's
            range or the same one twice, or a value that is not a finite float32; or if there are more or fewer points
            than the header says.
    """
    path = Path(path)
    with path.open("rb") as stream:
        num_points, num_features, num_classes = _read_header(path, stream)
        blocks, num_read = [], 0
        while block := stream.read(_BLOCK_BYTES) + stream.readline():
            lines = _parse(path, block if block.endswith(b"\n") else block + b"\n", num_read)
            num_read += len(lines.num_labels)
            blocks.append(lines)
    if num_read != num_points:
        raise ValueError(f"{path}: its header says {num_points} points, but {num_read} lines follow")
    label_rows, labels, feature_rows, features, values = (
        np.concatenate([np.zeros(0, np.int64), *(block[part] for block in blocks)])
        for part in range(len(Lines._fields))
    )
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    return ExtremePoints(
        features=_rows(path, "feature", values, features, feature_rows, num_features),
        labels=_rows(path, "label", np.ones(len(labels), bool), labels, label_rows, num_classes),
    )


def _read_header(path: Path, stream: BufferedReader) -> tuple[int, int, int]:
    header = stream.readline()
    counts = header.split()
    if len(counts) != 3 or not all(count.isdigit() for count in counts):
        raise ValueError(
            f"{path}, line 1: {header[:80].decode('utf-8', 'replace')!r} must be a header of three counts, "
            "`points features classes`"
        )
    num_points, num_features, num_classes = map(int, counts)
    return num_points, num_features, num_classes


def _parse(path: Path, block: bytes, num_read: int) -> Lines:
    try:
        return parse_lines(block)
    except MalformedLineError as error:
        raise ValueError(f"{path}, line {_line_of(num_read + error.row)}: {error}") from None


def _line_of(row: int | np.integer) -> int:
    return int(row) + 2  # the header is line 1


def _rows(
    path: Path,
    name: str,
    values: np.ndarray,
    columns: Int[np.ndarray, " _"],
    num_in_row: Int[np.ndarray, " P"],
    num_columns: int,
) -> sparse.csr_array:
    def line_of_entry(entry: np.integer) -> int:
        return _line_of(np.searchsorted(offsets, entry, side="right") - 1)

    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_in_row)])
    if len(columns) and columns.max() >= num_columns:
        entry = np.argmax(columns >= num_columns)
        legal = f"run from 0 to {num_columns - 1}" if num_columns else "do not exist"
        raise ValueError(
            f"{path}, line {line_of_entry(entry)}: {name} {columns[entry]}, but by the header {name}s {legal}"
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"{path}, line {line_of_entry(np.argmin(np.isfinite(values)))}: a value beyond the range of float32"
        )
    rows = sparse.csr_array((values, columns, offsets), shape=(len(num_in_row), num_columns))
    rows.sort_indices()
    is_start = np.zeros(len(columns) + 1, bool)
    is_start[offsets] = True
    is_repeated = (rows.indices[1:] == rows.indices[:-1]) & ~is_start[1:-1]
    if is_repeated.any():
        entry = np.argmax(is_repeated)
        raise ValueError(f"{path}, line {line_of_entry(entry)}: {name} {rows.indices[entry]} is given twice")
    return rows


def write_extreme(points: ExtremePoints, path: str | Path) -> None:
    """Write the text format that `read_extreme` reads; values are restored bit for bit."""
    with write_atomically(path) as new, new.open("w", encoding="ascii", newline="\n") as stream:
        stream.write(f"{len(points)} {points.num_features} {points.num_classes}\n")
        labels, features = points.labels, points.features
        for row in range(len(points)):
            row_slice = slice(features.indptr[row], features.indptr[row + 1])
            pairs = zip(features.indices[row_slice].tolist(), features.data[row_slice].tolist(), strict=True)
            classes = ",".join(map(str, labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()))
            stream.write(f"{classes} {' '.join(f'{feature}:{value:.9g}' for feature, value in pairs)}\n")
