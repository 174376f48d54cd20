"""The linear probe against known answers and scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from cpc.probes.linear import ProbeProtocol, fit_probe
from cpc.probes.results import summarise
from cpc.probes.targets import Examples

NUM_CLASSES = 4


def examples(num: int, separation: float, seed: int) -> Examples:
    """Gaussian classes in eight dimensions of very different scale, in twenty clusters."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, num)
    centres = separation * np.random.default_rng(99).standard_normal((NUM_CLASSES, 8))
    values = (centres[labels] + rng.standard_normal((num, 8))) * 10.0 ** np.arange(-3, 5) + 7
    return Examples(values.astype(np.float32), np.arange(num), labels, np.arange(num) % 20)


def result(separation: float, test: Examples | None = None, num_train: int = 3000):  # type: ignore[no-untyped-def]
    train, test = examples(num_train, separation, 0), test or examples(2000, separation, 1)
    probe = fit_probe(train, NUM_CLASSES, ProbeProtocol(), seed=0)
    return summarise([probe.answer(test)], test, NUM_CLASSES, len(train))


def test_agrees_with_scikit_learn() -> None:
    train, test = examples(3000, 0.6, 0), examples(2000, 0.6, 1)
    scaler = StandardScaler().fit(train.values)
    oracle = LogisticRegression(max_iter=2000).fit(scaler.transform(train.values), train.labels)
    oracle_percent = 100 * oracle.score(scaler.transform(test.values), test.labels)
    assert 50 < oracle_percent < 95
    assert result(0.6).accuracy_percent == pytest.approx(oracle_percent, abs=0.5)


def test_separable_classes_are_read_perfectly() -> None:
    found = result(5.0)
    assert found.accuracy_percent > 99
    assert found.label_information_nats == pytest.approx(np.log(NUM_CLASSES), abs=0.05)


def test_labels_without_relation_to_features_give_chance_and_no_information() -> None:
    found = result(0.0)
    assert found.accuracy_percent == pytest.approx(25, abs=4)
    assert found.label_information_nats < 0.01


def test_label_information_never_exceeds_the_entropy() -> None:
    found = result(2.0)
    assert found.label_information_nats <= found.label_entropy_nats
    assert found.label_information_nats == pytest.approx(found.label_entropy_nats - found.cross_entropy_nats)


def test_standardisation_is_that_of_the_training_part() -> None:
    """Test features shifted and stretched are read wrongly: nothing is refitted to them."""
    test = examples(2000, 5.0, 1)
    moved = Examples(test.values * 3 + 100, test.rows, test.labels, test.clusters)
    assert result(5.0, moved).accuracy_percent < 90


def test_the_interval_holds_the_accuracy() -> None:
    found = result(0.6)
    low, high = found.accuracy_interval_percent
    assert low < found.accuracy_percent < high
    assert 1 < high - low < 12
