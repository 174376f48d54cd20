from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from cpc.data.images.corpus import ImageCorpus
from cpc.probes.images.task import ImageTask
from cpc.probes.linear import ProbeProtocol
from cpc.probes.results import Answers
from cpc.probes.targets import UNSEEN

QUICK = ProbeProtocol(min_steps=200, num_epochs=1, num_seeds=2)
OpenCorpus = Callable[..., ImageCorpus]


def test_labelled_images_of_each_split(labelled_corpus: OpenCorpus) -> None:
    """Images without a label are left out; pixels and labels stay together."""
    corpus = labelled_corpus(["a", "b", "c"], train=[2, -1, 0, 2, -1, 1], test=[1, 2, -1], valid=[0, 1])
    task = ImageTask(corpus)
    assert task.classes == ["a", "b", "c"]
    assert task.train.labels.tolist() == [2, 0, 2, 1]
    assert task.test.labels.tolist() == [1, 2]
    for part in (task.train, task.test):
        assert len(part) == len(part.images.images.table) == len(part.labels)
        shown = part.images.pixels(np.arange(len(part)))[:, 0, 0, 0]
        assert (255 * shown).round().tolist() == (10 * (1 + part.labels)).tolist()
    assert ImageTask(corpus, "valid", "train").train.labels.tolist() == [0, 1]
    batch = task.train.images.__getitems__([(1, 5)])
    assert (batch.sequence_id.tolist(), batch.labels.tolist()) == ([2], [[0]])
    assert task.train.images.chance == "none"


def test_classes_that_the_training_part_has_not_are_errors_without_a_likelihood(labelled_corpus: OpenCorpus) -> None:
    """As for audio (`ProbeResult`): they count as errors, and entropies leave them out."""
    task = ImageTask(labelled_corpus(train=[0, 1, 0, 1], test=[0, 2, 1, 1], valid=[2]))
    assert task.test.labels.tolist() == [0, UNSEEN, 1, 1]
    features = np.array([[-1.0], [1.0], [-1.0], [1.0]], np.float32)
    result = task.probe(features, np.array([[-1.0], [5.0], [1.0], [1.0]], np.float32), QUICK)
    assert (result.num_unseen, result.num_test, result.accuracy_percent) == (1, 4, 75.0)
    assert result.label_entropy_nats == pytest.approx(-(np.log(1 / 3) + 2 * np.log(2 / 3)) / 3)
    assert np.isfinite(result.cross_entropy_nats)


def test_subsets_are_nested_and_take_the_same_share_of_each_class(labelled_corpus: OpenCorpus) -> None:
    labels = [0] * 50 + [1] * 20 + [2] * 3
    rng = np.random.default_rng(0)
    task = ImageTask(labelled_corpus(train=rng.permutation(labels).tolist(), test=[0, 1]))
    shares = (0.01, 0.1, 0.2, 0.5, 0.8, 1.0)
    rows = [task.subset(share) for share in shares]
    for smaller, larger in pairwise(rows):
        assert set(smaller.tolist()) < set(larger.tolist())
    for share, chosen in zip(shares, rows, strict=True):
        assert sorted(set(chosen.tolist())) == chosen.tolist()
        counts = Counter(task.train.labels[chosen].tolist())
        assert counts == {label: max(1, round(share * labels.count(label))) for label in range(3)}
    assert rows[-1].tolist() == list(range(73))
    assert task.subset(0.5).tolist() == rows[3].tolist()
    assert task.subset(0.5, seed=1).tolist() != rows[3].tolist()
    for share in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match=rf"a share of labels, {share}, must lie above 0 and at most at 1"):
            task.subset(share)


def test_a_probe_of_some_labels_is_that_of_scikit_learn_on_them(labelled_corpus: OpenCorpus) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    task = ImageTask(labelled_corpus(train=labels[:300].tolist(), test=labels[300:].tolist()))
    values = (rng.standard_normal((400, 4)) + labels[:, None] * [1, 0, -1, 0]).astype(np.float32)
    train, test = values[:300], values[300:]
    rows = rng.permutation(300)[:80]
    result = task.probe(train, test, ProbeProtocol(num_seeds=2, learning_rate=0.05), rows)
    scaler = StandardScaler().fit(train[rows])
    oracle = LogisticRegression(max_iter=2000).fit(scaler.transform(train[rows]), labels[rows])
    probabilities = oracle.predict_proba(scaler.transform(test))
    assert (result.num_train, result.num_test) == (80, 100)
    assert result.accuracy_percent == pytest.approx(100 * (probabilities.argmax(1) == labels[300:]).mean(), abs=1.0)
    cross_entropy = -np.log(probabilities[np.arange(100), labels[300:]]).mean()
    assert result.cross_entropy_nats == pytest.approx(cross_entropy, abs=0.01)
    assert len(result.accuracy_percent_by_seed) == 2


def test_answers_are_judged_on_the_test_part(labelled_corpus: OpenCorpus) -> None:
    task = ImageTask(labelled_corpus(train=[0, 1], test=[0, 0, 1, 0]))
    result = task.judge([Answers(np.array([0, 1, 1, 0]), np.log([0.5, 0.25, 0.5, 1.0]))], num_train=2)
    assert (result.accuracy_percent, result.num_train, result.num_clusters) == (75.0, 2, 4)
    assert result.confusion == [[2, 1], [0, 1]]
    assert result.cross_entropy_nats == pytest.approx(np.log(16) / 4)


def test_intervals_resample_sequences(labelled_corpus: OpenCorpus) -> None:
    """Twenty copies of four answers are no more than four; were they independent, the interval would be narrow."""
    answers = Answers(np.repeat([0, 1, 0, 1], 20), np.zeros(80))
    labels = {"train": [0, 1], "test": [0] * 80}
    alone = ImageTask(labelled_corpus(**labels)).judge([answers], num_train=2)
    sequence = np.concatenate([[90, 91], np.repeat([3, 1, 4, 2], 20)])
    together = ImageTask(labelled_corpus(**labels, sequence=sequence)).judge([answers], num_train=2)
    assert (alone.num_clusters, together.num_clusters) == (80, 4)
    widths = [high - low for low, high in (alone.accuracy_interval_percent, together.accuracy_interval_percent)]
    assert widths[0] < 25
    assert widths[1] > 75


@pytest.mark.parametrize(
    ("labels", "splits", "message"),
    [
        ({"train": [0, 1], "test": [0]}, ("train", "train"), "train_split and test_split are both 'train'"),
        ({"train": [0, 1], "valid": [0]}, ("train", "test"), "of split 'test', only of train, valid"),
        ({"train": [1, 1, -1], "test": [0, 1]}, ("train", "test"), "split 'train' has a single class, 'b'"),
        ({"train": [0, 1], "test": [2, 2]}, ("train", "test"), "'train' and 'test' have no class in common"),
        ({"train": [-1, -1], "test": [0, 1]}, ("train", "test"), "no image of split 'train' has a label"),
        ({"train": [0, 1], "test": [-1]}, ("train", "test"), "no image of split 'test' has a label"),
    ],
)
def test_splits_that_cannot_serve_are_named_before_anything_is_packed(
    labels: dict,
    splits: tuple[str, str],
    message: str,
    labelled_corpus: OpenCorpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = labelled_corpus(["a", "b", "c"], **labels)
    monkeypatch.setattr("cpc.data.images.corpus.pack_images", lambda *_, **__: pytest.fail("packed"))
    with pytest.raises(ValueError, match=message):
        ImageTask(corpus, *splits)
