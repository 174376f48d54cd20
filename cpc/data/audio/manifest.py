"""Manifests: one CSV row per audio file, with its split, its speaker and any labels.

A manifest is UTF-8 with a header. `path` is required (relative to the CSV's folder, or absolute); `split`, `speaker`,
`num_samples`, `sample_rate_hz` and `num_channels` have a fixed meaning; every other column holds labels. Other tools
cut a file into parts by `offset` and `duration`; here these columns must describe the whole file.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from cpc.data.audio.headers import AUDIO_SUFFIXES, COUNT_COLUMNS, COUNT_LIMITS, read_headers
from cpc.data.store.atomic import write_atomically
from cpc.data.store.contents import rows_of_split, say_contents
from cpc.data.store.folders import composed, refuse, refuse_doubles
from cpc.data.store.text_files import format_table, number_or_nan, read_table

MANIFEST_NAME = "manifest.csv"
KNOWN_COLUMNS = ("path", "split", "speaker", *COUNT_COLUMNS)
# If a `duration` differs from the length of the file by at most this, it counts as the whole file. Other tools round
# durations, or estimate them for MP3.
_DURATION_SHARE, _DURATION_SECONDS = 0.02, 0.1


@dataclass(frozen=True)
class Manifest:
    """The rows of a corpus, column by column."""

    root: Path
    columns: dict[str, list[str]]

    def __post_init__(self) -> None:
        if "path" not in self.columns:
            raise ValueError(f"a manifest needs a column 'path'; found the columns {', '.join(self.columns)}")
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a manifest must have the same length; found {lengths}")
        repeated = [path for path, count in Counter(self.paths).items() if count > 1]
        refuse("paths occur more than once in the manifest", repeated)
        for name in COUNT_COLUMNS:
            if name in self.columns:
                self._counts(name)
        self._refuse_parts()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def paths(self) -> list[str]:
        """The paths in the manifest; labels and alignments name files by these paths."""
        return self.columns["path"]

    names = paths  # of the recordings

    @property
    def splits(self) -> list[str]:
        """The split column, or "" for every file without it."""
        return self.columns.get("split", [""] * len(self))

    @property
    def groups(self) -> list[str]:
        """The speaker column, or "" for every file without it."""
        return self.columns.get("speaker", [""] * len(self))

    @property
    def files(self) -> list[Path]:
        """The absolute path of every row's file."""
        root = self.root.absolute()
        return [root / path for path in self.paths]

    @property
    def seconds(self) -> np.ndarray:
        """`[num_rows]` float64: length of each file, from the counts or from its header; NaN if unknown."""
        if {"num_samples", "sample_rate_hz"} <= self.columns.keys():
            return self._counts("num_samples") / self._counts("sample_rate_hz")
        headers = read_headers(self.files, num_workers=8)
        return np.array([np.nan if isinstance(h, str) else h.num_samples / h.sample_rate_hz for h in headers])

    @property
    def label_columns(self) -> list[str]:
        """The columns of labels: all except path, split, speaker and the counts."""
        return [name for name in self.columns if name not in KNOWN_COLUMNS]

    def column(self, name: str) -> list[str]:
        """Return the values of one column; raise a ValueError that lists the columns if there is none."""
        if name not in self.columns:
            raise ValueError(f"the manifest in {self.root} has no column {name!r}, only {', '.join(self.columns)}")
        return self.columns[name]

    def take(self, rows: Sequence[int] | np.ndarray) -> "Manifest":
        """Return the manifest of only these rows, in this order."""
        return Manifest(self.root, {name: [values[row] for row in rows] for name, values in self.columns.items()})

    def rows(self, split: str | None) -> np.ndarray:
        """Return the rows of one split, `[n]` int64; None: all. A split without rows is an error that lists all."""
        splits = self.splits if split is None else self.column("split")
        return rows_of_split(splits, split, f"file of the manifest in {self.root}")

    def select(self, split: str) -> "Manifest":
        """Return the manifest of only one split; raises the errors of `rows`."""
        return self.take(self.rows(split))

    def write(self, path: str | Path) -> None:
        """Write the CSV atomically; paths become relative to its folder, or absolute if they lie outside it."""
        folder = Path(path).absolute().parent
        paths = [(file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix() for file in self.files]
        with write_atomically(path) as new:
            new.write_bytes(self.csv(paths))

    def csv(self, paths: Sequence[str]) -> bytes:
        """Return the content of the CSV with these paths."""
        return format_table(self.columns | {"path": list(paths)})

    def require_files(self, source: Path) -> None:
        """Raise an error on files that are absent or have two names; take the file system's normal form of Unicode."""
        for row, (path, file) in enumerate(zip(self.paths, self.files, strict=True)):
            if not path.isascii() and not file.is_file():
                forms = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
                self.paths[row] = next((form for form in forms if (self.root / form).is_file()), path)
        absent = [str(file) for file in self.files if not file.is_file()]
        refuse(f"of the {len(self)} files in {source} are absent", absent)
        refuse_doubles(self.root, self.paths)

    def _refuse_parts(self) -> None:
        """Raise an error on an `offset` or a `duration` of a part of a file, since cpc reads whole files."""
        whole = "cpc reads whole files: cut the files, or rename the column if it means something else"
        for path, cell in zip(self.paths, self.columns.get("offset", []), strict=False):
            if number_or_nan(cell or "0") != 0:
                raise ValueError(f"{path}: offset is {cell[:40]!r}, but must be 0 or empty; {whole}")
        durations = self.columns.get("duration", [])
        if not any(durations):
            return
        for path, cell, seconds in zip(self.paths, durations, self.seconds, strict=True):
            is_whole = abs(number_or_nan(cell) - seconds) <= _DURATION_SECONDS + _DURATION_SHARE * seconds
            if cell and not is_whole and not np.isnan(seconds):
                raise ValueError(f"{path}: duration is {cell[:40]!r}, but the file lasts {seconds:g} s; {whole}")

    def _counts(self, name: str) -> np.ndarray:
        values, (lowest, highest) = self.column(name), COUNT_LIMITS[name]
        for path, value in zip(self.paths, values, strict=True):
            is_number = value.isascii() and value.isdigit() and len(value) <= len(str(highest))
            if not (is_number and lowest <= int(value) <= highest):
                legal = f"a whole number from {lowest} to {highest}"
                raise ValueError(f"{path}: {name} is {value[:40]!r}, but must be {legal}; index the folder again")
        return np.array(values, dtype=np.int64)


def is_manifest(path: str | Path) -> bool:
    """Return whether a path is a CSV, or a folder that holds a `manifest.csv`."""
    return Path(path).suffix == ".csv" or (Path(path) / MANIFEST_NAME).is_file()


def read_manifest(path: str | Path, check_files: bool = True) -> Manifest:
    """Read and validate a manifest.

    Args:
        path: the CSV, or a folder that holds `manifest.csv`.
        check_files: whether to reject absent files, and files that two rows name in different ways.

    Raises:
        ValueError: if the table is missing, no CSV, or without rows or `path`; if a file is absent or named twice; if a
            count is out of range; if an `offset` or a `duration` describes a part of a file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / MANIFEST_NAME
    if not path.is_file():
        raise ValueError(f"there is no manifest {path}; write one with `cpc data index FOLDER`")
    names, rows = read_table(path, errors="surrogateescape")  # because the name of a file may not be UTF-8
    cells = [row for _, row in rows]
    columns = {name: [row[i] for row in cells] for i, name in enumerate(names)}
    try:
        manifest = Manifest(path.parent, columns)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not len(manifest):
        raise ValueError(f"{path} has a header and no rows")
    if check_files:
        manifest.require_files(path)
    speakers = {"speakers": set(manifest.groups) - {""}} if "speaker" in columns else {}
    say_contents(path, "files", columns.get("split", [""] * len(manifest)), **speakers)
    return manifest


def bare_path(path: str) -> str:
    """Return a path without the suffix of an audio file (`spk.001` keeps its dot), in Unicode's normal form C."""
    pure = PurePosixPath(composed(path))
    return pure.with_suffix("").as_posix() if pure.suffix.lower() in AUDIO_SUFFIXES else pure.as_posix()


def is_end_of(one: str, other: str) -> bool:
    """Return whether one bare path ends with the other, in whole folders, since one tree may start a folder deeper."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Return one name for each path: the stems if they differ, else paths without suffix if they differ, else paths."""
    bare = [bare_path(path) for path in paths]
    for names in ([path.rpartition("/")[2] for path in bare], bare):
        if len(set(names)) == len(names):
            return names
    return list(paths)


def named_groups(paths: Sequence[str], pattern: re.Pattern[str], problem: str) -> dict[str, list[str]]:
    """Return each named group of a pattern, searched in every path; `problem` describes paths that do not match."""
    matches = [pattern.search(path) for path in paths]
    refuse(f"of {len(paths)} {problem}", [path for path, match in zip(paths, matches, strict=True) if not match])
    return {name: [match[name] or "" for match in matches if match] for name in pattern.groupindex}
