"""The corpora of the shipped models, prepared from the folders that datasets/*/card.md describe."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from cpc.data.audio.index import index_folder

DATASETS = Path(__file__).parents[2] / "datasets"
Row = dict[str, str]


def prepare(corpus: str, root: Path, out: Path) -> Path:
    """Run datasets/CORPUS/prepare.py, unless an earlier call did, and return the file that it wrote."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, DATASETS / corpus / "prepare.py", root, "--out", out], check=True)
    return out


def npz(corpus: str) -> Callable[[Path, Path], Path]:
    """Return the function that writes a corpus of signals as one npz file."""
    return lambda data, out: prepare(corpus, data / corpus, out / f"{corpus}.npz")


def photographs(data: Path, out: Path) -> Path:
    """Copy the photographs of the classes to pretrain on, both parts of Caltech-101's split."""
    return _copy_classes(data, out / "photographs", is_held_out=False)


def photographs_of_other_classes(data: Path, out: Path) -> Path:
    """Copy the photographs of the classes that are kept apart, with their split."""
    return _copy_classes(data, out / "other_classes", is_held_out=True)


def _copy_classes(data: Path, out: Path, is_held_out: bool) -> Path:
    """Copy every second class (kept apart), or the others, whose two parts become the split `train`."""
    classes = sorted(folder.name for folder in (data / "caltech101_small" / "train").iterdir())
    for part in ("train", "test"):
        for index, name in enumerate(classes):
            if (index % 2 == 1) == is_held_out:
                target = out / (part if is_held_out else "train") / name
                shutil.copytree(data / "caltech101_small" / part / name, target, dirs_exist_ok=True)
    return out


def an4(data: Path, out: Path) -> Path:
    """Write the manifest of AN4."""
    return prepare("an4", data / "an4", out / "an4.csv")


def timit(data: Path, out: Path) -> Path:
    """Write a manifest of the TIMIT sample, without the two sentences that all speakers read.

    The split says which sentences a speaker probe trains and is tested on: five of each speaker, and three others.
    """
    rows = [row for row in read(timit_all(data, out) / "manifest.csv") if not Path(row["path"]).stem.startswith("sa")]
    return write(out / "timit_without_sa", rows, lambda row: "train" if "/sx" in row["path"] else "test")


def timit_all(data: Path, out: Path) -> Path:
    """Write a manifest of all 80 sentences of the TIMIT sample."""
    folder = out / "timit"
    if not folder.exists():
        folder.mkdir(parents=True)
        index_folder(data / "timit_dev", speaker_level=0, out=folder)
    return folder


def read(path: Path) -> list[Row]:
    """Return the rows of a manifest, with absolute paths of the files."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [row | {"path": str((path.parent / row["path"]).resolve())} for row in csv.DictReader(stream)]


def write(folder: Path, rows: Iterable[Row], split: Callable[[Row], str] = lambda row: row["split"]) -> Path:
    """Write a manifest with the columns that all corpora have, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "manifest.csv").open("w", newline="", encoding="utf-8") as stream:
        columns = ["path", "split", "speaker", "num_samples", "sample_rate_hz", "num_channels"]
        table = csv.DictWriter(stream, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(row | {"split": split(row)} for row in rows)
    return folder
