"""`cpc data download`: audio or image columns of Hugging Face's datasets, written as the files that they hold.

The package is called `datasets`; it is imported by name, apart from the folder of cards that this repository has.
"""

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec

from cpc.config.argument_rules import OutFolder, checked
from cpc.config.extras import install_hint
from cpc.data.audio.headers import AUDIO_SUFFIXES, COUNT_COLUMNS
from cpc.data.images.folder import IMAGE_SUFFIXES
from cpc.data.store.atomic_folder import build_atomically
from cpc.data.store.splits import split_called
from cpc.data.store.untrusted import read_json
from cpc.interop.tars import LABELS_NAME, write_labels

_MAGIC = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3"}
_SUFFIXES = {"Audio": AUDIO_SUFFIXES, "Image": IMAGE_SUFFIXES}


@checked
def download_dataset(
    source: str,
    *,
    out: OutFolder,
    config: str | None = None,
    revision: str | None = None,
    splits: Sequence[str] | None = None,
    column: str | None = None,
    label: str | None = None,
) -> Path:
    """Write the recordings or pictures of a dataset as files, from which indexing or training goes on.

    Files keep their bytes. Images lie in `SPLIT/CLASS`, ready to train on. Audio comes with `labels.csv`, which holds
    every column of words or numbers, and the command says how to index it; `speaker_id` becomes `speaker`.

    Args:
        source: a dataset of the Hub, as ORG/NAME; or a folder of one.
        out: a new folder.
        config: which of its configurations, if it has several.
        revision: a branch, tag or commit of the Hub's.
        splits: those wanted, by the dataset's own names; all if not given. Names whose first word is train, training,
            val, valid, validation, dev, test, testing, eval, unlabelled or unsupervised are known. Empty ones are
            skipped, and stderr says so.
        column: of audio or images; the first one if not given.
        label: column of the classes of images; the first one of classes if not given. Where a split has images of no
            class beside others, they go to `unlabelled`.

    Raises:
        ValueError: before `out` exists: if it does already, the extra is missing, there is no such dataset, split or
            column, an option is none of this dataset's kind, it has several configurations and none is named, no column
            of audio or images, or no rows, or a row's file cannot be told, or is not the dataset's own.
        OSError: if the dataset cannot be read.
    """
    out = Path(out)
    if out.exists():
        raise ValueError(f"`out`={out} is there already: name a new folder, or remove it")
    tables = _open(source, config, revision)
    unknown = [name for name in splits or () if name not in tables]
    if unknown:
        raise ValueError(f"`splits` {unknown[0]}: {source} has {', '.join(tables)}")
    rows: dict[str, dict[str, str]] = {}
    kinds: set[str] = set()
    with build_atomically(out, lambda _: False, "out") as folder, _readable(source):
        for name in splits or tables:
            table, split = tables[name], _known_split(name, source)
            column_here, kind = _medium(table.features, column, source)
            kinds.add(kind)
            of_class = _class_column(table.features, label, source, kind)
            of_no_class: list[Path] = []
            num_before = len(rows)
            for number, row in enumerate(table.decode(False)):
                where = f"{source}, {name}, row {number}"
                content, suffix = file_of(row[column_here], kind, source, where)
                classes = [] if of_class is None else _class_folder(table.features[of_class], row[of_class])
                path = Path(split, *classes, f"{_plain(name)}-{number:08}{suffix}")
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
                rows[path.as_posix()] = {"split": split} | dict(_labels(table.features, row, column_here))
                if not classes:
                    of_no_class.append(path)
            if len(rows) == num_before:
                _tell_empty(source, name)
            elif of_class is not None and any(each.is_dir() for each in (folder / split).iterdir()):
                _move(of_no_class, folder, "unlabelled")
        if not rows:
            raise ValueError(f"{source} has no rows in {', '.join(splits or tables)}: choose others by `splits`")
        if kinds == {"Audio"}:
            write_labels(rows, folder / LABELS_NAME)
    print(f"{len(rows)} files written to {out}")
    if kinds == {"Audio"}:
        print(f"index them: cpc data index {out} --labels {out / LABELS_NAME}")
    return out


def _open(source: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """The splits of a dataset by name; of the Hub's, rows come as they are read."""
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise ValueError(f"Hugging Face's datasets need the package `datasets`: {install_hint('datasets')}") from error
    if revision is not None and Path(source).is_dir():
        raise ValueError(f"`revision` {revision}: {source} is a folder, and the Hub's datasets alone have revisions")
    if (Path(source) / "dataset_dict.json").is_file():
        if config is not None:
            raise ValueError(f"`config` {config}: {source} is a saved dataset, which has one configuration")
        with _readable(source):
            return dict(_saved(Path(source), library))
    with _readable(source):
        try:
            found = dict(library.load_dataset(source, config, revision=revision, streaming=True))
        except FileNotFoundError as error:
            raise ValueError(f"there is no dataset {source!r}, no folder and none of the Hub: {error}") from error
        except ValueError as error:
            available = re.search(r"[Aa]vailable[^[]*(\[.*\])", str(error))
            if available is None:
                raise
            problem = "has several configurations" if config is None else f"has no configuration {config!r}"
            raise ValueError(f"{source} {problem}: choose by `config` NAME one of {available[1]}") from error
        for name, table in found.items():
            if table.features is None:  # known by its rows alone
                found[name] = table._resolve_features()
        return found


def _saved(folder: Path, library: Any) -> Iterator[tuple[str, Any]]:
    for name in read_json(folder / "dataset_dict.json")["splits"]:
        if read_json(folder / name / "state.json")["_data_files"]:
            yield name, library.load_from_disk(folder / name).to_iterable_dataset()
        else:  # the package cannot read the empty ones that it writes
            _tell_empty(str(folder), name)


def _tell_empty(source: str, split: str) -> None:
    print(f"{source}: split {split!r} is empty, and skipped", file=sys.stderr)


@contextmanager
def _readable(source: str) -> Iterator[None]:
    """The readers of tables, archives and networks have errors of their own."""
    try:
        yield
    except ImportError as error:  # loose audio files pass the package's encoder of audio, needed or not
        raise ValueError(
            f"{source} holds loose files, which the package `datasets` reads with another one alone: {error} Or fetch "
            f"them as they are, `hf download {source} --repo-type dataset --local-dir DIR`, and `cpc data index DIR`"
        ) from error
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise OSError(f"{source} cannot be read: {type(error).__name__}: {error}") from error


def _move(paths: list[Path], folder: Path, split: str) -> None:
    for path in paths:
        (folder / split).mkdir(exist_ok=True)
        (folder / path).rename(folder / split / path.name)


def _known_split(name: str, source: str) -> str:
    word = re.split(r"[\W\d_]", name)[0]  # whole: `validated` of Common Voice holds its train, dev and test
    if split := split_called(word):
        return split
    raise ValueError(
        f"{source}: split {name!r} is none of train, valid, test and unlabelled by its name: choose others by `splits`"
    )


def _medium(features: Mapping[str, Any], column: str | None, source: str) -> tuple[str, str]:
    """The column of audio or images, and which of the two it is."""
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    found = [name for name, kind in kinds.items() if kind in _SUFFIXES]
    if not found or column not in (None, *found):
        there = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(f"{source} has the columns {there}: `column` must be one of Audio or Image")
    chosen = column or found[0]
    return chosen, kinds[chosen]


def _class_column(features: Mapping[str, Any], label: str | None, source: str, kind: str) -> str | None:
    if kind != "Image":
        if label is not None:
            raise ValueError(f"`label` {label}: {source} holds audio, whose labels all go to {LABELS_NAME}")
        return None
    found = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    if label is not None and label not in features:
        raise ValueError(f"`label` {label}: {source} has the columns {', '.join(features)}")
    return label or next(iter(found), None)


def _class_folder(feature: Any, value: Any) -> list[str]:
    """The folder of a class; none where it is not known."""
    name = _class_name(feature, value)
    return [_plain(name)] if name else []


def _class_name(feature: Any, value: Any) -> str:
    if type(feature).__name__ == "ClassLabel":
        return "" if value in (None, -1) else str(feature.int2str(value))
    return "" if value is None else str(value)


def _plain(name: str) -> str:
    """A name as that of one file or folder, its other characters as in addresses: names that differ stay so."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode())

    return re.sub(r"[^\w .,+()'&-]|^[. ]|[. ]$", escaped, name)


def _labels(features: Mapping[str, Any], row: Mapping[str, Any], column: str) -> Iterator[tuple[str, str]]:
    """Every column of words and numbers, by what the manifest calls it."""
    for name, value in row.items():
        if name == column or name in ("path", "split", *COUNT_COLUMNS):
            continue
        if isinstance(value, bool | int | float | str):
            own = "speaker" if name == "speaker_id" and "speaker" not in row else name
            yield own, _class_name(features[name], value)


def file_of(value: Mapping[str, Any] | None, kind: str, source: str, where: str) -> tuple[bytes, str]:
    """The bytes of a cell's file, and its suffix.

    Raises:
        ValueError: if the cell names a file that is not the dataset's own, or its kind cannot be told.
    """
    if not value or (value.get("bytes") is None and not value.get("path")):
        raise ValueError(f"{where} holds no file")
    path, content = str(value.get("path") or ""), value.get("bytes")
    if content is None:
        if not _is_of(path, source):
            raise ValueError(f"{where} names {path}, outside of the dataset: refused")
        with fsspec.open(path, "rb") as stream:
            content = stream.read()
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES[kind]:
        suffix = _suffix_of(content, kind)
    if suffix not in _SUFFIXES[kind]:
        raise ValueError(f"{where} holds no {kind.lower()} file that is known: it begins with {content[:8]!r}")
    return content, suffix


def _is_of(path: str, source: str) -> bool:
    """Whether a dataset's file is meant, or a member of one, as in `zip://a.png::FILE`."""
    *members, file = path.split("::")
    if not all(re.match(r"(zip|tar)://", member) for member in members):
        return False
    if "://" not in file:
        return Path(file).resolve().is_relative_to(Path(source).resolve())
    return file.startswith((f"hf://datasets/{source}@", f"hf://datasets/{source}/")) and ".." not in file.split("/")


def _suffix_of(content: bytes, kind: str) -> str:
    """The suffix of a file by what it holds; empty if it is unknown."""
    if kind == "Audio":
        return next((suffix for start, suffix in _MAGIC.items() if content.startswith(start)), "")
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return f".{(image.format or '').lower()}"
    except Exception:  # Pillow's readers raise nearly anything on damaged files
        return ""
