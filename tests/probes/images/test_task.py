"""Shares of labels, and splits that cannot serve."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.probe_data import ImageProbeData
from cpc.probes import Task

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
