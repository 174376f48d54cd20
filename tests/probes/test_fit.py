"""The linear probe against known answers and scikit-learn, of dense and of sparse features."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array
from sklearn.linear_model import LogisticRegression

from cpc.probes import Examples, fit_probe
from cpc.probes.classifier import standardise
from cpc.probes.results import summarise

NUM_CLASSES = 4


def examples(num: int, separation: float, seed: int) -> Examples:
    """Gaussian classes in eight dimensions of very different scale, in twenty clusters."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, num)
    centres = separation * np.random.default_rng(99).standard_normal((NUM_CLASSES, 8))
    values = (centres[labels] + rng.standard_normal((num, 8))) * 10.0 ** np.arange(-3, 5) + 7
    return Examples(values.astype(np.float32), np.arange(num), labels, np.arange(num) % 20, np.arange(num) % 20)


def test_standardisation_is_that_of_the_training_part() -> None:
    """Test features shifted and stretched are read wrongly: nothing is refitted to them."""
    test = examples(2000, 5.0, 1)
    moved = Examples(test.values * 3 + 100, test.indices, test.labels, test.clusters, test.groups)
    probe = fit_probe(examples(3000, 5.0, 0), NUM_CLASSES)
    accurate, poor = (summarise([probe.answer(each)], NUM_CLASSES).accuracy_percent for each in (test, moved))
    assert poor < 90 < 99 < accurate


def test_standardisation_takes_labelled_rows_alone_and_keeps_constant_features() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((9000, 3)).astype(np.float32) * 2 + 1000
    values[:, 1] = 5.0
    values[1::2] = 1e6  # rows that carry no label
    rows = np.arange(0, 9000, 2)
    mean, scale = standardise(Examples(values, rows, np.zeros(len(rows), int), rows, rows))
    np.testing.assert_allclose(mean, values[rows].mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(scale[[0, 2]], 1 / values[rows][:, [0, 2]].std(0, dtype=np.float64), rtol=1e-4)
    assert scale[1] == 1


def test_training_a_probe_draws_nothing_from_the_global_generator() -> None:
    state = torch.get_rng_state()
    fit_probe(examples(50, 0.6, 0), NUM_CLASSES)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_penalty_is_chosen_and_noted() -> None:
    train, test = examples(400, 0.1, 0), examples(2000, 0.1, 1)
    chosen = fit_probe(train, NUM_CLASSES)
    given = fit_probe(train, NUM_CLASSES, chosen.l2)
    np.testing.assert_allclose(chosen.weight, given.weight, atol=3e-4)  # both within tolerance
    small = fit_probe(train, NUM_CLASSES, 0.01).answer(test)
    assert chosen.answer(test).log_likelihood_nats.mean() > small.log_likelihood_nats.mean()
    assert summarise([chosen.answer(test)], NUM_CLASSES).l2 == [chosen.l2]


@pytest.fixture
def sparse() -> csr_array:
    return csr_array(random_array((300, 60), density=0.1, rng=np.random.default_rng(0), dtype=np.float32))


def sparse_examples(sparse: csr_array, values: csr_array | np.ndarray, which: slice) -> Examples:
    labels = np.asarray(sparse[:, [0, 1, 2]].toarray().argmax(1))
    rows = np.arange(sparse.shape[0])[which]
    return Examples(values, rows, labels[which], rows, rows)


def test_weights_and_answers_are_those_of_scikit_learn(sparse: csr_array) -> None:
    train, test = (sparse_examples(sparse, sparse, part) for part in (slice(200), slice(200, 300)))
    probe = fit_probe(train, 3, 0.5)
    theirs = LogisticRegression(C=2.0, tol=1e-8, max_iter=2000).fit(sparse[:200], train.labels)
    np.testing.assert_allclose(probe.weight, theirs.coef_, atol=5e-3)
    answers = probe.answer(test)
    assert (answers.predicted == theirs.predict(sparse[200:])).mean() > 0.98
    log_likelihood = theirs.predict_log_proba(sparse[200:])[np.arange(100), test.labels]
    np.testing.assert_allclose(answers.log_likelihood_nats, log_likelihood, atol=2e-2)


def test_the_penalty_is_chosen_as_of_dense_features_of_the_same_scale(sparse: csr_array) -> None:
    dense = sparse.toarray()
    dense = (dense - dense.mean(0)) / dense.std(0)  # standardising changes nothing, so both probes see the same
    of_sparse = fit_probe(sparse_examples(sparse, csr_array(dense), slice(200)), 3)
    of_dense = fit_probe(sparse_examples(sparse, dense, slice(300)), 3)
    of_all = fit_probe(sparse_examples(sparse, csr_array(dense), slice(300)), 3)
    assert of_all.l2 == of_dense.l2
    assert of_sparse.l2 is not None
    torch.testing.assert_close(of_all(torch.from_numpy(dense)), of_dense(torch.from_numpy(dense)), atol=0.1, rtol=0.05)
