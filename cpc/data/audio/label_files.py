"""Labels that lie in a table beside the files: joined to them by path, name or stem."""

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from cpc.data.audio.file_names import composed
from cpc.data.audio.headers import COUNT_COLUMNS
from cpc.data.store.folders import name_a_few
from cpc.data.store.tables import read_table

# How a row's key may name a file; the way that finds most is taken.
WAYS: tuple[Callable[[str], str], ...] = (
    lambda path: path,
    lambda path: PurePosixPath(path).name,
    lambda path: PurePosixPath(path).stem,
)


def labels_of(paths: list[str], table: str | Path, key: str) -> dict[str, list[str]]:
    """The other columns of a CSV (of a TSV, if it is called so), a value for each path; empty where no row names it.

    Args:
        paths: relative to the folder that is indexed.
        table: UTF-8, with a header.
        key: the column that names the files: by the same relative paths, by names, or by names without their suffix.

    Raises:
        ValueError: naming the table, if it cannot be read (as `read_table`), has no such column, a column that the
            index itself fills, or two rows for a file; if no row names a file, one could mean several, or a file has no
            split while others have.
    """
    table = Path(table)
    columns = _columns(table, key)
    keys = list(map(composed, columns.pop(key)))
    way = max(WAYS, key=lambda way: len({way(composed(path)) for path in paths} & set(keys)))
    names = [way(composed(path)) for path in paths]
    row_of = {name: row for row, name in enumerate(keys)}
    found = [row_of.get(name) for name in names]
    if not any(row is not None for row in found):
        raise ValueError(
            f"{table} names none of the {len(paths)} files in its column {key!r}: it has {keys[0]!r}, files are "
            f"called {paths[0]!r}: choose another `label_key` of {', '.join(columns) or 'no others'}"
        )
    doubled = [name for name, count in Counter(keys).items() if count > 1 and name in set(names)]
    if doubled:
        raise ValueError(f"{table} has more than one row for {len(doubled)} files:\n{name_a_few(doubled)}")
    shared = [name for name, count in Counter(names).items() if count > 1 and name in row_of]
    if shared:
        raise ValueError(
            f"{table} names files that are there in several folders, by their names alone:\n{name_a_few(shared)}\n"
            "write their paths into the table"
        )
    labels = {name: ["" if row is None else values[row] for row in found] for name, values in columns.items()}
    split_less = [path for path, split in zip(paths, labels.get("split", paths), strict=True) if not split]
    if split_less:
        raise ValueError(f"{table} gives {len(split_less)} of {len(paths)} files no split:\n{name_a_few(split_less)}")
    num_unnamed, num_unused = found.count(None), len(set(keys) - set(names))
    if num_unnamed or num_unused:
        warnings.warn(
            f"{table}: {num_unnamed} of {len(paths)} files have no row and stay unlabelled; "
            f"{num_unused} of {len(keys)} rows name no file",
            stacklevel=3,
        )
    return labels


def _columns(table: Path, key: str) -> dict[str, list[str]]:
    header, rows = read_table(table)
    if key not in header:
        raise ValueError(f"{table} has no column {key!r}; `label_key` is one of {', '.join(header)}")
    taken = [name for name in header if name != key and name in ("path", *COUNT_COLUMNS)]
    if taken:
        raise ValueError(f"{table} has the columns {taken}, which the index fills itself: rename them")
    cells = [row for _, row in rows]
    if not cells:
        raise ValueError(f"{table} has a header and no rows")
    return {name: [row[at] for row in cells] for at, name in enumerate(header)}
