"""Linear probes of sparse features, against scikit-learn on the same numbers."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array
from sklearn.linear_model import LogisticRegression

from cpc.data.sentences.labelled import SparseRows
from cpc.probes.classifier import ProbeProtocol
from cpc.probes.linear import fit_probe
from cpc.probes.task import Examples


@pytest.fixture
def x() -> csr_array:
    return csr_array(random_array((300, 60), density=0.1, rng=np.random.default_rng(0), dtype=np.float32))


def examples(x: csr_array, values: SparseRows | np.ndarray, which: slice) -> Examples:
    labels = np.asarray(x[:, [0, 1, 2]].toarray().argmax(1))
    rows = np.arange(x.shape[0])[which]
    return Examples(values, rows, labels[which], rows, rows)


def test_weights_and_answers_are_those_of_scikit_learn(x: csr_array) -> None:
    train, test = (examples(x, SparseRows(x), part) for part in (slice(200), slice(200, 300)))
    probe = fit_probe(train, 3, ProbeProtocol(l2=0.5))
    theirs = LogisticRegression(C=2.0, tol=1e-8, max_iter=2000).fit(x[:200], train.labels)
    np.testing.assert_allclose(probe.weights[0], theirs.coef_, atol=5e-3)
    answers = probe.answer(test)
    assert (answers.predicted == theirs.predict(x[200:])).mean() > 0.98
    log_likelihood = theirs.predict_log_proba(x[200:])[np.arange(100), test.labels]
    np.testing.assert_allclose(answers.log_likelihood_nats, log_likelihood, atol=2e-2)


def test_the_penalty_is_chosen_as_of_dense_features_of_the_same_scale(x: csr_array) -> None:
    dense = x.toarray()
    dense = (dense - dense.mean(0)) / dense.std(0)  # standardising changes nothing, so both probes see the same
    of_sparse = fit_probe(examples(x, SparseRows(csr_array(dense)), slice(200)), 3, ProbeProtocol())
    of_dense = fit_probe(examples(x, dense, slice(300)), 3, ProbeProtocol())
    of_all = fit_probe(examples(x, SparseRows(csr_array(dense)), slice(300)), 3, ProbeProtocol())
    assert of_all.l2 == of_dense.l2
    assert of_sparse.l2 is not None
    torch.testing.assert_close(of_all(torch.from_numpy(dense)), of_dense(torch.from_numpy(dense)), atol=0.1, rtol=0.05)
