"""Manifests: one CSV row per audio file, with its split, its speaker and any labels.

A manifest is UTF-8 with a header. `path` is required (relative to the CSV's folder, or absolute); `split`, `speaker`,
`num_samples`, `sample_rate_hz` and `num_channels` are known; every other column holds labels.
"""

import csv
import io
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpc.data.audio.headers import COUNT_COLUMNS, COUNT_LIMITS
from cpc.data.store.atomic import write_atomically
from cpc.data.store.folders import name_a_few, refuse_doubles

MANIFEST_NAME = "manifest.csv"
KNOWN_COLUMNS = ("path", "split", "speaker", *COUNT_COLUMNS)


@dataclass(frozen=True)
class Manifest:
    """The rows of a corpus, column by column.

    Attributes:
        root: folder that relative paths start from (that of the CSV).
        columns: every column as strings, all of one length; `path` is among them.
    """

    root: Path
    columns: dict[str, list[str]]

    def __post_init__(self) -> None:
        if "path" not in self.columns:
            raise ValueError(f"a manifest needs a column 'path'; found the columns {', '.join(self.columns)}")
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a manifest's columns have one length; found {lengths}")
        repeated = [path for path, count in Counter(self.paths).items() if count > 1]
        if repeated:
            raise ValueError(f"{len(repeated)} paths occur more than once in the manifest:\n{name_a_few(repeated)}")
        for name in COUNT_COLUMNS:
            if name in self.columns:
                self._counts(name)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def paths(self) -> list[str]:
        """The paths as the manifest has them: the keys of labels and alignments."""
        return self.columns["path"]

    @property
    def files(self) -> list[Path]:
        """The absolute path of every row's file."""
        root = self.root.absolute()
        return [root / path for path in self.paths]

    @property
    def num_samples(self) -> np.ndarray:
        """`[num_rows]` int64: samples per channel at the file's own rate."""
        return self._counts("num_samples")

    @property
    def sample_rate_hz(self) -> np.ndarray:
        """`[num_rows]` int64: the file's own rate."""
        return self._counts("sample_rate_hz")

    @property
    def label_columns(self) -> list[str]:
        """The columns that are labels: all but path, split, speaker and the counts."""
        return [name for name in self.columns if name not in KNOWN_COLUMNS]

    def column(self, name: str) -> list[str]:
        """The values of one column.

        Raises:
            ValueError: if there is no such column; the message lists those there are.
        """
        if name not in self.columns:
            raise ValueError(
                f"the manifest in {self.root} has no column {name!r}, only {', '.join(self.columns)}: name one of "
                "these, or add it (`cpc data index` with --speaker_level, --split_level, --valid_share or named groups "
                "in --speaker_pattern)"
            )
        return self.columns[name]

    def codes(self, name: str) -> tuple[np.ndarray, list[str]]:
        """A column as class numbers.

        Returns:
            `[num_rows]` int64, the position in the second result, or -1 where the cell is empty; the sorted values.
        """
        values = self.column(name)
        classes = sorted(set(values) - {""})
        code_of = {value: code for code, value in enumerate(classes)} | {"": -1}
        return np.array([code_of[value] for value in values], dtype=np.int64), classes

    def take(self, rows: Sequence[int] | np.ndarray) -> "Manifest":
        """The manifest of these rows alone, in this order."""
        return Manifest(self.root, {name: [values[row] for row in rows] for name, values in self.columns.items()})

    def rows(self, split: str | None) -> np.ndarray:
        """`[n]` int64: which rows are of one split; None: all.

        Raises:
            ValueError: if there is no split column, or no row of this split; the message lists the splits there are.
        """
        if split is None:
            return np.arange(len(self))
        splits = self.column("split")
        rows = np.flatnonzero(np.array(splits) == split)
        if not len(rows):
            raise ValueError(
                f"the manifest in {self.root} has no row of split {split!r}, only of {', '.join(sorted(set(splits)))}: "
                "name one of these, or set the split column of the rows meant"
            )
        return rows

    def select(self, split: str) -> "Manifest":
        """The manifest of one split alone; raises as `rows` does."""
        return self.take(self.rows(split))

    def write(self, path: str | Path) -> None:
        """Writes the CSV, atomically; paths become relative to its folder, or absolute where they lie outside it."""
        path = Path(path)
        folder = path.absolute().parent
        with write_atomically(path) as new:
            new.write_bytes(self.csv([_seen_from(folder, file) for file in self.files]))

    def csv(self, paths: Sequence[str]) -> bytes:
        """The content of the CSV with these paths."""
        columns = self.columns | {"path": list(paths)}
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return stream.getvalue().encode("utf-8", "surrogateescape")

    def _counts(self, name: str) -> np.ndarray:
        values, (lowest, highest) = self.column(name), COUNT_LIMITS[name]
        for path, value in zip(self.paths, values, strict=True):
            is_number = value.isascii() and value.isdigit() and len(value) <= len(str(highest))
            if not (is_number and lowest <= int(value) <= highest):
                raise ValueError(
                    f"{path}: {name} is {value[:40]!r}, but must be a whole number from {lowest} to {highest}; index "
                    "the folder again"
                )
        return np.array(values, dtype=np.int64)


def is_manifest(path: str | Path) -> bool:
    """Whether a path is that of a CSV, or of a folder that holds a `manifest.csv`."""
    return Path(path).suffix == ".csv" or (Path(path) / MANIFEST_NAME).is_file()


def read_manifest(path: str | Path, check_files: bool = True) -> Manifest:
    """Reads and validates a manifest.

    Args:
        path: the CSV, or a folder that holds `manifest.csv`.
        check_files: whether every file named must be there, under one name (about a second per 100 000 files on a local
            disk).

    Raises:
        ValueError: if the file is missing or not a CSV, has no `path` column, a ragged row, repeated columns or paths,
            a count out of its range, no rows, or names files that are absent, or one by two names.
    """
    path = Path(path)
    if path.is_dir():
        path = path / MANIFEST_NAME
    if not path.is_file():
        raise ValueError(f"there is no manifest {path}; write one with `cpc data index FOLDER`")
    columns = _read_columns(path)
    try:
        manifest = Manifest(path.parent, columns)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not len(manifest):
        raise ValueError(f"{path} has a header and no rows")
    if check_files:
        _take_normal_forms(manifest)
        absent = [str(file) for file in manifest.files if not file.is_file()]
        if absent:
            raise ValueError(f"{len(absent)} of the {len(manifest)} files in {path} are absent:\n{name_a_few(absent)}")
        refuse_doubles(manifest.root, manifest.paths)
    return manifest


def _read_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            reader = csv.reader(stream)
            names = next(reader, [])
            rows = []
            for row in reader:
                if len(row) not in (0, len(names)):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {len(row)} cells under {len(names)} columns "
                        f"{', '.join(names)}"
                    )
                if row:
                    rows.append(row)
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV: {error}") from error
    if len(set(names)) < len(names):
        raise ValueError(f"{path} names a column twice: {', '.join(names)}")
    return {name: [row[position] for row in rows] for position, name in enumerate(names)}


def _take_normal_forms(manifest: Manifest) -> None:
    """Name files that are there in another normal form of Unicode as the file system does."""
    for row, (path, file) in enumerate(zip(manifest.paths, manifest.files, strict=True)):
        if not path.isascii() and not file.is_file():
            forms = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
            manifest.paths[row] = next((form for form in forms if (manifest.root / form).is_file()), path)


def _seen_from(folder: Path, file: Path) -> str:
    return (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()
