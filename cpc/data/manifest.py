"""Manifests: one CSV row per audio file, with its split, its speaker and any labels; and the index of a folder.

A manifest is UTF-8 with a header. `path` is required (relative to the CSV's folder, or absolute); `split`, `speaker`,
`num_samples`, `sample_rate_hz` and `num_channels` are known; every other column holds labels.
"""

import csv
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from cpc.data.headers import AUDIO_SUFFIXES, Header, name_a_few, read_header
from cpc.data.parallel import map_in_order

MANIFEST_NAME = "manifest.csv"
_COUNT_COLUMNS = ("num_samples", "sample_rate_hz", "num_channels")
_KNOWN_COLUMNS = ("path", "split", "speaker", *_COUNT_COLUMNS)


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
            raise ValueError(f"a manifest needs a column 'path'; found the columns {_listed(self.columns)}")
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a manifest's columns have one length; found {lengths}")
        repeated = [path for path, count in Counter(self.paths).items() if count > 1]
        if repeated:
            raise ValueError(f"{len(repeated)} paths stand more than once in the manifest:\n{name_a_few(repeated)}")
        for name in _COUNT_COLUMNS:
            if name in self.columns:
                self._counts(name)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def paths(self) -> list[str]:
        """The paths as they stand in the manifest: the keys of labels and alignments."""
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
        return [name for name in self.columns if name not in _KNOWN_COLUMNS]

    def column(self, name: str) -> list[str]:
        """The values of one column.

        Raises:
            ValueError: if there is no such column; the message lists those there are.
        """
        if name not in self.columns:
            raise ValueError(
                f"the manifest in {self.root} has no column {name!r}, only {_listed(self.columns)}: name one of these, "
                "or add it (`cpc data index` with speaker_level, split_level or named groups in speaker_pattern)"
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

    def select(self, split: str) -> "Manifest":
        """The rows of one split.

        Raises:
            ValueError: if there is no split column, or no row of this split; the message lists the splits there are.
        """
        splits = self.column("split")
        rows = [row for row, value in enumerate(splits) if value == split]
        if not rows:
            raise ValueError(
                f"the manifest in {self.root} has no row of split {split!r}, only of {_listed(sorted(set(splits)))}: "
                "name one of these, or set the split column of the rows meant"
            )
        return self.take(rows)

    def write(self, path: str | Path) -> None:
        """Writes the CSV, atomically; paths become relative to its folder, or absolute where they lie outside it."""
        path = Path(path)
        folder = path.absolute().parent
        columns = self.columns | {"path": [_seen_from(folder, file) for file in self.files]}
        unfinished = path.with_name(path.name + ".tmp")
        with unfinished.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        unfinished.replace(path)

    def _counts(self, name: str) -> np.ndarray:
        values = self.column(name)
        for path, value in zip(self.paths, values, strict=True):
            if not (value.isascii() and value.isdigit()) or int(value) == 0:
                raise ValueError(
                    f"{path}: {name} is {value!r}, but must be a positive whole number; index the folder again"
                )
        return np.array(values, dtype=np.int64)


def read_manifest(path: str | Path, check_files: bool = True) -> Manifest:
    """Reads and validates a manifest.

    Args:
        path: the CSV, or a folder that holds `manifest.csv`.
        check_files: whether every file named must be there (about a second per 100 000 files on a local disk).

    Raises:
        ValueError: if the file is missing or no CSV, has no `path` column, a ragged row, duplicated columns or paths, a
            count that is no positive integer, no rows, or names files that are absent.
    """
    path = Path(path)
    if path.is_dir():
        path = path / MANIFEST_NAME
    if not path.is_file():
        raise ValueError(f"there is no manifest {path}; write one with `cpc data index FOLDER`")
    columns = _read_columns(path)
    manifest = Manifest(path.parent, columns)
    if not len(manifest):
        raise ValueError(f"{path} has a header and no rows")
    if check_files:
        absent = [str(file) for file in manifest.files if not file.is_file()]
        if absent:
            raise ValueError(f"{len(absent)} of the {len(manifest)} files in {path} are absent:\n{name_a_few(absent)}")
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
                        f"{path}, line {reader.line_num}: {len(row)} cells under {len(names)} columns {_listed(names)}"
                    )
                if row:
                    rows.append(row)
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV: {error}") from error
    if len(set(names)) < len(names):
        raise ValueError(f"{path} names a column twice: {_listed(names)}")
    return {name: [row[position] for row in rows] for position, name in enumerate(names)}


def index_folder(
    root: str | Path,
    out: str | Path | None = None,
    *,
    speaker_level: int | None = None,
    speaker_pattern: str | None = None,
    split_level: int | None = None,
    num_workers: int = 8,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Manifest:
    r"""Writes the manifest of all audio files below a folder; only their headers are read.

    An interrupted run continues where it ended: headers read so far stand in a file `<out>.partial`, and those of files
    that have changed since (size or time) are read again.

    Args:
        root: folder to search, with all folders below it; names that begin with a dot are left out.
        out: CSV to write, or the folder for it; `root/manifest.csv` unless given.
        speaker_level: which folder below `root` names the speaker: 0 the first, -1 the one the file lies in.
        speaker_pattern: regular expression, searched in the path relative to `root`. Each named group becomes a column:
            `(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<index>\d+)`; groups `speaker` and `split` mean what they say.
        split_level: which folder below `root` names the split.
        num_workers: threads that read headers.
        skip_bad: leave out files that cannot be read, and warn how many, instead of raising.
        overwrite: replace a manifest that is there already.
        progress: show a progress bar.

    Raises:
        ValueError: if there is no audio, a file is bad, lies too shallow for a level or does not match the pattern; the
            first few are named. Also for a pattern without named groups, and an `out` that exists.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; name the one that holds the audio")
    out = root if out is None else Path(out)
    if out.is_dir():
        out = out / MANIFEST_NAME
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists already; set overwrite to replace it, or name another place with out")
    paths = _find_audio(root)
    labels = _labels(paths, speaker_level, speaker_pattern, split_level)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    entries = _read_headers(root, paths, partial, num_workers, progress)
    bad = [entry for entry in entries if isinstance(entry, str)]
    if bad and (not skip_bad or len(bad) == len(paths)):
        raise ValueError(
            f"{len(bad)} of the {len(paths)} audio files below {root} cannot be used:\n{name_a_few(bad)}\n"
            "repair or remove them, or set skip_bad to leave them out"
        )
    if bad:
        warnings.warn(f"left out {len(bad)} of {len(paths)} files below {root}:\n{name_a_few(bad)}", stacklevel=2)
    kept = [row for row, entry in enumerate(entries) if isinstance(entry, Header)]
    headers = [entry for entry in entries if isinstance(entry, Header)]
    columns = {"path": paths} | labels
    columns = {name: [values[row] for row in kept] for name, values in columns.items()}
    columns |= {name: [str(getattr(header, name)) for header in headers] for name in _COUNT_COLUMNS}
    order = [name for name in _KNOWN_COLUMNS if name in columns]
    columns = {name: columns[name] for name in dict.fromkeys([*order, *columns])}
    Manifest(root, columns).write(out)
    partial.unlink(missing_ok=True)
    return read_manifest(out, check_files=False)


def _find_audio(root: Path) -> list[str]:
    """Sorted posix paths of the audio files below `root`, relative to it; links to folders are followed once."""
    found: list[str] = []
    others: Counter[str] = Counter()
    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if suffix in AUDIO_SUFFIXES and not name.startswith("."):
                found.append(Path(folder, name).relative_to(root).as_posix())
            else:
                others[suffix or name] += 1
    if not found:
        there = _listed([f"{count} {suffix}" for suffix, count in others.most_common(5)])
        raise ValueError(
            f"no audio below {root} (there: {there or 'nothing'}); files are known by their suffix: "
            f"{' '.join(sorted(AUDIO_SUFFIXES))}"
        )
    return sorted(found)


def _labels(
    paths: list[str], speaker_level: int | None, pattern: str | None, split_level: int | None
) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    for name, level in (("split", split_level), ("speaker", speaker_level)):
        if level is not None:
            labels[name] = _folders_at(paths, level, f"{name}_level")
    if pattern is None:
        return labels
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"speaker_pattern={pattern!r} is no regular expression: {error}") from error
    groups = list(expression.groupindex)
    if not groups:
        raise ValueError(f"speaker_pattern={pattern!r} has no named group; write it like (?P<speaker>[a-z]+)")
    taken = [name for name in groups if name in labels or name in ("path", *_COUNT_COLUMNS)]
    if taken:
        raise ValueError(f"speaker_pattern={pattern!r} names {_listed(taken)}, set elsewhere already; rename the group")
    matches = [expression.search(path) for path in paths]
    unmatched = [path for path, match in zip(paths, matches, strict=True) if match is None]
    if unmatched:
        raise ValueError(
            f"speaker_pattern={pattern!r} does not match {len(unmatched)} of {len(paths)} paths:\n"
            f"{name_a_few(unmatched)}"
        )
    for name in groups:
        labels[name] = [match[name] or "" for match in matches if match]
    return labels


def _folders_at(paths: list[str], level: int, option: str) -> list[str]:
    folders = [PurePosixPath(path).parts[:-1] for path in paths]
    shallow = [path for path, parts in zip(paths, folders, strict=True) if not -len(parts) <= level < len(parts)]
    if shallow:
        raise ValueError(
            f"{option}={level}, but {len(shallow)} of {len(paths)} files lie in fewer folders:\n{name_a_few(shallow)}\n"
            f"level 0 is the first folder below the root; change {option}"
        )
    return [parts[level] for parts in folders]


class _Known(NamedTuple):
    """A header with the size and time of the file that it was read from."""

    size: int
    mtime_ns: int
    header: Header


def _read_headers(root: Path, paths: list[str], partial: Path, num_workers: int, progress: bool) -> list[Header | str]:
    """Per path its header, or what is wrong with the file; good headers are appended to `partial` as they come."""
    known = _read_partial(partial, root)

    def examine(path: str) -> tuple[str, _Known | str]:
        file = root / path
        try:
            status = file.stat()
            entry = known.get(path)
            if entry and (entry.size, entry.mtime_ns) == (status.st_size, status.st_mtime_ns):
                return path, entry
            return path, _Known(status.st_size, status.st_mtime_ns, read_header(file))
        except (OSError, ValueError) as error:
            return path, str(error)

    entries: list[Header | str] = []
    # Line buffered: a line that has been written survives kill -9.
    with partial.open("a", encoding="utf-8", buffering=1) as stream:
        if stream.tell() == 0:
            stream.write(json.dumps(_partial_title(root)) + "\n")
        else:
            stream.write("\n")  # ends a torn last line
        results = map_in_order(examine, paths, num_workers)
        for path, entry in tqdm(results, total=len(paths), desc="index", unit="file", disable=not progress):
            if isinstance(entry, str):
                entries.append(entry)
                continue
            entries.append(entry.header)
            if known.get(path) is not entry:
                stream.write(json.dumps([path, entry.size, entry.mtime_ns, *entry.header]) + "\n")
    return entries


def _partial_title(root: Path) -> dict[str, Any]:
    return {"format": 1, "root": str(root.resolve())}


def _read_partial(partial: Path, root: Path) -> dict[str, _Known]:
    """What an interrupted run has read of this root; another root's leftovers are removed."""
    if not partial.exists():
        return {}
    records: list[Any] = []
    with partial.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    if not records or records[0] != _partial_title(root):
        partial.unlink()
        return {}
    return {path: _Known(size, mtime_ns, Header(*header)) for path, size, mtime_ns, *header in records[1:]}


def _seen_from(folder: Path, file: Path) -> str:
    return (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
