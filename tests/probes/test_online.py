"""The probe beside pretraining: it learns, it is resumed exactly, and the model does not notice it."""

import copy
import math
from typing import Any
from unittest.mock import Mock

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cpc
from cpc.bounds import Bound
from cpc.data.batch import Batch
from cpc.probes import OnlineProbe

CLASSES = ["ann", "bob", "eve"]
NUM_LATENTS = 6
LISTS = ([1, 1], [0.0] * 2, [4.0] * 2, [1.4] * 2, [1.25, math.nan], [0.1] * 2, [0.0] * 2, [0.0] * 2)
BOUND = Bound([1, 2], ["", ""], "mixed", "valid", 1, *LISTS)
Started = tuple[OnlineProbe, pl.Trainer, Any]


class Data:
    def __init__(self, classes: list[str]) -> None:
        self.classes = classes

    def class_names(self, task: str) -> list[str]:
        return self.classes

    def is_group_task(self, task: str) -> bool:
        return task == "speaker"


def setting(model: cpc.CPC, classes: list[str] = CLASSES) -> tuple[pl.Trainer, Any]:
    """As much of a trainer and of a module as a probe looks at."""
    module = Mock(spec=pl.LightningModule, model=model, device=torch.device("cpu"))
    return Mock(spec=pl.Trainer, world_size=1, datamodule=Data(classes)), module


@pytest.fixture
def started(model: cpc.CPC) -> Started:
    return start(OnlineProbe(learning_rate=0.05), model)


def start(probe: OnlineProbe, model: cpc.CPC) -> Started:
    trainer, module = setting(model)
    probe.setup(trainer, module, "fit")
    probe.on_train_start(trainer, module)
    return probe, trainer, module


def batch(
    seed: int, groups: list[int] | None = None, num_valid: list[int] | None = None
) -> tuple[Batch, dict[str, Tensor]]:
    """Contexts that say which group they belong to, and latents that say nothing."""
    generator = torch.Generator().manual_seed(seed)
    groups = [0, 1, 2, 0] if groups is None else groups
    group_id = torch.tensor(groups)
    contexts = torch.randn(len(groups), NUM_LATENTS, 10, generator=generator)
    contexts[:, :, :3] += 4 * F.one_hot(group_id.clamp(min=0), 3)[:, None]
    latents = torch.randn(len(groups), NUM_LATENTS, 12, generator=generator)
    valid = 160 * torch.tensor(num_valid or [NUM_LATENTS] * len(groups))
    observed = Batch.of(torch.zeros(len(groups), 160 * NUM_LATENTS))._replace(num_valid=valid, group_id=group_id)
    return observed, {"loss": torch.tensor(0.0), "latents": latents, "contexts": contexts}


def train(probe: OnlineProbe, trainer: pl.Trainer, module: Any, seeds: range) -> None:
    for seed in seeds:
        observed, outputs = batch(seed)
        probe.on_train_batch_end(trainer, module, outputs, observed, seed)


def test_learns_what_the_features_say(started: tuple) -> None:
    probe, trainer, module = started
    train(probe, trainer, module, range(60))
    observed, outputs = batch(1000)
    probe.add_held_out(observed, outputs["latents"], outputs["contexts"])
    record = probe.held_out_record(trainer, 60, BOUND)
    assert record["accuracy"] > 0.95
    assert record["label_information_nats"] > 0.8 * record["label_entropy_nats"]
    assert (record["task"], record["features"], record["step"], record["schema"]) == ("speaker", "c", 60, 1)
    assert record["mi_bound_nats"] == [1.25, None]
    assert (record["strategy"], record["split"]) == ("mixed", "valid")
    assert (record["steps"], record["directions"]) == ([1, 2], ["", ""])
    assert record["reading"] == "in-sequence candidates, not a bound on I(z; c)"


def test_the_record_is_what_a_loop_over_frames_counts(started: tuple) -> None:
    probe, trainer, module = started
    train(probe, trainer, module, range(5))
    correct, cross_entropy, counts = 0, 0.0, [0, 0, 0]
    for seed, groups, num_valid in ((7, [0, 1, -1], [6, 2, 6]), (8, [1, 1], [1, 6])):
        observed, outputs = batch(seed, groups, num_valid)
        probe.add_held_out(observed, outputs["latents"], outputs["contexts"])
        for row, (group, valid) in enumerate(zip(groups, num_valid, strict=True)):
            for t in range(valid if group >= 0 else 0):
                x = (outputs["contexts"][row, t] - probe.mean) / probe.variance.sqrt()
                scores = probe.weight.detach() @ x + probe.bias.detach()
                correct += int(scores.argmax() == group)
                cross_entropy -= scores.log_softmax(0)[group].item()
                counts[group] += 1
    record = probe.held_out_record(trainer, 5, BOUND)
    n = sum(counts)
    assert record["num_examples"] == n == 6 + 2 + 1 + 6
    assert record["accuracy"] == pytest.approx(correct / n)
    assert record["cross_entropy_nats"] == pytest.approx(cross_entropy / n, rel=1e-5)
    assert record["label_entropy_nats"] == pytest.approx(-sum(c / n * math.log(c / n) for c in counts if c))


@pytest.mark.parametrize("features", ["c", "z"])
def test_no_gradient_reaches_the_model(features: str, model: cpc.CPC) -> None:
    probe, trainer, module = start(OnlineProbe(features=features), model)
    observed, _ = batch(0)
    output = model(torch.randn(4, 160 * NUM_LATENTS))
    outputs = {"latents": output.latents, "contexts": output.contexts}  # not detached: the probe has to do it
    probe.on_train_batch_end(trainer, module, outputs, observed, 0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert probe.weight.abs().sum() > 0


def test_nothing_is_drawn_from_the_global_generator(model: cpc.CPC) -> None:
    state = torch.get_rng_state()
    probe, trainer, module = start(OnlineProbe(), model)
    train(probe, trainer, module, range(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_state_of_other_classes_is_refused(started: tuple, model: cpc.CPC) -> None:
    probe, _, _ = started
    other = OnlineProbe()
    other.load_state_dict(copy.deepcopy(probe.state_dict()))
    trainer, module = setting(model, ["x", "y"])
    other.setup(trainer, module, "fit")
    with pytest.raises(ValueError, match=r"has \[3, 10\] classes and features"):
        other.on_train_start(trainer, module)


def test_padding_and_unlabelled_sequences_teach_nothing(started: tuple, model: cpc.CPC) -> None:
    probe, trainer, module = started
    observed, outputs = batch(3, [0, 1, -1], [6, 2, 6])
    probe.on_train_batch_end(trainer, module, outputs, observed, 0)
    other, trainer, module = start(OnlineProbe(learning_rate=0.05), model)
    outputs["contexts"][1, 2:] = 1e6
    outputs["contexts"][2] = -1e6
    other.on_train_batch_end(trainer, module, outputs, observed, 0)
    assert torch.equal(probe.weight, other.weight)
    assert torch.equal(probe.mean, other.mean)


def test_phones_come_from_frame_labels(model: cpc.CPC) -> None:
    probe, trainer, module = start(OnlineProbe(task="phones"), model)
    observed, outputs = batch(0, [0, 1])
    probe.on_train_batch_end(trainer, module, outputs, observed, 0)  # without frame labels: skipped
    assert probe.num_batches == 0
    labels = torch.full((2, NUM_LATENTS), -100)
    labels[0, :2], labels[1, 3] = 2, 1
    probe.add_held_out(observed._replace(labels=labels), outputs["latents"], outputs["contexts"])
    assert probe.held_out_record(trainer, 0, BOUND)["num_examples"] == 3


def test_classes_are_read_from_the_mean_over_an_images_patches(model: cpc.CPC) -> None:
    """Against a loop over images; those without a label teach and count nothing."""
    probe, trainer, module = start(OnlineProbe(task="class", learning_rate=0.05), model)
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 2, -1, 1, 2, 0])
    contexts = torch.randn(6, 3, 4, 10, generator=generator)
    contexts[..., :3] += 2 * F.one_hot(labels.clamp(min=0), 3)[:, None, None]
    observed = Batch.of(torch.zeros(6, 3, 16, 16))._replace(labels=labels[:, None])
    outputs = {"loss": torch.tensor(0.0), "latents": torch.zeros(6, 3, 4, 12), "contexts": contexts}
    for index in range(30):
        probe.on_train_batch_end(trainer, module, outputs, observed, index)
    means = [contexts[i].double().mean((0, 1)) for i in (0, 1, 3, 4, 5)]
    torch.testing.assert_close(probe.mean.double(), torch.stack(means).mean(0), atol=1e-5, rtol=1e-5)
    cross_entropy = 0.0
    for x, label in zip(means, labels[labels >= 0], strict=True):
        scores = probe.weight.detach().double() @ ((x - probe.mean) / probe.variance.sqrt()) + probe.bias.detach()
        cross_entropy -= scores.log_softmax(0)[label].item() / 5
    probe.add_held_out(observed, outputs["latents"], contexts)
    record = probe.held_out_record(trainer, 30, BOUND)
    assert (record["task"], record["num_examples"], record["accuracy"]) == ("class", 5, 1.0)
    assert record["cross_entropy_nats"] == pytest.approx(cross_entropy, rel=1e-4)
    probe.on_train_batch_end(trainer, module, outputs, observed._replace(labels=torch.full((6, 1), -1)), 31)
    assert probe.num_batches == 30
