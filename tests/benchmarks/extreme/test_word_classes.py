import math
from itertools import product

import numpy as np
import pytest
from refusals import refuses
from scipy import sparse
from scipy.stats import chisquare

from benchmarks.extreme.word_classes import WordClasses


def small(**options: float) -> WordClasses:
    arguments = {"num_classes": 40, "num_features": 30, "words_per_class": 3, "words_per_point": 4, "noise": 0.4}
    return WordClasses(**(arguments | {"exponent": 1.0} | options))


def posterior_slowly(problem: WordClasses, x: np.ndarray) -> np.ndarray:
    weights = []
    for prior, own in zip(problem.prior, problem.words.tolist(), strict=True):
        likelihood = 1.0
        for word, count in enumerate(x):
            chance = problem.noise / problem.num_features + (1 - problem.noise) * (word in own) / len(own)
            likelihood *= chance**count
        weights.append(prior * likelihood)
    return np.array(weights) / sum(weights)


def test_the_posterior_is_bayes_rule() -> None:
    problem = small()
    features = problem.draw(30, np.random.default_rng(0)).features
    # Words of no class at all, and none: all classes keep their prior.
    features = sparse.csr_array(np.concatenate([features.toarray(), np.zeros((1, 30), np.float32)]))
    (posterior,) = problem.posteriors(features)
    dense = posterior.scale[:, None] * problem.prior
    for row, (start, stop) in enumerate(zip(posterior.hits.indptr[:-1], posterior.hits.indptr[1:], strict=True)):
        dense[row, posterior.hits.indices[start:stop]] += posterior.excess[start:stop]
    expected = np.stack([posterior_slowly(problem, x) for x in features.toarray()])
    np.testing.assert_allclose(dense / posterior.total[:, None], expected, atol=1e-12)
    for k in (1, 5, 40):
        np.testing.assert_allclose(posterior.highest(k), -np.sort(-expected)[:, :k], atol=1e-12)


def test_the_best_precision_is_that_of_enumerated_draws() -> None:
    problem = small(labels_per_point=2)
    features = problem.draw(3, np.random.default_rng(1)).features
    for k in (1, 3):
        expected = []
        for x in features.toarray():
            probability = posterior_slowly(problem, x)
            best = set(np.argsort(-probability)[:k].tolist())
            draws = product(range(40), repeat=2)
            expected.append(sum(probability[a] * probability[b] * len({a, b} & best) for a, b in draws) / k)
        assert problem.optimal_precision_at(k, features) == pytest.approx(expected)


def test_draws_follow_the_posterior() -> None:
    problem = small()
    features = problem.draw(1, np.random.default_rng(2)).features
    (posterior,) = problem.posteriors(features[np.zeros(1000, int)])
    drawn = np.bincount(posterior.draw(np.random.default_rng(3).random((1000, 20))).ravel(), minlength=40)
    expected = 20_000 * posterior_slowly(problem, features.toarray()[0])
    is_frequent = expected > 5
    parts = [np.append(each[is_frequent], each[~is_frequent].sum() + 1e-9) for each in (drawn, expected)]
    assert chisquare(*parts, sum_check=False).pvalue > 0.01


def test_labels_and_words_of_drawn_points() -> None:
    """Ranking by the posterior reads what is promised; classes and words come as often as they should."""
    problem = small(labels_per_point=3)
    points = problem.draw(1000, np.random.default_rng(4))
    assert points.labels.dtype == bool
    assert points.features.sum(1).tolist() == [4] * 1000
    num_labels = np.diff(points.labels.indptr)
    assert 1 <= num_labels.min() < num_labels.max() == 3
    distinct, row_of = np.unique(points.features.toarray(), axis=0, return_inverse=True)
    best = np.array([posterior_slowly(problem, x).argmax() for x in distinct])[row_of]
    read = np.asarray(points.labels[np.arange(1000), best])
    promised = problem.optimal_precision_at(1, points.features)
    error = math.sqrt((promised * (1 - promised)).sum()) / 1000
    assert read.mean() == pytest.approx(promised.mean(), abs=4 * error)
    # P(word) = noise / F + (1 - noise) / S times the prior of its classes
    chance = np.full(30, problem.noise / 30)
    np.add.at(chance, problem.words.ravel(), (1 - problem.noise) / 3 * problem.prior.repeat(3))
    assert chisquare(points.features.sum(0), 4000 * chance).pvalue > 0.001


def test_many_hits_do_not_overflow() -> None:
    problem = WordClasses(50, 2000, words_per_point=400, noise=0.1)
    points = problem.draw(20, np.random.default_rng(0))
    assert problem.optimal_precision_at(1, points.features) == pytest.approx(np.ones(20))
    assert np.diff(points.labels.indptr).tolist() == [1] * 20


@pytest.mark.parametrize("num", [1, 15, 28, 29, 30])
def test_any_number_of_the_words_is_drawn_without_bias(num: int) -> None:
    """Each word is one of `num` with the same chance: 4000 classes, 5 standard deviations; and it ends."""
    words = small(num_classes=4000, words_per_class=num).words
    assert (np.diff(np.sort(words, axis=1), axis=1) > 0).all()
    share = np.bincount(words.ravel(), minlength=30) / 4000
    assert np.abs(share - num / 30).max() <= 5 * np.sqrt(num / 30 * (1 - num / 30) / 4000)


def test_refusals() -> None:
    refuses(r"noise=0\.0 must lie between 0 and 1", small, noise=0.0)
    refuses("words_per_class=31 must be between 1 and num_features=30", small, words_per_class=31)
