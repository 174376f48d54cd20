"""`cpc data download`: write the audio or images of a Hugging Face dataset, or of WebDataset's tars, as files.

The package `datasets` is imported by `import_module`, since this repository has a folder of the same name.
"""

import io
import re
import sys
import tarfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from cpc.config.argument_rules import Choices, NewFolder, checked
from cpc.config.extras import import_extra
from cpc.data.audio.headers import AUDIO_SUFFIXES, COUNT_COLUMNS
from cpc.data.images.table import IMAGE_SUFFIXES
from cpc.data.store.atomic import build_atomically
from cpc.data.store.contents import split_called
from cpc.data.store.text_files import format_table, has_line_break
from cpc.data.store.untrusted import read_json, reading
from cpc.interop.hub import why_unreachable

LABELS_NAME = "labels.csv"
_MOST_PADDING_BYTES = 2**20  # far more than the zeros that fill the last record of a tar
_MAGIC = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3"}
_SUFFIXES = {"Audio": AUDIO_SUFFIXES, "Image": IMAGE_SUFFIXES}


@checked
def download_dataset(
    source: str,
    *,
    out: NewFolder,
    config: str | None = None,
    revision: str | None = None,
    splits: Sequence[str] | None = None,
    column: str | None = None,
    label: str | None = None,
) -> Path:
    """Write the audio or images of a dataset as files, ready for indexing or training.

    The bytes of the files are unchanged. Images go to `SPLIT/CLASS`, ready for training. For audio, `labels.csv` holds
    every column of text or numbers; the column `speaker_id` becomes `speaker`. The command prints how to index the
    files. A file from a tar has a name of its tar and key.

    Args:
        source: a dataset of the Hub, as ORG/NAME; or a folder of a dataset, such as one of WebDataset's tars.
        out: a new folder.
        config: configuration of the dataset, if it has several.
        revision: branch, tag or commit on the Hub.
        splits: splits to write, by their names in the dataset; all if not given. The first word of a name must be
            train, training, val, valid, validation, dev, test, testing, eval, unlabelled or unsupervised. Empty splits
            are skipped with a message.
        column: column of audio or images; the first one if not given.
        label: column of the classes of images; if not given, `cls`, or the first column of classes. In a split with
            classes, images without a class go to `unlabelled`.

    Raises:
        ValueError: if `out` exists; the extra is missing; the dataset, split or column does not exist; an option does
            not apply; the dataset has several configurations and none is named; the dataset has no audio or images, or
            no rows; a file has an unknown format or lies outside the dataset; a tar is damaged. After such an error
            nothing is written to `out`.
        OSError: if the dataset cannot be read.
    """
    out = Path(out)
    tables = _open(source, config, revision)
    for name in splits or ():
        Choices(tuple(tables)).check("`splits`", name)
    rows: dict[str, dict[str, str]] = {}
    media: set[str] = set()
    with build_atomically(out, lambda _: False, "out") as folder, _explain_errors(source):
        for name in splits or tables:
            table, split = tables[name], _known_split(name, source)
            features = table.features
            file_column, medium = _file_column(features, column, source)
            media.add(medium)
            class_column = _class_column(features, label, source, medium)
            unlabelled: list[Path] = []
            num_before = len(rows)
            for index, row in enumerate(_without_codecs(table)):
                where = f"{source}, {name}, row {index}"
                content, suffix = read_cell(row[file_column], medium, source, where)
                class_name = class_column and _class_name(features[class_column], row[class_column])
                classes = [_escape(class_name)] if class_name else []
                path = Path(split, *classes, f"{_name(row, name, index)}{suffix}")
                if path.as_posix() in rows:
                    raise ValueError(f"{where} is {path}, which another row is already: rename one of them")
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
                rows[path.as_posix()] = {"split": split} | dict(_labels(features, row, file_column))
                if not classes:
                    unlabelled.append(path)
            if len(rows) == num_before:
                _report_empty(source, name)
            elif unlabelled and class_column is not None and any(path.is_dir() for path in (folder / split).iterdir()):
                (folder / "unlabelled").mkdir(exist_ok=True)
                for path in unlabelled:
                    (folder / path).rename(folder / "unlabelled" / path.name)
        if not rows:
            raise ValueError(f"{source} has no rows in {', '.join(splits or tables)}: choose other `splits`")
        if media == {"Audio"}:
            write_labels(rows, folder / LABELS_NAME)
    print(f"{len(rows)} files written to {out}")
    if media == {"Audio"}:
        print(f"index them: cpc data index {out} --labels {out / LABELS_NAME}")
    return out


def _open(source: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """Return the splits of a dataset by name. Rows of a dataset of the Hub are fetched only when they are read."""
    library = import_extra("datasets", "datasets", "Hugging Face's datasets need the package `datasets`")
    is_saved = (Path(source) / "dataset_dict.json").is_file()
    if (revision is not None and Path(source).is_dir()) or (config is not None and is_saved):
        saved = f", and no `config` {config}, since it was saved with one" if is_saved else ""
        raise ValueError(f"{source} is a folder: it has no `revision` {revision}{saved}")
    if is_saved:
        with _explain_errors(source):
            return dict(_open_saved(Path(source), library))
    with _explain_errors(source):
        _check_tars(Path(source))
        try:
            splits = dict(library.load_dataset(source, config, revision=revision, streaming=True))
        except (FileNotFoundError, ConnectionError) as error:
            if isinstance(error, ConnectionError) or "LocalEntryNotFoundError" in str(error):
                raise ConnectionError(f"{source!r} is not a folder, and {why_unreachable(error)}") from error
            raise ValueError(f"{source!r} is neither a folder nor a dataset of the Hub: {error}") from error
        except ValueError as error:
            available = re.search(r"[Aa]vailable[^[]*(\[.*\])", str(error))
            if available is None:
                raise
            problem = "has several configurations" if config is None else f"has no configuration {config!r}"
            raise ValueError(f"{source} {problem}: choose one with `config`: {available[1]}") from error
        for name, table in splits.items():
            if table.features is None:  # the first rows show the features
                splits[name] = table._resolve_features()
        return splits


def _without_codecs(table: Any) -> Any:
    """Return a table whose cells hold the bytes and paths of files.

    Audio is cast to plain columns, because `datasets` imports an encoder even where it does not decode. A cast would
    decode images.
    """
    library = import_module("datasets")
    plain = {"bytes": library.Value("binary"), "path": library.Value("string")}
    columns = {n: plain if type(x).__name__ == "Audio" else x for n, x in table.features.items()}
    return table.cast(library.Features(columns)) if plain in columns.values() else table.decode(False)


def _check_tars(folder: Path) -> None:
    """Raise a ValueError on a tar without zeros at its end: `tarfile` takes damage, or a joined tar, for the end."""
    for tar in sorted(folder.rglob("*.tar")):
        with reading(tar, "is damaged, compressed or not a tar"), tar.open("rb") as stream:
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                for _ in archive:
                    pass
            stream.seek(archive.offset)
            rest = stream.read(_MOST_PADDING_BYTES)
        if not rest or any(rest):
            raise ValueError(f"{tar} is cut off or damaged at byte {archive.offset}, or another tar was joined to it")


def _open_saved(folder: Path, library: Any) -> Iterator[tuple[str, Any]]:
    for name in read_json(folder / "dataset_dict.json")["splits"]:
        if read_json(folder / name / "state.json")["_data_files"]:
            yield name, library.load_from_disk(folder / name).to_iterable_dataset()
        else:  # the package cannot read empty splits, although it writes them
            _report_empty(str(folder), name)


def _report_empty(source: str, split: str) -> None:
    print(f"{source}: split {split!r} is empty and is skipped", file=sys.stderr)


@contextmanager
def _explain_errors(source: str) -> Iterator[None]:
    """Raise OSError for the many types of errors of readers of tables, archives and networks."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or (isinstance(error, ValueError) and source in str(error)):
            raise
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):  # `datasets` imports an unneeded encoder for audio files outside of tables
            reason += f" Install that package, or run `hf download {source} --repo-type dataset --local-dir DIR`"
        kind = ValueError if isinstance(error, ImportError | ValueError) else OSError
        raise kind(f"{source} cannot be read: {reason}") from error


def _known_split(name: str, source: str) -> str:
    word = re.split(r"[\W\d_]", name)[0]  # a whole word: `validated` of Common Voice includes train, dev and test
    if split := split_called(word):
        return split
    raise ValueError(f"{source}: split {name!r} is not a form of train, valid, test or unlabelled")


def _file_column(features: Mapping[str, Any], column: str | None, source: str) -> tuple[str, str]:
    """Return the name of the column of audio or images, and its type, `Audio` or `Image`."""
    types = {name: type(feature).__name__ for name, feature in features.items()}
    legal = [name for name, type_name in types.items() if type_name in _SUFFIXES]
    if not legal or column not in (None, *legal):
        columns = ", ".join(f"{name} ({type_name})" for name, type_name in types.items())
        raise ValueError(f"{source} has the columns {columns}: `column` must be one of Audio or Image")
    chosen = column or legal[0]
    return chosen, types[chosen]


def _class_column(features: Mapping[str, Any], label: str | None, source: str, medium: str) -> str | None:
    if label is not None and (medium != "Image" or label not in features):
        found = f"{source} has the columns {', '.join(features)}"
        raise ValueError(f"`label` {label}: {found}; labels of audio all go to {LABELS_NAME}")
    class_columns = [name for name, each in features.items() if name == "cls" or type(each).__name__ == "ClassLabel"]
    return label or next(iter(class_columns), None) if medium == "Image" else None


def _class_name(feature: Any, value: Any) -> str:
    if type(feature).__name__ == "ClassLabel":
        return "" if value in (None, -1) else str(feature.int2str(value))
    return "" if value is None else str(value)


def _escape(name: str) -> str:
    """Escape a name for a file or folder, with percent signs as in URLs, so that different names stay different."""

    def percent(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode())

    return re.sub(r"[^\w .,+()'&-]|^[. ]|[. ]$", percent, name)


def _name(row: Mapping[str, Any], split: str, index: int) -> str:
    """Return a name for the file of a row: its tar and its key, or its split and index."""
    if "__url__" not in row or "__key__" not in row:
        return f"{_escape(split)}-{index:08}"
    return f"{_escape(PurePosixPath(row['__url__']).stem)}-{_escape(row['__key__'])}"


def _labels(features: Mapping[str, Any], row: Mapping[str, Any], column: str) -> Iterator[tuple[str, str]]:
    """Yield the name in the manifest and the value of every column of text or numbers, and of every entry of a JSON."""
    entries = row["json"] if isinstance(row.get("json"), dict) else {}
    left_out = ("path", *COUNT_COLUMNS)
    for name, value in [*row.items(), *entries.items()]:
        if name in (column, *left_out) or name.startswith("__") or (name == "split" and "split" not in entries):
            continue
        if isinstance(value, bool | int | float | str):
            manifest_name = "speaker" if name == "speaker_id" and "speaker" not in row else name
            yield manifest_name, _class_name(features.get(name), value)


def write_labels(rows: Mapping[str, Mapping[str, str]], table: Path) -> None:
    """Write a CSV with a row of labels for each path, empty where the path lacks a label; line breaks become blanks."""
    names = list(dict.fromkeys(name for labels in rows.values() for name in labels))
    columns = {name: [labels.get(name, "") for labels in rows.values()] for name in names}
    num_broken = sum(has_line_break(cell) for cells in columns.values() for cell in cells)
    if num_broken:
        warnings.warn(f"{table.name}: line breaks inside {num_broken} labels were written as blanks", stacklevel=3)
        columns = {name: [re.sub(r"[\r\n]+", " ", cell) for cell in cells] for name, cells in columns.items()}
    table.write_bytes(format_table({"path": list(rows)} | columns))


def read_cell(value: Mapping[str, Any] | None, medium: str, source: str, where: str) -> tuple[bytes, str]:
    """Return the bytes and the suffix of the file in a cell, which lies in the dataset and has a known format."""
    if not value or (value.get("bytes") is None and not value.get("path")):
        raise ValueError(f"{where} holds no file")
    path, content = str(value.get("path") or ""), value.get("bytes")
    if content is None:
        if not _is_inside(path, source):
            raise ValueError(f"{where} names {path}, which is outside the dataset and is not read")
        with fsspec.open(path, "rb") as stream:
            content = stream.read()
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES[medium]:
        suffix = _guess_suffix(content, medium)
    if suffix not in _SUFFIXES[medium]:
        raise ValueError(f"{where} holds no {medium.lower()} of a known format: it begins with {content[:8]!r}")
    return content, suffix


def _is_inside(path: str, source: str) -> bool:
    """Return True if a path is a file of the dataset, or a member of such a file, as in `zip://a.png::FILE`."""
    *members, file = path.split("::")
    if not all(re.match(r"(zip|tar)://", member) for member in members):
        return False
    if "://" not in file:
        return Path(file).resolve().is_relative_to(Path(source).resolve())
    return file.startswith((f"hf://datasets/{source}@", f"hf://datasets/{source}/")) and ".." not in file.split("/")


def _guess_suffix(content: bytes, medium: str) -> str:
    """Return the suffix of a file by its first bytes; empty if the format is unknown."""
    if medium == "Audio":
        return next((suffix for start, suffix in _MAGIC.items() if content.startswith(start)), "")
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return f".{(image.format or '').lower()}"
    except Exception:  # Pillow's readers raise nearly anything on damaged files
        return ""
