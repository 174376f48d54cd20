import math

import numpy as np
import pytest
import torch
from refusals import refuses
from scipy import sparse

from benchmarks.extreme.precision import (
    PROPENSITY_PARAMETERS,
    inverse_propensities,
    precision_at,
    propensity_scored_precision_at,
    top_classes,
)

LABELS = sparse.csr_array(np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]], bool))
RANKED = np.array([[0, 1, 2], [3, 4, 0], [0, 1, 2], [4, 3, 1]])


def random_case(seed: int) -> tuple[np.ndarray, sparse.csr_array, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = sparse.csr_array(rng.random((17, 9)) < 0.25)
    ranked = np.stack([rng.permutation(9)[:6] for _ in range(17)])
    return ranked, labels, rng.uniform(1, 20, 9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 3, 6])
def test_both_precisions_by_loops(seed: int, k: int) -> None:
    ranked, labels, weights = random_case(seed)
    of_point = [set(np.flatnonzero(row)) for row in labels.toarray()]
    precision = [sum(each in own for each in row[:k]) / k for row, own in zip(ranked, of_point, strict=True)]
    assert precision_at(k, ranked, labels) == pytest.approx(precision)
    found = sum(weights[each] for row, own in zip(ranked, of_point, strict=True) for each in row[:k] if each in own)
    best = sum(sum(sorted((weights[each] for each in own), reverse=True)[:k]) for own in of_point)
    assert propensity_scored_precision_at(k, ranked, labels, weights) == pytest.approx(found / best)


def test_the_propensity_formula() -> None:
    labels = sparse.csr_array(np.array([[1, 0, 1]] * 7 + [[1, 0, 0]] * 93, bool))
    for name, (a, b) in {"wikipedia": (0.5, 0.4), "amazon": (0.6, 2.6), "other": (0.55, 1.5)}.items():
        c = (math.log(100) - 1) * (b + 1) ** a
        # Eq. 2 of Jain et al. 2016 as printed: p = 1 / (1 + C exp(-A log(N_l + B)))
        expected = [1 / (1 + c * math.exp(-a * math.log(num + b))) for num in (100, 0, 7)]
        assert 1 / inverse_propensities(labels, PROPENSITY_PARAMETERS[name]) == pytest.approx(expected)


def test_top_classes_are_those_of_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, classes, bias = torch.randn(23, 5), torch.randn(40, 5), 3 * torch.randn(40)
    for tile_bytes in (1, 4 * 40 * 7, 2**20):
        monkeypatch.setattr("benchmarks.extreme.precision._TILE_BYTES", tile_bytes)
        for each in (None, bias):
            scores = queries @ classes.T + (0 if each is None else each)
            assert torch.equal(top_classes(queries, classes, 4, each), scores.argsort(1, descending=True)[:, :4])
    assert top_classes(queries[:0], classes, 4).shape == (0, 4)


def test_refusals() -> None:
    refuses("precision@4 needs 4 ranked classes of every point, but there are 3", precision_at, 4, RANKED, LABELS)
    refuses("ranked for 3 points, but there are labels of 4", precision_at, 1, RANKED[:3], LABELS)
    refuses("nothing to", propensity_scored_precision_at, 1, RANKED, sparse.csr_array((4, 5), dtype=bool), np.ones(5))
    refuses("propensities of 2 training points", inverse_propensities, LABELS[:2])
    refuses("num=6 classes to rank, but there are 5", top_classes, torch.randn(2, 3), torch.randn(5, 3), 6)
