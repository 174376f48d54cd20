"""Networks trained for labels: they learn, within their budget, and leave the encoder they began with alone."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cpc
from cpc.data.images.corpus import ImageCorpus, ImageDataset
from cpc.probes.images import network
from cpc.probes.images.network import Classifier, NetworkProtocol, train_network
from cpc.probes.images.task import ImageTask
from cpc.probes.targets import UNSEEN

BRIEF = NetworkProtocol(num_epochs=1, min_steps=1, seconds=None, batch_size=8)


@pytest.fixture
def task(corpus: ImageCorpus) -> ImageTask:
    return ImageTask(corpus)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Classifier]:
    """Every network that is trained, as it becomes."""
    made = []

    class Kept(Classifier):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.first = {name: tensor.clone() for name, tensor in self.state_dict().items()}
            made.append(self)

    monkeypatch.setattr(network, "Classifier", Kept)
    return made


def test_it_learns_what_can_be_told_apart(model: cpc.CPC, task: ImageTask, trained: list[Classifier]) -> None:
    before = {name: tensor.clone() for name, tensor in model.encoder.state_dict().items()}
    protocol = NetworkProtocol(num_epochs=1, min_steps=60, seconds=None, batch_size=16, learning_rate=0.01)
    answers, num_steps = train_network(model.encoder, task, protocol)
    result = task.judge([answers], len(task.train))
    assert num_steps == 60
    assert result.accuracy_percent >= 90
    assert result.cross_entropy_nats < 0.3
    for name, tensor in model.encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    (classifier,) = trained
    assert not torch.equal(classifier.encoder.trunk.layers[0].weight, before["trunk.layers.0.weight"])
    assert not classifier.training
    # The answers are those of the trained network, image by image.
    with torch.no_grad():
        for row in range(len(task.test)):
            scores = classifier(task.test.images.__getitems__([(row, 0)]).x)[0].double()
            assert answers.predicted[row] == scores.argmax()
            likelihood = scores.log_softmax(0)[task.test.labels[row]]
            assert answers.log_likelihood_nats[row] == pytest.approx(likelihood.item(), abs=1e-4)


def test_the_scores_are_those_of_the_normalised_mean_over_the_grid(model: cpc.CPC) -> None:
    classifier = Classifier(model.encoder, 3, seed=0)
    x = torch.rand(2, 3, 24, 24)
    mean = model.encoder(x).double().mean((1, 2))
    normalised = (mean - mean.mean(1, keepdim=True)) / (mean.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = normalised @ classifier.head.weight.double().T
    torch.testing.assert_close(classifier(x).double(), expected, atol=1e-5, rtol=1e-5)
    same, other = (Classifier(model.encoder, 3, seed=seed).head.weight for seed in (0, 1))
    assert torch.equal(same, classifier.head.weight)
    assert not torch.equal(other, classifier.head.weight)


@pytest.mark.parametrize(("is_pretrained", "share"), [(False, 1.0), (True, 0.1)])
def test_a_pretrained_encoder_moves_ten_times_more_slowly(
    is_pretrained: bool, share: float, model: cpc.CPC, task: ImageTask, trained: list[Classifier]
) -> None:
    """Adam's first step is as long as the rate, for every weight; decay aside, which is switched off."""
    protocol = NetworkProtocol(1, 1, seconds=None, batch_size=30, weight_decay=0.0, warmup_share=0.0)
    _, num_steps = train_network(model.encoder, task, protocol, is_pretrained=is_pretrained)
    (classifier,) = trained
    moved = {name: (tensor - classifier.first[name]).abs().max() for name, tensor in classifier.state_dict().items()}
    assert num_steps == 1
    assert moved["head.weight"] == pytest.approx(2e-3, rel=0.01)
    assert moved["encoder.trunk.layers.0.weight"] == pytest.approx(2e-3 * share, rel=0.01)


@pytest.mark.parametrize(
    ("options", "num_rows", "num_steps"),
    [
        ({"num_epochs": 3, "min_steps": 1}, 30, 3 * 4),
        ({"num_epochs": 3, "min_steps": 20}, 30, 20),
        ({"num_epochs": 5, "min_steps": 1}, 6, 5),  # fewer images than a batch holds
        ({"num_epochs": 9, "min_steps": 1, "seconds": 5.0}, 30, 5),
        ({"num_epochs": 9, "min_steps": 50, "seconds": 5.0}, 30, 5),
        ({"num_epochs": 1, "min_steps": 1, "seconds": 50.0}, 30, 4),
    ],
)
def test_steps_and_seconds(
    options: dict, num_rows: int, num_steps: int, model: cpc.CPC, task: ImageTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes a second here, by this clock."""
    clock = itertools.count(1000.0)
    monkeypatch.setattr(network.time, "monotonic", lambda: next(clock))
    protocol = NetworkProtocol(batch_size=8, **{"seconds": None, **options})
    assert train_network(model.encoder, task, protocol, rows=np.arange(num_rows))[1] == num_steps


def test_some_rows_alone_are_seen_cut_and_mirrored_with_patches_as_they_are(
    model: cpc.CPC, task: ImageTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, list]] = []
    read = ImageDataset.__getitems__

    def watched(self: ImageDataset, drawn: list) -> object:
        seen.append((self.chance, drawn))
        return read(self, drawn)

    monkeypatch.setattr(ImageDataset, "__getitems__", watched)
    rows = np.array([3, 4, 11, 20, 29])
    _, num_steps = train_network(model.encoder, task, NetworkProtocol(6, 1, None, batch_size=2), rows=rows)
    training = [drawn for chance, drawn in seen if chance == "images"]
    assert len(training) == num_steps == 6 * 3
    passes = [{row for drawn in training[i : i + 2] for row, _ in drawn} for i in range(0, 18, 2)]
    assert all(len(of_pass) == 4 and of_pass < set(rows.tolist()) for of_pass in passes)  # whole batches of a pass
    assert set.union(*passes) == set(rows.tolist())
    keys = [key for drawn in training for _, key in drawn]
    assert len(set(keys)) == len(keys)
    assert [(chance, len(drawn)) for chance, drawn in seen if chance != "images"] == [("none", 14)]
    assert task.train.images.flip
    assert task.train.images.chance == "none"


def test_seeds_repeat(model: cpc.CPC, task: ImageTask) -> None:
    first, again, other = (
        train_network(model.encoder, task, NetworkProtocol(1, 3, None, batch_size=8, seed=seed))[0].log_likelihood_nats
        for seed in (0, 0, 1)
    )
    assert first.tolist() == again.tolist() != other.tolist()


def test_classes_not_seen_have_no_likelihood(model: cpc.CPC, labelled_corpus: Any) -> None:
    task = ImageTask(labelled_corpus(train=[0, 1, 0, 1], test=[0, 2, 1]))
    answers, _ = train_network(model.encoder, task, BRIEF)
    assert task.test.labels.tolist() == [0, UNSEEN, 1]
    assert np.isnan(answers.log_likelihood_nats).tolist() == [False, True, False]


def test_a_loss_that_is_no_number_is_named(model: cpc.CPC, task: ImageTask) -> None:
    broken: nn.Module = model.encoder
    with torch.no_grad():
        broken.trunk.layers[0].bias[0] = float("nan")
    with pytest.raises(
        FloatingPointError, match=r"network's loss is nan at step 0: lower its learning_rate \(0\.002\)"
    ):
        train_network(broken, task, BRIEF)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_epochs": 0}, "num_epochs=0 must be at least 1"),
        ({"min_steps": 0}, "min_steps=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"seconds": 0.0}, "seconds=0.0: the supervised network's budget must be positive"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 not negative"),
        ({"warmup_share": 1.0}, "warmup_share=1.0 must lie between 0 and 1"),
    ],
)
def test_protocols_that_make_no_sense(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NetworkProtocol(**arguments)
