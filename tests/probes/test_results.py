"""Accuracy, entropies and intervals against hand-made answers and simulation; answers without a trained probe."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import f1_score

from cpc.probes import results
from cpc.probes.classifier import answer_by_frequency, answer_by_neighbours
from cpc.probes.results import Answers, summarise
from cpc.probes.task import UNSEEN, Examples


def answers(predicted: Any, log_likelihood: Any, labels: Any, clusters: Any = None, num_train: int = 1) -> Answers:
    clusters = np.arange(len(labels)) if clusters is None else np.asarray(clusters)
    return Answers(np.asarray(predicted), np.asarray(log_likelihood), np.asarray(labels), clusters, num_train)


def test_by_hand() -> None:
    found = summarise([answers([0, 1, 1, 1], np.log([0.5, 0.25, 0.5, 0.125]), [0, 0, 1, 2], [0, 0, 1, 1], 7)], 4)
    assert found.accuracy_percent == 50
    assert found.label_entropy_nats == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(4))
    assert found.cross_entropy_nats == pytest.approx((1 + 2 + 1 + 3) / 4 * np.log(2))
    assert found.label_information_nats == pytest.approx((0.5 + 0.5 * 2 - 7 / 4) * np.log(2))  # worse than guessing
    assert found.confusion == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert found.class_accuracy_percent == [50, 100, 0, None]
    assert (found.num_train, found.num_test, found.num_unseen, found.num_clusters) == (7, 4, 0, 2)


def test_seeds_are_averaged() -> None:
    seeds = ([0, 1], [0.5, 0.5]), ([1, 1], [0.25, 0.5])
    found = summarise([answers(predicted, np.log(shares), [0, 1]) for predicted, shares in seeds], 2)
    assert found.accuracy_percent_by_seed == [100, 50]
    assert found.accuracy_percent == 75
    assert found.cross_entropy_nats == pytest.approx(5 / 4 * np.log(2))
    assert found.confusion == [[1, 1], [0, 2]]


def test_labels_unseen_in_training_are_errors_and_counted() -> None:
    found = summarise([answers([0, 1, 0, 1], np.log([0.5, 0.5, np.nan, np.nan]), [0, 1, UNSEEN, UNSEEN])], 2)
    assert found.num_unseen == 2
    assert found.accuracy_percent == 50
    assert found.label_entropy_nats == pytest.approx(np.log(2))
    assert found.label_information_nats == pytest.approx(0)


def test_f1_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, predicted = rng.choice([UNSEEN, 0, 1, 2, 3], (2, 500), p=[0.1, 0.4, 0.3, 0.15, 0.05]).clip([[UNSEEN], [0]])
    found = summarise([answers(predicted, np.zeros(500), labels)], 5)
    assert found.f1_percent == pytest.approx(100 * f1_score(labels, predicted, average="weighted"))
    seen = [0, 1, 2, 3]  # class 4 has no examples
    macro = f1_score(labels, predicted, average="macro", labels=seen)
    assert found.macro_f1_percent == pytest.approx(100 * macro)


def test_one_cluster_has_no_interval() -> None:
    found = summarise([answers([0, 1], np.log([0.5, 0.5]), [0, 1], [3, 3])], 2)
    assert found.accuracy_interval_percent is None
    assert found.label_information_interval_nats is None


@pytest.mark.parametrize("num_clusters", [8, 60])
def test_intervals_cover_what_they_should(num_clusters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of very different difficulty and size: intervals over examples would be several times too short."""
    monkeypatch.setattr("cpc.probes.results.NUM_RESAMPLES", 400)
    covered, num_trials = np.zeros(2), 150
    for trial in range(num_trials):
        rng = np.random.default_rng(trial)
        sizes = rng.integers(20, 60, num_clusters)
        easiness = np.repeat(rng.beta(3, 2, num_clusters), sizes)  # mean 0.6
        clusters = np.repeat(np.arange(num_clusters), sizes)
        labels = rng.integers(0, 2, len(clusters))
        is_right = rng.random(len(clusters)) < easiness
        # The true label's probability: 0.8 where right, 0.2 where wrong, so H - CE has a known expectation.
        log_likelihood = np.log(np.where(is_right, 0.8, 0.2))
        found = summarise([answers(np.where(is_right, labels, 1 - labels), log_likelihood, labels, clusters)], 2)
        truths = 60.0, np.log(2) + 0.6 * np.log(0.8) + 0.4 * np.log(0.2)
        intervals = found.accuracy_interval_percent, found.label_information_interval_nats
        covered += [low <= truth <= high for truth, (low, high) in zip(truths, intervals, strict=True)]
    # 95 % meant, with a standard error of 2 %
    assert (covered / num_trials > 0.89).all()
    assert (covered / num_trials < 0.995).all()


def test_the_width_of_an_interval_is_that_of_students_t() -> None:
    """Sequences of one size: accuracy is a mean of independent numbers, whose interval is in every textbook."""
    num_clusters, size = 100, 20
    num_right = np.random.default_rng(0).integers(0, size + 1, num_clusters)
    labels = np.zeros(num_clusters * size, int)
    predicted = (np.arange(size) >= num_right[:, None]).astype(int).ravel()
    clusters, log_likelihood = np.repeat(np.arange(num_clusters), size), np.log(np.where(predicted == 0, 0.8, 0.2))
    found = summarise([answers(predicted, log_likelihood, labels, clusters)], 2)
    error = (num_right / size).std(ddof=1) / np.sqrt(num_clusters)
    width = 2 * scipy.stats.t.ppf(0.975, num_clusters - 1) * error
    for interval, unit in (
        (found.accuracy_interval_percent, 100),
        (found.label_information_interval_nats, np.log(4)),  # of log 0.8 - log 0.2 between right and wrong
    ):
        assert interval[1] - interval[0] == pytest.approx(unit * width, rel=0.06)


def examples(values: np.ndarray, labels: list[int] | np.ndarray) -> Examples:
    """In a store of twice as many rows, of which every other one is an example."""
    stored = np.repeat(values, 2, 0)
    stored[1::2] = -7
    rows = np.arange(len(labels))
    return Examples(stored, 2 * rows, np.array(labels), rows, rows)


def test_answers_by_frequency() -> None:
    nothing = np.zeros((9, 1), np.float32)
    (answers,) = answer_by_frequency(examples(nothing, [0, 1, 1]), examples(nothing, [1, 0, 2, UNSEEN]), 3)
    assert answers.predicted.tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(np.exp(answers.log_likelihood_nats), [3 / 6, 2 / 6, 1 / 6, np.nan])


def votes_of_a_loop(train: np.ndarray, labels: np.ndarray, example: np.ndarray, num_classes: int, k: int) -> np.ndarray:
    """Shares of the votes in float64, from the definition."""
    mean = train.mean(0)
    similarities = []
    for other in train:
        a, b = other - mean, example - mean
        similarities.append(float(a @ b / math.sqrt((a @ a) * (b @ b))))
    order = sorted(range(len(train)), key=lambda i: -similarities[i])[:k]
    votes = [math.exp(similarities[order[-1]] / 0.07) / num_classes] * num_classes
    for i in order:
        votes[labels[i]] += math.exp(similarities[i] / 0.07)
    return np.array(votes) / sum(votes)


@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_votes_are_those_of_a_loop(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank is far from the origin, so it must be centred; the last block is not full; 500 are more than all."""
    monkeypatch.setattr(results, "_BLOCK_EXAMPLES", 7)
    rng = np.random.default_rng(0)
    labels, test_labels = rng.integers(0, 4, 60), rng.integers(0, 4, 25)
    centres = 2 * rng.standard_normal((4, 6)) + 50
    train, test = (centres[of] + 2 * rng.standard_normal((len(of), 6)) for of in (labels, test_labels))
    (answers,) = answer_by_neighbours(examples(train, labels), examples(test, test_labels), 4, k)
    expected = np.stack([votes_of_a_loop(train, labels, example, 4, k) for example in test])
    assert answers.predicted.tolist() == expected.argmax(1).tolist()
    np.testing.assert_allclose(answers.log_likelihood_nats, np.log(expected[np.arange(25), test_labels]), atol=1e-3)
    assert 0.3 < (answers.predicted == test_labels).mean() < 1
    assert answers.log_likelihood_nats.dtype == np.float64


def test_half_precision_and_classes_not_seen() -> None:
    """Grids come in float16; test examples of a class that the bank has not have no likelihood."""
    rng = np.random.default_rng(0)
    train = rng.standard_normal((30, 5)).astype(np.float16)
    labels = rng.integers(0, 3, 30)
    test_labels = np.array([0, UNSEEN, 2])
    (found,) = answer_by_neighbours(examples(train, labels), examples(train[:3], test_labels), 3)
    (exact,) = answer_by_neighbours(
        examples(train.astype(float), labels), examples(train[:3].astype(float), test_labels), 3
    )
    np.testing.assert_array_equal(np.isnan(found.log_likelihood_nats), [False, True, False])
    np.testing.assert_allclose(found.log_likelihood_nats, exact.log_likelihood_nats, atol=1e-4)
    assert found.predicted.tolist() == exact.predicted.tolist()
