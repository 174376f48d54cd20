"""Labels in a table, joined to the files by path, name or stem."""

import warnings
from collections import Counter
from pathlib import Path

from cpc.data.audio.headers import COUNT_COLUMNS
from cpc.data.store.folders import composed, names_in_table, refuse
from cpc.data.store.tables import read_table


def join_labels(paths: list[str], table: str | Path, key: str) -> dict[str, list[str]]:
    """Return the columns of a CSV or TSV, with a value for each path; the value is empty if no row names the path.

    Args:
        paths: paths relative to the folder that is indexed.
        table: a table in UTF-8 with a header.
        key: the column that names the files, by these paths, by file names, or by stems; it is not returned.

    Raises:
        ValueError: if the table cannot be read (see `read_table`), lacks the column `key`, has a column that the index
            fills, or has two rows for a file; if no row names a file, a row names several files, or only some files
            have a split. The message names the table.
    """
    table = Path(table)
    columns = _columns(table, key)
    keys = list(map(composed, columns.pop(key)))
    names = names_in_table(paths, keys)
    row_of = {name: row for row, name in enumerate(keys)}
    rows = [row_of.get(name) for name in names]
    if not any(row is not None for row in rows):
        raise ValueError(
            f"no cell in column {key!r} of {table} names one of the {len(paths)} files. A cell is {keys[0]!r}, a file "
            f"is {paths[0]!r}. Choose another `label_key`: {', '.join(columns) or 'there is no other column'}"
        )
    repeated = [name for name, count in Counter(keys).items() if count > 1 and name in set(names)]
    refuse(f"files have more than one row in {table}", repeated)
    shared = [name for name, count in Counter(names).items() if count > 1 and name in row_of]
    refuse(f"names in {table} occur in several folders", shared, "write paths into the column of `label_key`")
    labels = {name: ["" if row is None else values[row] for row in rows] for name, values in columns.items()}
    unsplit = [path for path, split in zip(paths, labels.get("split", paths), strict=True) if not split]
    refuse(f"of {len(paths)} files have no split in {table}", unsplit)
    num_unnamed, num_unused = rows.count(None), len(set(keys) - set(names))
    if num_unnamed or num_unused:
        warnings.warn(
            f"{table}: {num_unnamed} of {len(paths)} files have no row and stay unlabelled; {num_unused} of "
            f"{len(keys)} rows do not name a file",
            stacklevel=3,
        )
    return labels


def _columns(table: Path, key: str) -> dict[str, list[str]]:
    header, rows = read_table(table)
    if key not in header:
        raise ValueError(f"{table} has no column {key!r}; `label_key` is one of {', '.join(header)}")
    reserved = [name for name in header if name != key and name in ("path", *COUNT_COLUMNS)]
    if reserved:
        raise ValueError(f"{table} has the columns {reserved}, which the index fills itself: rename them")
    cells = [row for _, row in rows]
    if not cells:
        raise ValueError(f"{table} has a header and no rows")
    return {name: [row[i] for row in cells] for i, name in enumerate(header)}
