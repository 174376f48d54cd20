"""The index of a folder: a manifest of all its audio or signals, made from headers, paths and random splits."""

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from cpc.config.argument_rules import Choices, Count, Seed, Share, Writable, checked
from cpc.data.audio.headers import AUDIO_SUFFIXES, COUNT_COLUMNS, Header, read_headers
from cpc.data.audio.manifest import KNOWN_COLUMNS, MANIFEST_NAME, Manifest, named_groups, read_manifest
from cpc.data.signals.folder import OPENERS, find_recordings, header_errors
from cpc.data.signals.listing import GROUP_NAMES
from cpc.data.store.contents import draw_splits, split_called, splits_of_folders
from cpc.data.store.folders import composed, find_files, names_in_table, refuse, refuse_bad, refuse_doubles
from cpc.data.store.text_files import format_table, read_table

SplitBy = Literal["file", "speaker"]

DEFAULT_SHARE = 0.1  # default share of the files, for each of valid and test


@checked
def index_folder(
    root: str | Path,
    out: Annotated[str | Path, Writable(is_folder=None)] | None = None,
    *,
    speaker_level: int | None = None,
    speaker_pattern: str | None = None,
    split_level: int | None = None,
    labels: str | Path | None = None,
    label_key: str | None = None,
    valid_share: Share | None = None,
    test_share: Share | None = None,
    split_by: SplitBy = "file",
    seed: Seed = 0,
    num_workers: Count = 8,
    num_ray_workers: Count | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Manifest:
    r"""Write the manifest of all audio files below a folder; only their headers are read.

    If there is no audio, the manifest is that of signals (csv, tsv, parquet, npy, EDF, BDF and WFDB files) with the
    columns `path`, `split` and `group`. The group is the subject, which takes the place of the speaker: the options of
    speakers, or a column `group`, `user` or `subject`, name it, and splits are drawn by subject if there are any.

    Args:
        root: folder to search, with all folders below it; names that begin with a dot are left out.
        out: CSV to write, or the folder for it; manifest.csv in `root` if not given.
        speaker_level: level of the folder below `root` that names the speaker: 0 is the first, -1 is the folder of the
            file.
        speaker_pattern: regular expression, searched in the path relative to `root`. Each named group becomes a column:
            `(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<index>\d+)`; groups `speaker` and `split` become these columns.
        split_level: level of the folder below `root` that names the split; synonyms of train, valid and test become
            these words.
        labels: CSV (or TSV) whose columns are joined to the files; `split` and `speaker` become these columns.
        label_key: column of `labels` that names the files, by their paths below `root`, their names, or their stems;
            `path` if not given.
        valid_share: share of the files that is drawn for split `valid`, 0.1 if not given. Splits are not drawn if
            folders or the pattern name the split, or if both shares are 0. If neither shares nor levels are given and
            the names of all first folders are splits (train, validation; train2017, dev-clean), these are the splits.
        test_share: share of the files that is drawn for split `test`, in the same way.
        split_by: `speaker` draws speakers, so that speakers of `valid` and `test` are in no other split.
        seed: seed of the drawn splits.
        num_workers: threads of each process that read headers.
        num_ray_workers: processes of a Ray cluster that read headers of audio (at RAY_ADDRESS, else started here); only
            this process if not given.
        skip_bad: leave out files that cannot be read, and warn how many.
        overwrite: replace an existing manifest.
        progress: show a progress bar.

    Raises:
        ValueError: if there is neither audio nor signals; if files are bad, have two names, or do not fit the level or
            the pattern (the first few are named); if `out` exists, options contradict each other, or a split is empty.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; name the one that holds the audio or signals")
    out = root if out is None else Path(out)
    if out.is_dir():
        out = out / MANIFEST_NAME
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists already; set `overwrite` to replace it, or name another place with `out`")
    paths, is_audio = find_media(root, [out] if labels is None else [out, Path(labels)])
    if num_ray_workers is not None and not is_audio:
        raise ValueError(f"`num_ray_workers`={num_ray_workers} is for audio, and {root} holds signals: leave it out")
    refuse_doubles(root, paths)
    format_table({"path": paths})  # raise an error on names with line breaks before reading headers
    columns_of_paths = _labels(paths, speaker_level, speaker_pattern, split_level)
    if label_key is not None and labels is None:
        raise ValueError(f"`label_key`={label_key} is a column of `labels`: name the table too")
    if labels is not None:
        joined = join_labels(paths, labels, label_key or "path")
        twice = sorted(joined.keys() & columns_of_paths.keys())
        if twice:
            raise ValueError(f"{labels} has the columns {', '.join(twice)}, which paths already name: leave one out")
        columns_of_paths |= joined
    group_names = [] if is_audio else [name for name in ("speaker", *GROUP_NAMES) if name in columns_of_paths]
    if len(group_names) > 1:
        raise ValueError(f"the options name both a {group_names[1]} and a {group_names[0]} as group of signals")
    if group_names:  # splits are drawn by it
        columns_of_paths["speaker"] = columns_of_paths.pop(group_names[0])
    if "split" in columns_of_paths:
        columns_of_paths["split"] = [split_called(split) or split for split in columns_of_paths["split"]]
    options = {"valid_share": valid_share, "test_share": test_share, "split_by": split_by, "seed": seed}
    draw = partial(_drawn_splits, **options, keeps_speakers=not is_audio)  # type: ignore[arg-type]
    draw({"path": paths} | columns_of_paths)  # check the options before reading headers
    out.parent.mkdir(parents=True, exist_ok=True)
    files = [root / path for path in paths]
    bar = "index" if progress else None
    entries: Sequence[Header | str | None] = (
        read_headers(files, num_workers, bar, num_ray_workers) if is_audio else header_errors(files, num_workers)
    )
    bad = [entry for entry in entries if isinstance(entry, str)]
    refuse_bad(bad, len(paths), f"{'audio' if is_audio else 'signal'} files below {root}", skip_bad)
    headers = {row: entry for row, entry in enumerate(entries) if not isinstance(entry, str)}
    columns = {name: [values[row] for row in headers] for name, values in ({"path": paths} | columns_of_paths).items()}
    columns |= draw(columns)
    if is_audio:
        columns |= {name: [str(getattr(header, name)) for header in headers.values()] for name in COUNT_COLUMNS}
    order = [name for name in KNOWN_COLUMNS if name in columns]
    columns = {name: columns[name] for name in dict.fromkeys([*order, *columns])}
    if not is_audio:  # further columns of a manifest of signals are labels
        columns = {"group" if name == "speaker" else name: values for name, values in columns.items()}
    try:
        manifest = Manifest(root, columns)
    except ValueError as error:
        raise ValueError(f"{out if labels is None else labels}: {error}") from error
    manifest.write(out)
    return read_manifest(out, check_files=False)


def describe_result(manifest: Manifest, options: Mapping[str, Any]) -> str:
    """Return the line that the command line prints."""
    splits = Counter(manifest.columns.get("split", []))
    counts = ", ".join(f"{split} {count}" for split, count in splits.items()) or "no splits"
    return f"{len(manifest)} files indexed ({counts})"


def find_media(root: Path, tables: Sequence[Path] = ()) -> tuple[list[str], bool]:
    """Return the audio files below a folder, or recordings of signals if there is no audio; and whether it is audio."""
    try:
        return find_files(root, AUDIO_SUFFIXES, "audio"), True
    except ValueError as no_audio:
        try:
            return find_recordings(root, tables=tables), False
        except ValueError:
            raise ValueError(f"{no_audio}; signals: {' '.join(OPENERS)}") from None


def _labels(
    paths: list[str], speaker_level: int | None, pattern: str | None, split_level: int | None
) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    folders = [PurePosixPath(path).parts[:-1] for path in paths]
    for name, level in (("split", split_level), ("speaker", speaker_level)):
        if level is not None:
            shallow = [path for path, own in zip(paths, folders, strict=True) if not -len(own) <= level < len(own)]
            refuse(f"of {len(paths)} files lie in fewer folders than {name}_level={level} needs", shallow)
            labels[name] = [parts[level] for parts in folders]
    if pattern is None:
        return labels
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`speaker_pattern`={pattern!r} is not a regular expression: {error}") from error
    if not expression.groupindex:
        raise ValueError(f"speaker_pattern={pattern!r} has no named group; write it like (?P<speaker>[a-z]+)")
    reserved = [name for name in expression.groupindex if name in (*labels, "path", *COUNT_COLUMNS)]
    if reserved:
        raise ValueError(f"speaker_pattern={pattern!r} names {', '.join(reserved)}, which is set already")
    return labels | named_groups(paths, expression, f"paths do not match speaker_pattern={pattern!r}")


def _drawn_splits(
    columns: dict[str, list[str]],
    valid_share: float | None,
    test_share: float | None,
    split_by: SplitBy,
    seed: int,
    keeps_speakers: bool,
) -> dict[str, list[str]]:
    """Return a column `split`: named by the first folders, or drawn; {} if it is known, or both shares are 0."""
    has_options = (valid_share, test_share, split_by, seed) != (None, None, "file", 0)
    if "split" in columns:
        if has_options:
            given = f"valid_share={valid_share}, test_share={test_share}, split_by={split_by!r}, seed={seed}"
            raise ValueError(f"{given} draw splits, but `split_level`, `speaker_pattern` or `labels` name them")
        return {}
    paths = columns["path"]
    speakers = columns.get("speaker", [""] * len(paths))
    units = [speaker or path for speaker, path in zip(speakers, paths, strict=True)] if keeps_speakers else paths
    if not has_options and (named := _splits_of_first_folders(paths, units)):
        return {"split": named}
    shares = [DEFAULT_SHARE if share is None else share for share in (valid_share, test_share)]
    if shares == [0, 0]:
        return {}
    if split_by == "speaker":
        units = speakers
        nameless = [path for path, speaker in zip(paths, units, strict=True) if not speaker]
        advice = "name them with `speaker_level` or `speaker_pattern`"
        refuse(f"of {len(paths)} files have no speaker, but split_by='speaker'", nameless, advice)
    return {"split": draw_splits(units, valid_share=shares[0], test_share=shares[1], seed=seed)}


def _splits_of_first_folders(paths: list[str], units: list[str]) -> list[str]:
    """Return the split that each path's first folder names, with a drawn `valid` if there is none; or []."""
    tops = [path.rpartition("/")[0].partition("/")[0] for path in paths]
    split_of_top = splits_of_folders(tops)
    if len(set(split_of_top.values())) < 2:
        return []
    splits = [split_of_top[top] for top in tops]
    train_units = [unit for unit, split in zip(units, splits, strict=True) if split == "train"]
    if "valid" in splits or len(set(train_units)) < 2:
        return splits
    new_splits = iter(draw_splits(train_units, valid_share=DEFAULT_SHARE, test_share=0.0))
    return [next(new_splits) if split == "train" else split for split in splits]


def join_labels(paths: list[str], table: str | Path, key: str) -> dict[str, list[str]]:
    """Return the columns of a CSV or TSV, with a value for each path; the value is empty if no row names the path."""
    table = Path(table)
    columns = _label_columns(table, key)
    keys = list(map(composed, columns.pop(key)))
    names = names_in_table(paths, keys)
    row_of = {name: row for row, name in enumerate(keys)}
    rows = [row_of.get(name) for name in names]
    if not any(row is not None for row in rows):
        found = f"no cell in column {key!r} of {table} names one of the {len(paths)} files"
        others = f"other columns for `label_key`: {', '.join(columns) or 'none'}"
        raise ValueError(f"{found}: a cell is {keys[0]!r}, a file {paths[0]!r}; {others}")
    repeated = [name for name, count in Counter(keys).items() if count > 1 and name in set(names)]
    refuse(f"files have more than one row in {table}", repeated)
    shared = [name for name, count in Counter(names).items() if count > 1 and name in row_of]
    refuse(f"names in {table} occur in several folders", shared, "write paths into the column of `label_key`")
    labels = {name: ["" if row is None else values[row] for row in rows] for name, values in columns.items()}
    unsplit = [path for path, split in zip(paths, labels.get("split", paths), strict=True) if not split]
    refuse(f"of {len(paths)} files have no split in {table}", unsplit)
    num_unnamed, num_unused = rows.count(None), len(set(keys) - set(names))
    if num_unnamed or num_unused:
        files = f"{num_unnamed} of {len(paths)} files have no row and stay unlabelled"
        warnings.warn(f"{table}: {files}; {num_unused} of {len(keys)} rows do not name a file", stacklevel=3)
    return labels


def _label_columns(table: Path, key: str) -> dict[str, list[str]]:
    header, rows = read_table(table)
    Choices(tuple(header)).check(f"{table}: `label_key`", key)
    reserved = [name for name in header if name != key and name in ("path", *COUNT_COLUMNS)]
    if reserved:
        raise ValueError(f"{table} has the columns {reserved}, which the index fills itself: rename them")
    cells = [row for _, row in rows]
    if not cells:
        raise ValueError(f"{table} has a header and no rows")
    return {name: [row[i] for row in cells] for i, name in enumerate(header)}
