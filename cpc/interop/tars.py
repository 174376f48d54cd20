"""`cpc data tar` and `cpc data untar`: convert corpora of files to WebDataset's tars and back."""

import errno
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from cpc.config.argument_rules import NewFolder, Positive, checked
from cpc.data.audio.headers import AUDIO_SUFFIXES, COUNT_COLUMNS
from cpc.data.audio.manifest import is_manifest, read_manifest
from cpc.data.images.table import IMAGE_SUFFIXES
from cpc.data.store.atomic import build_atomically, json_text
from cpc.data.store.folders import find_files, name_a_few, require_utf8
from cpc.data.store.splits import split_called, split_named
from cpc.data.store.tables import format_table, has_line_break
from cpc.data.store.tars import Sample, read_samples, write_samples
from cpc.data.store.text_files import decode

LABELS_NAME = "labels.csv"
_TEXT_PARTS = ("cls", "txt")  # parts of a sample that hold one label each
_LINE_BREAKS = re.compile(r"[\r\n]+")
_SUFFIXES = {"audio": AUDIO_SUFFIXES, "images": IMAGE_SUFFIXES}
# Errors for file names that are too long or below another file.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)


@checked
def tar_corpus(data: str | Path, *, out: NewFolder, tar_mb: Positive = 100.0) -> None:
    """Write a corpus of files as tars that WebDataset reads: unchanged files, each beside a JSON of its labels.

    Args:
        data: manifest of audio, or its folder; or a folder of images.
        out: a new folder for `00000.tar`, `00001.tar` and so on.
        tar_mb: size of a tar, in 1e6 bytes.

    Raises:
        ValueError: if `out` exists, there are no files, or a name or label is not UTF-8.
    """
    data, out = Path(data), Path(out)
    samples = list(_manifest_samples(data) if is_manifest(data) else _image_samples(data))
    require_utf8((text for _, labels in samples for text in labels.values()), "the JSON of a tar")
    with build_atomically(out, lambda _: False, "out") as folder:
        contents = (
            (
                f"{index:08}",
                {file.suffix[1:].lower(): file.read_bytes(), "json": json_text(labels, ensure_ascii=False).encode()},
            )
            for index, (file, labels) in enumerate(samples)
        )
        num_tars = write_samples(contents, folder, round(tar_mb * 1e6))
    print(f"{len(samples)} files in {num_tars} tars in {out}")


@checked
def untar_corpus(tars: Sequence[str | Path], *, out: NewFolder, skip_bad: bool = False) -> None:
    """Write the files of WebDataset's tars to a new folder, ready for `cpc data index` or training.

    The name of a file is the `path` in the JSON of its sample, or else TAR/KEY. An image with a class (`.cls`) goes to
    the folder of its class, below its split if the names of the tars name splits (`val-000.tar`). An image without a
    class goes to its split or to `unlabelled`. All other values of JSON, `.cls` and `.txt` go to OUT/labels.csv. For
    audio, `cpc data index OUT --labels OUT/labels.csv` writes the manifest.

    Args:
        tars: files, and folders to search for `*.tar`.
        out: a new folder.
        skip_bad: leave out samples without audio or image, and all samples after the damage in a tar; warn how many.

    Raises:
        ValueError: if `read_samples` raises one; if the name of a file leads out of the folder, repeats, is too long or
            lies below another file; if a sample has no audio or image, or several; if a JSON is damaged; or if audio
            and images are mixed. After such an error nothing is written to `out`.
    """
    out = Path(out)
    files = [file for path in tars for file in _find_tars(Path(path))]
    rows: dict[str, dict[str, str]] = {}
    media: set[str] = set()
    bad: list[str] = []
    with build_atomically(out, lambda _: False, "out") as folder:
        for tar in files:
            try:
                for sample in read_samples(tar):
                    try:
                        medium, suffix = _medium(sample)
                        path, labels = _path_and_labels(sample, medium, suffix)
                        if path in rows:
                            raise ValueError(f"{tar}: sample {sample.key!r} is {path}, which exists already")
                        _write(sample, suffix, folder, path)
                    except ValueError as error:
                        if not skip_bad:
                            raise
                        bad.append(str(error))
                        continue
                    media.add(medium)
                    if len(media) > 1:
                        raise ValueError(
                            f"{tar}: sample {sample.key!r} is of {medium}, but others are not: separate them"
                        )
                    rows[path] = labels
            except ValueError as error:
                if not skip_bad or len(media) > 1:
                    raise
                bad.append(str(error))
        if not rows:
            raise ValueError(f"the tars hold no sample that can be used:\n{name_a_few(bad)}")
        if media == {"images"}:
            rows = _move_classes_to_train(rows, folder)
        has_labels = any(rows.values())
        if has_labels:
            write_labels(rows, folder / LABELS_NAME)
    if bad:
        warnings.warn(f"left out {len(bad)} samples or rests of tars:\n{name_a_few(bad)}", stacklevel=2)
    labels_note = f", their labels to {LABELS_NAME}" if has_labels else ""
    print(f"{len(rows)} files of {media.pop()} written to {out}{labels_note}")


def _manifest_samples(data: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    manifest = read_manifest(data)
    columns = {name: values for name, values in manifest.columns.items() if name not in COUNT_COLUMNS}
    for row, file in enumerate(manifest.files):
        labels = {name: values[row] for name, values in columns.items()}
        if PurePosixPath(labels["path"]).is_absolute() or ".." in PurePosixPath(labels["path"]).parts:
            del labels["path"]  # a path outside the corpus is useless on another machine
        yield file, labels


def _image_samples(data: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    for path in find_files(data, IMAGE_SUFFIXES, "image"):
        yield data / path, {"path": path}


def _find_tars(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [path / name for name in find_files(path, (".tar",), "tar")]


def _medium(sample: Sample) -> tuple[str, str]:
    """Return the medium of a sample, `audio` or `images`, and the suffix of its file."""
    files = [
        (medium, part) for medium, suffixes in _SUFFIXES.items() for part in sample.parts if f".{part}" in suffixes
    ]
    if len(files) != 1:
        raise ValueError(
            f"{sample.tar}: sample {sample.key!r} has {', '.join(sample.parts) or 'no parts'}, but needs one file of "
            "audio, or one image"
        )
    return files[0]


def _path_and_labels(sample: Sample, medium: str, suffix: str) -> tuple[str, dict[str, str]]:
    labels = {name: _text(sample, name) for name in _TEXT_PARTS if name in sample.parts}
    if "json" in sample.parts:
        try:
            values = json.loads(sample.parts["json"])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{sample.tar}: the JSON of sample {sample.key!r} is damaged: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{sample.tar}: the JSON of sample {sample.key!r} is not an object of names and values")
        labels |= {str(name): _cell(value) for name, value in values.items() if not isinstance(value, dict | list)}
    bad_names = [name for name in labels if not name or name != name.strip() or has_line_break(name)]
    if bad_names:
        raise ValueError(
            f"{sample.tar}: the JSON of sample {sample.key!r} has the name {bad_names[0]!r}, which a column cannot have"
        )
    try:
        "".join([*labels, *labels.values()]).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{sample.tar}: the JSON of sample {sample.key!r} holds an incomplete character: {error}"
        ) from error
    path = labels.pop("path", "")
    if not path:
        name = f"{sample.key}.{suffix}"
        path = _image_path(sample.tar, name, labels.get("cls")) if medium == "images" else f"{sample.tar.stem}/{name}"
    pure = PurePosixPath(path)
    is_plain = all(part.isprintable() and not part.startswith((".", "~")) and "\\" not in part for part in pure.parts)
    if (
        not pure.parts
        or pure.is_absolute()
        or not is_plain
        or ":" in pure.parts[0]
        or pure.suffix.lower() != f".{suffix}"
    ):
        raise ValueError(f"{sample.tar}: sample {sample.key!r} would be written to {path!r}: rename it")
    return pure.as_posix(), {name: value for name, value in labels.items() if name not in COUNT_COLUMNS}


def _image_path(tar: Path, name: str, class_name: str | None) -> str:
    """Return the path of an image. Without a class, a `/` in the key becomes `-`, since folders are classes."""
    split, name = split_named(tar.stem), f"{tar.stem}-{name}"
    if class_name:
        return f"{split}/{class_name}/{name}" if split else f"{class_name}/{name}"
    return f"{split or 'unlabelled'}/{name.replace('/', '-')}"


def _move_classes_to_train(rows: dict[str, dict[str, str]], folder: Path) -> dict[str, dict[str, str]]:
    """Move folders of classes that lie beside `unlabelled` into `train`, the layout of a source of images."""
    tops = {path.partition("/")[0] for path in rows if "/" in path}
    classes = {top for top in tops if not split_called(top)}
    splits = tops - classes
    if not classes or not splits:
        return rows
    if splits != {"unlabelled"}:
        raise ValueError(
            f"some tars name a split ({', '.join(sorted(splits))}), but tars with the classes "
            f"{', '.join(sorted(classes)[:5])} do not: rename these tars, or untar them separately"
        )
    (folder / "train").mkdir()
    for name in classes:
        (folder / name).rename(folder / "train" / name)
    return {f"train/{path}" if path.partition("/")[0] in classes else path: labels for path, labels in rows.items()}


def _write(sample: Sample, suffix: str, folder: Path, path: str) -> None:
    try:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(sample.parts[suffix])
    except OSError as error:
        if error.errno not in _NAME_ERRORS:
            raise
        raise ValueError(
            f"{sample.tar}: sample {sample.key!r} cannot be written to {path!r} ({error.strerror}): rename it"
        ) from error


def _text(sample: Sample, part: str) -> str:
    return decode(sample.parts[part], f"{sample.tar}: {part} of sample {sample.key!r}").strip()


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def write_labels(rows: dict[str, dict[str, str]], table: Path) -> None:
    """Write a CSV with a row of labels for each path; a cell is empty if the path lacks the label.

    A row is one line of the table: line breaks inside a label become blanks, and a warning counts them.
    """
    names = list(dict.fromkeys(name for labels in rows.values() for name in labels))
    columns = {name: [labels.get(name, "") for labels in rows.values()] for name in names}
    num_broken = sum(map(has_line_break, chain(*columns.values())))
    if num_broken:
        warnings.warn(f"{table.name}: line breaks inside {num_broken} labels were written as blanks", stacklevel=3)
        columns = {name: [_LINE_BREAKS.sub(" ", cell) for cell in cells] for name, cells in columns.items()}
    table.write_bytes(format_table({"path": list(rows)} | columns))
