"""Networks trained for labels of images: they learn, within their budget, by the recipe that the modality gives."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from opened import stored

import cpc
from cpc.data.batch import Batch
from cpc.data.images.corpus import ImageCorpus, ImageDataset
from cpc.data.images.probe_data import ImageProbeData
from cpc.probes import Probe, SupervisedProtocol, Task, fit_probe, train_supervised
from cpc.probes.results import summarise
from cpc.probes.supervised import _examples, _held_out_loss, new_head

BRIEF = {"seconds": None, "num_epochs": 1, "min_steps": 1, "batch_size": 8}
RECIPE: dict[str, Any] = ImageProbeData.supervised | BRIEF


@pytest.fixture
def task(corpus: ImageCorpus) -> Task:
    return Task("class", ImageProbeData(corpus))


def protocol(**options: Any) -> SupervisedProtocol:
    return SupervisedProtocol(**RECIPE | options)


def trained(model: cpc.CPC, task: Task, is_pretrained: bool = False, **options: Any) -> tuple[Probe, int]:
    return train_supervised(model, task.probe_data, task, protocol(**options), is_pretrained=is_pretrained)


def test_it_learns_what_can_be_told_apart(model: cpc.CPC, task: Task) -> None:
    head, num_steps = trained(model, task, min_steps=60, batch_size=16, learning_rate=0.01)
    test = task.examples("test", stored(task, ["z"], model), "z")
    answers = head.answer(test)
    result = summarise([answers], 2)
    assert num_steps == 60
    assert result.accuracy_percent >= 90
    assert result.cross_entropy_nats < 0.3
    assert not model.training
    # The answers are those of the trained network, image by image.
    images = task.probe_data.corpus.windows("test")
    with torch.no_grad():
        for row in range(len(task.test)):
            vectors, _ = task.probe_data.vectors(model, images.__getitems__([(row, 0)]))
            scores = head(vectors[0])[0].double()
            assert answers.predicted[row] == scores.argmax()
            likelihood = scores.log_softmax(0)[test.labels[row]]
            assert answers.log_likelihood_nats[row] == pytest.approx(likelihood.item(), abs=1e-4)


def test_the_scores_are_those_of_the_normalised_mean_over_the_grid(model: cpc.CPC, corpus: ImageCorpus) -> None:
    head = new_head(12, 3, "layer", seed=0)
    x = torch.rand(2, 3, 24, 24)
    vectors, is_valid = ImageProbeData(corpus).vectors(model, Batch.of(x))
    assert vectors.shape == (2, 1, 12)
    assert is_valid.all()
    mean = model.encoder(x).double().mean((1, 2))
    normalised = (mean - mean.mean(1, keepdim=True)) / (mean.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = normalised @ head.weight.double().T
    torch.testing.assert_close(head(vectors[:, 0]).double(), expected, atol=1e-5, rtol=1e-5)
    same, other = (new_head(12, 3, "layer", seed=seed).weight for seed in (0, 1))
    assert torch.equal(same, head.weight)
    assert not torch.equal(other, head.weight)


def test_networks_read_all_latents_if_asked(model: cpc.CPC, corpus: ImageCorpus) -> None:
    data, rows = ImageProbeData(corpus), np.arange(2)
    data.supervised_feature = "z_grid"
    images = corpus.observations(rows)
    vectors, is_valid = data.vectors(model.eval(), images.all_images())
    read = dict(data.feature_extractor(["z_grid"], model).read(rows))
    np.testing.assert_allclose(vectors[:, 0].detach(), [read[row]["z_grid"][0] for row in range(2)], atol=1e-2)
    assert is_valid.shape == (2, 1)
    assert is_valid.all()


@pytest.mark.parametrize(("is_pretrained", "share"), [(False, 1.0), (True, 0.1)])
def test_a_pretrained_encoder_moves_a_tenth(is_pretrained: bool, share: float, model: cpc.CPC, task: Task) -> None:
    """Adam's first step is as long as the rate, for every weight; its softmax starts at a probe."""
    before = copy.deepcopy(model.encoder.trunk.layers[0].weight)
    first = new_head(12, 2, "layer", seed=0)
    if is_pretrained:
        first = fit_probe(_examples("train", model, task.probe_data, task), 2)
    head, num_steps = trained(model, task, is_pretrained, batch_size=30, weight_decay=0.0, warmup_share=0.0)
    assert num_steps == 1
    assert (head.weight - first.weight).abs().max().item() == pytest.approx(2e-3 * share, rel=0.01)
    moved = (model.encoder.trunk.layers[0].weight - before).abs().max()
    assert moved.item() == pytest.approx(2e-3 * share, rel=0.01)


def test_training_with_all_labels_ends_where_the_held_out_loss_was_lowest(
    model: cpc.CPC, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third of twenty looks, at steps 1, 2, 4 and so on of 40, finds the lowest loss."""
    looks: list[Task] = []
    rows: list[list[int]] = []

    def watched(model: cpc.CPC, head: Probe, probe_data: ImageProbeData, held_out: Task) -> float:
        looks.append(held_out)
        loss = _held_out_loss(model, head, probe_data, held_out)
        return -1.0 if len(looks) == 3 else loss

    def batches(self: ImageProbeData, chosen: np.ndarray, *arguments: Any) -> Any:
        rows.append(chosen.tolist())
        return itertools.islice(all_batches(self, chosen, *arguments), limit)

    limit, all_batches = None, ImageProbeData.batches
    monkeypatch.setattr(ImageProbeData, "batches", batches)
    monkeypatch.setattr("cpc.probes.supervised._held_out_loss", watched)
    alone = copy.deepcopy(model)
    options = {"num_epochs": None, "batch_size": 16, "learning_rate": 0.1, "warmup_share": 0.0}
    assert trained(model, task, held_out_share=0.2, num_steps=40, **options)[1] == 4
    assert len(looks) == 20
    assert set(looks[0].train) | set(looks[0].test) == set(task.train) > set(looks[0].test) > set()
    assert rows == [looks[0].train.tolist(), task.train.tolist()]
    limit = 4
    trained(alone, task, num_steps=40, **options)
    torch.testing.assert_close(alone.encoder.state_dict(), model.encoder.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "num_rows", "num_steps"),
    [
        ({"num_epochs": 3, "min_steps": 1}, 30, 3 * 4),
        ({"num_epochs": 3, "min_steps": 20}, 30, 20),
        ({"num_epochs": 5, "min_steps": 1}, 6, 5),  # fewer images than a batch holds
        ({"num_epochs": 9, "min_steps": 1, "seconds": 5.0}, 30, 5),
        ({"num_epochs": 9, "min_steps": 50, "seconds": 5.0}, 30, 5),
        ({"num_epochs": 1, "min_steps": 1, "seconds": 50.0}, 30, 4),
        ({"num_epochs": 9, "num_steps": 3}, 30, 3),
    ],
)
def test_steps_and_seconds(
    options: dict, num_rows: int, num_steps: int, model: cpc.CPC, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes a second here, by this clock."""
    clock = itertools.count(1000.0)
    monkeypatch.setattr("cpc.probes.supervised.time.monotonic", lambda: next(clock))
    assert trained(model, task.trained_on(task.train[:num_rows]), **options)[1] == num_steps


def test_some_rows_alone_are_seen_cut_and_mirrored_with_patches_as_they_are(
    model: cpc.CPC, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, list]] = []
    read = ImageDataset.__getitems__

    def watched(self: ImageDataset, drawn: list) -> Batch:
        seen.append((self.chance, [(int(self.rows[place]), key) for place, key in drawn]))
        return read(self, drawn)

    monkeypatch.setattr(ImageDataset, "__getitems__", watched)
    rows = [3, 4, 11, 20, 29]
    smaller = task.trained_on(task.train[rows])
    _, num_steps = trained(model, smaller, num_epochs=6, batch_size=2)
    assert {chance for chance, _ in seen} == {"images"}
    assert len(seen) == num_steps == 6 * 3
    passes = [{row for _, drawn in seen[i : i + 2] for row, _ in drawn} for i in range(0, 18, 2)]
    assert all(len(of_pass) == 4 and of_pass < set(rows) for of_pass in passes)  # whole batches of a pass
    assert set.union(*passes) == set(rows)
    keys = [key for _, drawn in seen for _, key in drawn]
    assert len(set(keys)) == len(keys)
    batch = next(task.probe_data.batches(smaller.train, task.labels, model, protocol(batch_size=5)))
    assert sorted(batch.sequence_id.tolist()) == rows
    assert batch.labels[:, 0].tolist() == (batch.sequence_id % 2).tolist()
    assert task.probe_data.corpus.windows(None).flip
