from collections import Counter

import numpy as np
from scipy import sparse
from scipy.stats import chisquare

from benchmarks.extreme.reductions import REDUCTIONS, pick_all_labels, pick_one_label

LABELS = sparse.csr_array(np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]], bool))


def test_all_labels_are_examples() -> None:
    examples = pick_all_labels(LABELS, np.random.default_rng(0))
    assert list(zip(*examples, strict=True)) == [(0, 0), (0, 2), (2, 3), (3, 0), (3, 1), (3, 2)]


def test_one_label_is_drawn_uniformly() -> None:
    rng = np.random.default_rng(0)
    drawn = [pick_one_label(LABELS, rng) for _ in range(1500)]
    assert all(each.points.tolist() == [0, 2, 3] for each in drawn)
    counts = Counter((p, c) for each in drawn for p, c in zip(*(part.tolist() for part in each), strict=True))
    assert counts.keys() == {(0, 0), (0, 2), (2, 3), (3, 0), (3, 1), (3, 2)}
    assert counts[2, 3] == 1500
    assert chisquare([counts[0, 0], counts[0, 2]]).pvalue > 0.01
    assert chisquare([counts[3, 0], counts[3, 1], counts[3, 2]]).pvalue > 0.01


def test_points_without_labels_give_nothing() -> None:
    for reduce in REDUCTIONS.values():
        assert len(reduce(LABELS[[1, 4]], np.random.default_rng(0)).points) == 0
