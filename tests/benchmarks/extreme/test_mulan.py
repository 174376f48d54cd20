import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from benchmarks.extreme.mulan import prepare_mulan_from_command_line, read_mulan
from benchmarks.extreme.points import read_extreme

XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels"><label name="b 1"></label><label name="a"></label></labels>
"""
HEAD = """% a comment
@relation 'two labels'
@attribute x1 numeric
@attribute 'b 1' {0,1}
@ATTRIBUTE x2 {0, 1}
@attribute a {0,1}
@attribute x3 real

@data
"""
DENSE = "2.5,1,0,0,-1e-3\n0,1,1,1,0\n\n0,0,0,0,0\n"
SPARSE = "{0 2.5, 1 1,4 -1e-3}\n{3 1,2 1,1 1}\n{}\n"


def written(folder: Path, data: str, name: str = "toy-train.arff", xml: str = XML) -> tuple[Path, Path]:
    (folder / name).write_text(HEAD + data)
    (folder / "toy.xml").write_text(xml)
    return folder / name, folder / "toy.xml"


@pytest.mark.parametrize("data", [DENSE, SPARSE])
def test_labels_and_features_in_the_order_of_the_arff_file(tmp_path: Path, data: str) -> None:
    points = read_mulan(*written(tmp_path, data))
    assert points.labels.toarray().tolist() == [[True, False], [True, True], [False, False]]
    expected = np.array([[2.5, 0, -1e-3], [0, 1, 0], [0, 0, 0]], np.float32)
    assert points.features.toarray().tolist() == expected.tolist()
    assert points.features.nnz == 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1,0,1,0", "4 values for 5 attributes"),
        ("{5 1}", "attribute 5 of 5, counted from 0, is out of range or given twice"),
        ("{1 1 1}", "too many values"),
        ("{0 ?}", "could not convert"),
        ("nan,0,1,0,1", "attribute 0 has the value nan"),
    ],
)
def test_malformed_points_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    refuses(rf"toy-train\.arff, line 10: .*{complaint}", read_mulan, *written(tmp_path, f"{line}\n"))


def test_other_refusals(tmp_path: Path) -> None:
    refuses("a label has the value 2, but 0 and 1 are legal", read_mulan, *written(tmp_path, "{1 2}\n"))
    refuses("that are no attributes of .*: c", read_mulan, *written(tmp_path, SPARSE, xml=XML.replace('"a"', '"c"')))
    refuses(r"toy\.xml names no label", read_mulan, *written(tmp_path, SPARSE, xml="<labels/>"))
    refuses(r"toy\.xml is not XML", read_mulan, *written(tmp_path, SPARSE, xml="<labels"))
    (tmp_path / "toy-train.arff").write_text("oh\n")
    refuses("line 1: 'oh' is no @attribute", read_mulan, tmp_path / "toy-train.arff", tmp_path / "toy.xml")


def test_prepared_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path), "--out", str(tmp_path / "out")])
    written(tmp_path, SPARSE)
    with pytest.raises(SystemExit, match=r"toy-test\.arff"):
        prepare_mulan_from_command_line("toy", published={"train": 3, "test": 2})
    assert not (tmp_path / "out").exists(), "a refused corpus leaves nothing"
    written(tmp_path, DENSE, "toy-test.arff")
    prepare_mulan_from_command_line("toy", published={"train": 3, "test": 2})
    printed = capsys.readouterr().out.splitlines()
    assert "published" not in printed[0]
    assert printed[1].endswith("(published: 2)")
    for split in ("train", "test"):
        points = read_extreme(tmp_path / "out" / f"toy_{split}.xc.txt")
        assert points.labels.toarray().tolist() == [[True, False], [True, True], [False, False]]
