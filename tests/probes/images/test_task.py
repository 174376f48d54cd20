"""Shares of labels, and splits that cannot serve."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.probe_data import ImageProbeData
from cpc.probes import FeatureStore, Task, fit_probe
from cpc.probes.results import summarise

OpenCorpus = Callable[..., ImageCorpus]


def test_subsets_are_nested_and_take_the_same_share_of_each_class(labelled_corpus: OpenCorpus) -> None:
    labels = [0] * 50 + [1] * 20 + [2] * 3
    shuffled = np.random.default_rng(0).permutation(labels)
    task = Task("class", ImageProbeData(labelled_corpus(train=shuffled.tolist(), test=[0, 1])))
    shares = (0.01, 0.1, 0.2, 0.5, 0.8, 1.0)
    rows = [task.subset(share).train for share in shares]
    for smaller, larger in pairwise(rows):
        assert set(smaller.tolist()) < set(larger.tolist())
    for share, chosen in zip(shares, rows, strict=True):
        assert sorted(set(chosen.tolist())) == chosen.tolist()
        counts = Counter(shuffled[chosen].tolist())
        assert counts == {label: max(1, round(share * labels.count(label))) for label in range(3)}
    assert rows[-1].tolist() == list(range(73))
    assert task.subset(0.5).train.tolist() == rows[3].tolist()
    assert task.subset(0.5, seed=1).train.tolist() != rows[3].tolist()
    for share in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match=rf"`label_shares`={share} must be positive and at most 1"):
            task.subset(share)


def test_a_probe_of_some_labels_is_that_of_scikit_learn_on_them(labelled_corpus: OpenCorpus) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    task = Task("class", ImageProbeData(labelled_corpus(train=labels[:300].tolist(), test=labels[300:].tolist())))
    values = (rng.standard_normal((400, 4)) + labels[:, None] * [1, 0, -1, 0]).astype(np.float32)
    extractor = task.probe_data.feature_extractor(["pixels"])
    store = FeatureStore(extractor, np.arange(400), np.ones(400, int), {"pixels": values})
    rows = rng.permutation(300)[:80]
    train, test = (task.trained_on(rows).examples(part, store, "pixels") for part in ("train", "test"))
    probe = fit_probe(train, 3, 1.0)
    result = summarise([probe.answer(test)], 3)
    scaler = StandardScaler().fit(values[rows])
    oracle = LogisticRegression(max_iter=2000).fit(scaler.transform(values[rows]), labels[rows])
    probabilities = oracle.predict_proba(scaler.transform(values[300:]))
    assert (len(train), result.num_test) == (80, 100)
    assert result.accuracy_percent == pytest.approx(100 * (probabilities.argmax(1) == labels[300:]).mean(), abs=1.0)
    cross_entropy = -np.log(probabilities[np.arange(100), labels[300:]]).mean()
    assert result.cross_entropy_nats == pytest.approx(cross_entropy, abs=0.01)
