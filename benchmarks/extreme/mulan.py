"""Mulan's format of points with several labels, an ARFF file and an XML file of the labels' names, as `ExtremePoints`.

P points, F features, n classes.
"""

import argparse
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from scipy import sparse

from benchmarks.extreme.points import ExtremePoints, write_extreme

_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:\\.|[^'])*'|"(?:\\.|[^"])*"|\S+)\s+\S""", re.IGNORECASE)


def read_mulan(arff: str | Path, xml: str | Path) -> ExtremePoints:
    """Read points whose features are numbers; classes and features are counted from 0, in the ARFF file's order.

    Args:
        arff: attributes and points, each on one line, dense (`0,1.5,1`) or sparse (`{1 1.5, 2 1}`). A label is an
            attribute that is 0 or 1.
        xml: names the attributes that are labels.

    Raises:
        ValueError: naming the file, and the line of a malformed point; if a label of the XML file is no attribute of
            the ARFF file, or has another value than 0 and 1.
    """
    arff = Path(arff)
    names, rows = _read_arff(arff)
    is_label = np.isin(names, label_names := _read_label_names(Path(xml)))
    if is_label.sum() != len(label_names):
        missing = sorted(set(label_names) - set(names))
        raise ValueError(f"{xml}: labels that are no attributes of {arff}, or named twice: {', '.join(missing[:10])}")
    points = sparse.csr_array(rows)
    labels = sparse.csr_array(points[:, is_label])
    if not (labels.data == 1).all():
        raise ValueError(f"{arff}: a label has the value {labels.data[labels.data != 1][0]:g}, but 0 and 1 are legal")
    return ExtremePoints(sparse.csr_array(points[:, ~is_label]).astype(np.float32), labels.astype(bool))


def _read_arff(path: Path) -> tuple[list[str], sparse.csr_array]:
    names: list[str] = []
    columns: list[int] = []
    values: list[float] = []
    offsets = [0]
    is_data = False
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            text = line.strip()
            if not text or text.startswith("%"):
                continue
            if is_data:
                try:
                    for column, value in _entries(text, len(names)):
                        columns.append(column)
                        values.append(value)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
                offsets.append(len(columns))
            elif text.lower() == "@data":
                is_data = True
            elif attribute := _ATTRIBUTE.match(text):
                names.append(attribute[1].strip("'\""))
            elif not text.lower().startswith("@relation"):
                raise ValueError(f"{path}, line {number}: {text[:80]!r} is no @attribute, @relation or @data")
    rows = sparse.csr_array((values, columns, offsets), shape=(len(offsets) - 1, len(names)))
    rows.sort_indices()
    rows.eliminate_zeros()
    return names, rows


def _entries(text: str, num_attributes: int) -> Iterator[tuple[int, float]]:
    """Column and value of every number on a line that is not left out."""
    is_sparse = text.startswith("{") and text.endswith("}")
    cells = next(csv.reader([text.strip("{}")], skipinitialspace=True), [])
    if not is_sparse and len(cells) != num_attributes:
        raise ValueError(f"{len(cells)} values for {num_attributes} attributes")
    seen = set()
    for place, cell in enumerate(cells):
        column, value = cell.split() if is_sparse else (place, cell)
        column = int(column)
        if not 0 <= column < num_attributes or column in seen:
            raise ValueError(f"attribute {column} of {num_attributes}, counted from 0, is out of range or given twice")
        seen.add(column)
        if not np.isfinite(float(value)):
            raise ValueError(f"attribute {column} has the value {value}: only finite numbers are legal")
        yield column, float(value)


def _read_label_names(path: Path) -> list[str]:
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is not XML ({error})") from error
    names = [label.attrib["name"] for label in root.iter() if label.tag.endswith("label") and "name" in label.attrib]
    if not names:
        raise ValueError(f"{path} names no label")
    return names


def prepare_mulan_from_command_line(name: str, published: dict[str, int]) -> None:
    """Write NAME_train.xc.txt and NAME_test.xc.txt from Mulan's NAME-train.arff, NAME-test.arff and NAME.xml.

    Args:
        name: of the corpus.
        published: how many points each split is known to have; another number is pointed out.
    """
    parser = argparse.ArgumentParser(description=f"Prepare {name} (see card.md).", allow_abbrev=False)
    parser.add_argument("root", type=Path, help=f"folder with {name}-train.arff, {name}-test.arff and {name}.xml")
    parser.add_argument("--out", type=Path, help="folder for the two files; ROOT unless given")
    options = parser.parse_args()
    out = options.root if options.out is None else options.out
    try:
        found = {
            split: read_mulan(options.root / f"{name}-{split}.arff", options.root / f"{name}.xml")
            for split in published
        }
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"{error}")
    out.mkdir(parents=True, exist_ok=True)
    for split, points in found.items():
        write_extreme(points, out / f"{name}_{split}.xc.txt")
        known = "" if len(points) == published[split] else f"  (published: {published[split]})"
        print(
            f"{split:6} {len(points):7} points {points.num_features:7} features {points.num_classes:7} classes{known}"
        )
