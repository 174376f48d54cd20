import io
import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from scipy import sparse
from shared_data import real
from sklearn.datasets import load_svmlight_file

from benchmarks.extreme.points import ExtremePoints, read_extreme, write_extreme


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "points.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def as_lists(points: ExtremePoints) -> list[tuple[list[int], dict[int, float]]]:
    found = []
    for row in range(len(points)):
        entries = slice(points.features.indptr[row], points.features.indptr[row + 1])
        pairs = zip(points.features.indices[entries].tolist(), points.features.data[entries].tolist(), strict=True)
        classes = points.labels.indices[points.labels.indptr[row] : points.labels.indptr[row + 1]]
        found.append((classes.tolist(), dict(pairs)))
    return found


def slowly(text: str) -> list[tuple[list[int], dict[int, float]]]:
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        labels = [int(label) for label in words.pop(0).split(",")] if words and ":" not in words[0] else []
        pairs = sorted((int(feature), float(np.float32(value))) for feature, value in (w.split(":") for w in words))
        found.append((sorted(labels), dict(pairs)))
    return found


def random_points(num_points: int, num_features: int, num_classes: int, seed: int) -> ExtremePoints:
    rng = np.random.default_rng(seed)
    features = sparse.random_array((num_points, num_features), density=0.2, format="csr", dtype=np.float32, rng=rng)
    features.data *= 10.0 ** rng.integers(-12, 12, len(features.data))
    features.data[::3] *= -1
    labels = sparse.random_array((num_points, num_classes), density=0.3, format="csr", rng=rng).astype(bool)
    for rows in (features, labels):
        rows.sort_indices()
    return ExtremePoints(features, labels)


def test_the_forms_that_a_line_can_have(tmp_path: Path) -> None:
    lines = [
        "10 20 30",
        "3,1,29 0:1 19:0.25",
        " 4:2.5",  # no label, as the repository writes it
        "5:.5 6:7.",
        "7",
        "",
        "0 1:1e-3  2:-2.5E+2\t3:+4 ",
        "2\r",
        "12 17:123456789.123456 18:0.000000123456789012345 19:12345678901234567890",
        "28,5 0:1",
        "  6 9:3",
    ]
    text = "\n".join(lines)  # the last line may lack its newline
    points = read_extreme(written(tmp_path, text))
    assert as_lists(points) == slowly(text)
    assert points.features.dtype == np.float32
    assert points.labels.dtype == bool
    assert (len(points), points.num_features, points.num_classes) == (10, 20, 30)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_comes_back_bit_for_bit(tmp_path: Path, seed: int) -> None:
    points = random_points(40, 30, 25, seed)
    path = tmp_path / "points.txt"
    write_extreme(points, path)
    read = read_extreme(path)
    assert as_lists(read) == as_lists(points) == slowly(path.read_text())
    assert read.features.shape == points.features.shape


def test_decimals_of_every_length_are_rounded_as_python_rounds_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [
        f"{whole}.{''.join(map(str, rng.integers(0, 10, width)))}"
        for width in range(1, 25)
        for whole in (0, 9, 10**9 + 7)
    ]
    pairs = " ".join(f"{column}:{text}" for column, text in enumerate(texts))
    read = read_extreme(written(tmp_path, f"1 {len(texts)} 1\n0 {pairs}\n"))
    assert read.features.data.tolist() == [float(np.float32(text)) for text in texts]


def test_blocks_end_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = random_points(60, 30, 25, seed=4)
    write_extreme(points, tmp_path / "points.txt")
    monkeypatch.setattr("benchmarks.extreme.points._BLOCK_BYTES", 300)
    assert as_lists(read_extreme(tmp_path / "points.txt")) == as_lists(points)
    lines = (tmp_path / "points.txt").read_text().splitlines()
    lines[41] = "0 1:x"
    broken = written(tmp_path, "\n".join(lines))
    refuses(r"points\.txt, line 42: '0 1:x' is not of the form", read_extreme, broken)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1 2", "'1 2' is not of the form `label,label feature:value feature:value`"),
        ("1,2:1", "is not of the form"),
        ("1 -2:3", "is not of the form"),
        ("1 2:nan", "is not of the form"),
        ("1 2:1e39", "a value beyond the range of float32"),
        ("1 9:1", "feature 9, but by the header features run from 0 to 8"),
        ("1,7 2:1", "label 7, but by the header labels run from 0 to 6"),
        ("1 2:1 5:1 2:3", "feature 2 is given twice"),
        ("1,2,1 2:3", "label 1 is given twice"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    good = "1,2 3:4\n 5:6"
    path = written(tmp_path, f"5 9 7\n{good}\n{line}\n{good}\n")
    refuses(rf"points\.txt, line 4: .*{re.escape(complaint)}", read_extreme, path)


@pytest.mark.parametrize("header", ["", "3 4", "3 4 x", "3 4 5 6", "-3 4 5", "0 0:1"])
def test_headers_of_another_form(tmp_path: Path, header: str) -> None:
    refuses(r"points\.txt, line 1: .*`points features classes`", read_extreme, written(tmp_path, f"{header}\n1 2:3\n"))


@pytest.mark.parametrize("num_points", [1, 3])
def test_another_number_of_points_than_the_header_says(tmp_path: Path, num_points: int) -> None:
    path = written(tmp_path, f"{num_points} 4 4\n1 2:3\n2 3:1\n")
    refuses(f"its header says {num_points} points, but 2 lines follow", read_extreme, path)


def test_bibtex_as_scikit_learn_reads_it() -> None:
    sizes = {"train": 4880, "test": 2515}
    for split, size in sizes.items():
        path = real("multilabel/bibtex") / f"bibtex_{split}.xc.txt"
        points = read_extreme(path)
        _, rest = path.read_bytes().split(b"\n", 1)
        features, labels = load_svmlight_file(io.BytesIO(rest), n_features=1836, multilabel=True, zero_based=True)
        assert points.features.shape == (size, 1836)
        assert points.labels.shape == (size, 159)
        assert (points.features != features.astype(np.float32)).nnz == 0
        assert [tuple(each) for each, _ in as_lists(points)] == [tuple(sorted(map(int, each))) for each in labels]
