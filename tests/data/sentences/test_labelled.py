"""Files of labelled sentences, and bags of their words against a loop."""

from collections import Counter
from itertools import pairwise
from math import log
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from refusals import refuses
from shared_data import real

from cpc.data.sentences.labelled import bags, read_labelled, set_and_split, unit_rows
from cpc.probes.store import as_tensor


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "TREC.train.all").write_text("0 how far ?\n1 who was it ?\n\n0 how old ?\n1 who ?\n")
    (tmp_path / "TREC.test.all").write_text("1 who did ?\n0 how so ?\n")
    (tmp_path / "rt-polarity.all").write_bytes(b"0 dull .\n1 a caf\xe9\n1\n0 so\n")
    (tmp_path / "mood.tsv").write_text("good mood\tfine day\nbad mood\tgrey sky\ngood mood\tblue sky\nbad mood\train\n")
    return tmp_path


def test_sets_are_files_that_differ_in_their_split(source: Path) -> None:
    found = read_labelled(source, "latin-1")
    assert found.names == ["MR", "TREC", "mood"]
    rows = found.rows("TREC")
    assert sorted(found.splits[row] for row in rows) == ["test"] * 2 + ["train"] * 4
    assert {found.sentences[row] for row in rows if found.splits[row] == "test"} == {"who did ?", "how so ?"}
    assert [found.sentences[row] for row in found.rows("MR")] == ["dull .", "a caf\xe9", "", "so"]
    assert {found.splits[row] for row in found.rows("MR")} == {"all"}
    assert {found.labels[row] for row in found.rows("mood")} == {"good mood", "bad mood"}
    for name in ("TREC.test.all", str(source / "TREC.train.all")):
        assert found.rows(name).tolist() == rows.tolist()
    assert read_labelled(source / "mood.tsv").names == ["mood"]


def test_what_a_name_says() -> None:
    assert set_and_split("stsa.binary.dev.all") == ("stsa.binary", "valid")
    assert set_and_split("train.txt") == ("train.txt", "train")
    assert set_and_split("mpqa.all") == ("MPQA", "all")


def test_refusals(source: Path) -> None:
    refuses(r"rt-polarity\.all, byte 16: 0xe9 is not UTF-8.*`encoding`", read_labelled, source)
    refuses("no such set; it has MR, TREC, mood", read_labelled(source, "latin-1").rows, "CR")
    refuses("no such file or folder of labelled", read_labelled, source / "none")
    (source / "novel.txt").write_text("\n".join(f"Word{n} begins line {n}." for n in range(30)))
    refuses(r"novel\.txt has 30 lines with 30 different labels", read_labelled, source, "latin-1")
    (source / "novel.txt").write_text("\n")
    refuses(r"novel\.txt has 0 lines", read_labelled, source, "latin-1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mood.txt", 'yes,"so it is"\nno,never\n', r"mood\.txt, line 1: the label 'yes,\"so'.*csv\.reader"),
        ("mood.tsv", '"pos"\t"so ""it"" is"\n"neg"\t"never"\n', "line 1: the label '\"pos\"'"),
        ("mood.tsv", "pos\tso it is\nneg never\n", "line 2: 0 tabs"),
        ("mood.tsv", "pos\tso\n\tnever\n", "line 2: no label"),
        ("mood.csv", "0 so\n1 no\n", r"mood\.csv: labelled sentences are not read from a CSV"),
    ],
)
def test_tables_of_other_formats_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    refuses(message, read_labelled, tmp_path / name)
    (tmp_path / name).rename(tmp_path / "mood.csv")
    refuses(r"found: 1 \.csv\).*if you have a CSV, write each line as", read_labelled, tmp_path)


def test_labels_and_words_have_one_spelling(tmp_path: Path) -> None:
    lines = ["só\tmuito é", "não\tpouco", "só\tnada é"]
    (tmp_path / "mood.tsv").write_text("\n".join([*lines, *(normalize("NFD", line) for line in lines)]))
    found = read_labelled(tmp_path)
    assert set(found.labels) == {"só", "não"}
    assert found.bags("bow").shape == (6, 4)
    assert bags("bow", [[normalize("NFD", "हिन्दी é"), "é हिन्दी"]]).shape == (2, 2)


def test_the_real_sets_have_their_published_sizes() -> None:
    found = read_labelled(real("sentclf"), "latin-1")
    label_counts = {name: Counter(found.labels[row] for row in found.rows(name)) for name in found.names}
    assert sorted(label_counts["MR"].values()) == [5331, 5331]
    assert sorted(label_counts["MPQA"].values()) == [3312, 7294]
    assert Counter(found.splits[row] for row in found.rows("TREC")) == {"train": 5452, "test": 500}


def test_bags_are_counts_by_set() -> None:
    sets = [["a b a", "b ?"], ["a", "c c", "c a"]]
    x = bags("bow", sets).toarray()
    assert x.shape == (5, 5)  # ? a b, and a c
    blocks = np.array([[0, 2, 1], [1, 0, 1]]), np.array([[1, 0], [0, 2], [1, 1]])
    expected = np.zeros((5, 5))
    for block, rows, columns in zip(blocks, (slice(2), slice(2, 5)), (slice(3), slice(3, 5)), strict=True):
        expected[rows, columns] = block / np.sqrt((block**2).sum() / len(block))
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_tfidf_weighs_words_and_pairs() -> None:
    sentences = ["It 's good", "it is bad"]
    x = bags("tfidf", [sentences]).toarray()
    words = [["it", "'", "s", "good"], ["it", "is", "bad"]]
    grams = [Counter(each) + Counter(pairwise(each)) for each in words]
    num_with = Counter(gram for each in grams for gram in each)
    for row, each in zip(x, grams, strict=True):
        weights = np.array([count * (log(3 / (1 + num_with[gram])) + 1) for gram, count in each.items()])
        np.testing.assert_allclose(sorted(row[row > 0]), sorted(weights / np.linalg.norm(weights)), rtol=1e-6)


def test_sparse_rows_are_tensors() -> None:
    x = unit_rows(bags("bow", [["a b", "b", "c c"]]))
    rows = as_tensor(x[np.array([2, 0])])
    assert rows.is_sparse_csr
    np.testing.assert_array_equal(rows.to_dense(), x.toarray()[[2, 0]])
