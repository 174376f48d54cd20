"""Cross-validation over groups, against scikit-learn on the same features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened import stored
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.preprocessing import StandardScaler

import cpc
from cpc.data import Audio
from cpc.data.audio.probe_data import AudioProbeData
from cpc.probes import Comparison, Extraction, Task, probe
from cpc.probes.report import _count_copies

ProbeData = Callable[..., AudioProbeData]


def test_every_fold_is_answered_by_probes_of_the_others(model: cpc.CPC, audio: ProbeData) -> None:
    probe_data = audio(train_split=None)
    task = Task("phones", probe_data, folds="speaker", num_folds=3)
    extraction = Extraction(progress=False)
    comparison = Comparison(probe_data, ["c"], ["majority"], 3.0, extraction=extraction)
    comparison.measure([task], model, lambda _: model)
    found = comparison.results["phones"]["cpc"]

    examples = task.examples("train", stored(task, ["c"], model), "c")
    x, y, speakers = examples.values[examples.indices], examples.labels, examples.clusters
    assert len(set(speakers)) == 3
    correct = np.zeros(len(y), bool)
    for train, test in LeaveOneGroupOut().split(x, y, speakers):
        scaler = StandardScaler().fit(x[train])
        oracle = LogisticRegression(C=1 / 3, max_iter=2000).fit(scaler.transform(x[train]), y[train])
        correct[test] = oracle.predict(scaler.transform(x[test])) == y[test]
    assert found.num_test == len(y)
    assert found.num_train == round(2 / 3 * len(y))
    assert found.num_clusters == 3
    assert found.l2 == [3.0] * 3
    assert found.accuracy_percent == pytest.approx(100 * correct.mean(), abs=0.3)
    assert comparison.results["phones"]["majority"].accuracy_percent < found.accuracy_percent
    assert np.sum(found.confusion) == len(y)


def test_groups_are_shared_out_in_their_order(audio: ProbeData) -> None:
    pairs = [f"{number % 4}" for number in range(36)]
    probe_data = audio({"pair": pairs}, train_split=None)
    task = Task("first", probe_data, folds="pair", num_folds=2)
    assert [sorted({pairs[row] for row in fold.test}) for fold in task.folds] == [["0", "1"], ["2", "3"]]
    for fold in task.folds:
        assert not set(fold.train) & set(fold.test)
        assert len(fold.train) + len(fold.test) == 36
    ids = np.arange(36)
    ids[[1, 7, 9]] = 0, 4, 8  # copies in the same fold; in another fold; in the same fold
    probe_data.content = lambda rows: np.stack([ids[rows] + 1, ids[rows]], 1)  # type: ignore[method-assign]
    copies = _count_copies(task, probe_data, None)["copies_of_training"]
    assert copies == {"num_shared": 2, "num_compared": 36, "num_tested": 36, "unit": "file"}
    of_some = task.trained_on(np.arange(8))
    assert [fold.train.tolist() for fold in of_some.folds] == [[2, 3, 6, 7], [0, 1, 4, 5]]
    assert [len(fold.test) for fold in of_some.folds] == [18, 18]


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_labels_of_one_speaker_are_tested_on_the_others(model: cpc.CPC, audio: ProbeData) -> None:
    probe_data = audio(train_split=None)
    task = Task("phones", probe_data, folds="speaker", num_folds=3)
    reversed_folds = task.drawn([(fold.test, fold.train) for fold in task.folds])
    extraction = Extraction(progress=False)
    store = stored(task, ["c"], model)
    for fold, given in zip(reversed_folds.folds, task.folds, strict=True):
        assert (fold.train.tolist(), fold.test.tolist()) == (given.test.tolist(), given.train.tolist())
        train, test = fold.examples("train", store, "c"), fold.examples("test", store, "c")
        assert len(set(train.clusters)) == 1
        assert not set(train.clusters) & set(test.clusters)
        assert len(set(train.groups)) == len(fold.train)  # files: one speaker cannot be held out from itself
        assert len(set(test.groups)) == 2
    comparison = Comparison(probe_data, ["c"], [], extraction=extraction)
    comparison.measure([reversed_folds], model, lambda _: model)
    found = comparison.results["phones"]["cpc"]
    assert found.num_test == 2 * len(store.values["c"][task.examples("test", store, "c").indices])
    assert (found.num_clusters, len(found.l2)) == (3, 3)


def test_a_class_of_one_fold_alone_is_an_error_there(model: cpc.CPC, audio: ProbeData) -> None:
    words = ["rare" if number < 4 else "often" if number % 2 else "more" for number in range(36)]
    probe_data = audio({"word": words}, train_split=None)  # all of "rare" is ann's, in the split train
    task = Task("word", probe_data, folds="speaker", num_folds=3)
    comparison = Comparison(probe_data, ["c"], [], 1.0, extraction=Extraction(progress=False))
    comparison.measure([task], model, lambda _: model)
    assert comparison.results["word"]["cpc"].num_unseen == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": "speaker", "num_folds": 4}, "`num_folds`=4 must be at least 2 and at most 3"),
        ({"num_folds": 3}, "`num_folds`=3 has no effect without `folds`"),
        ({"folds": "phones"}, "`folds` phones is the task itself"),
        ({"folds": "hair"}, "no column 'hair'"),
        ({"folds": "speaker", "test_split": "test"}, "leave `train_split` and `test_split` out"),
        ({"folds": "speaker", "num_folds": 3, "label_shares": [0.5], "task": "first"}, "`label_shares` need a train"),
    ],
)
def test_folds_that_cannot_be_are_named(
    model: cpc.CPC, corpus_folder: Path, cache_dir: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    cpc.save_pretrained(model, tmp_path, provenance={"data": Audio(manifest="unknown").saved_settings})
    options = {"task": "phones", "extraction": Extraction(cache_dir=cache_dir, progress=False), **options}
    with pytest.raises(ValueError, match=message):
        probe(tmp_path, corpus_folder, **options)
