"""Answers without a trained probe."""

import math

import numpy as np
import pytest

from cpc.probes import results
from cpc.probes.baselines import answer_by_frequency, answer_by_neighbours
from cpc.probes.task import UNSEEN, Examples


def examples(values: np.ndarray, labels: list[int] | np.ndarray) -> Examples:
    """In a store of twice as many rows, of which every other one is an example."""
    stored = np.repeat(values, 2, 0)
    stored[1::2] = -7
    return Examples(
        stored, 2 * np.arange(len(labels)), np.array(labels), np.arange(len(labels)), np.arange(len(labels))
    )


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


def test_no_likelihood_is_zero() -> None:
    """A class that none of the neighbours is of keeps a share."""
    train = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, 0.2]])
    (answers,) = answer_by_neighbours(examples(train, [0, 0, 1, 1]), examples(train[:1], [1]), 2, 2)
    assert answers.predicted.tolist() == [0]
    assert -5 < answers.log_likelihood_nats[0] < -1
