"""A network trained for labels learns what is easy, within its budget, from audio and from images."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from opened import stored

import cpc
from cpc.data import Batch, Manifest
from cpc.data.audio.probe_data import AudioProbeData
from cpc.data.recordings.windows import NUM_INITIALISATION_WINDOWS, WindowDataset
from cpc.probes import Probe, SupervisedProtocol, Task, train_supervised
from cpc.probes.results import ProbeResult, summarise
from cpc.probes.supervised import _loss, _standardise, new_head

Open = Callable[..., AudioProbeData]
BRIEF = SupervisedProtocol(seconds=None, num_steps=40, batch_size=8, window_latents=16, learning_rate=0.01)


def outcome(task: Task, model: cpc.CPC) -> ProbeResult:
    head, num_steps = train_supervised(model, task.probe_data, task, BRIEF)
    assert num_steps == 40
    assert not model.training
    test = task.examples("test", stored(task, ["c"], model), "c")
    return summarise([head.answer(test)], len(task.classes))


def test_a_network_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="needs a budget"):
        SupervisedProtocol(seconds=None)


@pytest.mark.parametrize(("name", "pool"), [("phones", "frames"), ("first", "mean"), ("speaker", "frames")])
def test_learns_tones_and_levels(name: str, pool: str, manifest: Manifest, audio: Open, model: cpc.CPC) -> None:
    # `first` is a label of the whole file here: its loudness
    probe_data = audio({"first": manifest.column("speaker")} if name == "first" else None)
    assert outcome(Task(name, probe_data, pool=pool), model).accuracy_percent > 70  # of three classes


def test_repeats(audio: Open, model: cpc.CPC) -> None:
    same, task = copy.deepcopy(model), Task("phones", audio())
    assert outcome(task, model) == outcome(task, same)


@pytest.mark.parametrize("pool", ["frames", "mean"])
def test_padding_teaches_nothing(pool: str) -> None:
    head = new_head(3, 4, "first_batch", seed=0)
    contexts, labels = torch.randn(2, 6, 3), torch.full((2, 6), 2)
    is_valid = torch.arange(6) < torch.tensor([[6], [2]])
    loss = _loss(head, contexts, labels, is_valid, pool)
    rows = [contexts[0], contexts[1, :2]]
    seen = torch.cat(rows) if pool == "frames" else torch.stack([row.mean(0) for row in rows])
    expected = -head(seen).log_softmax(1)[:, 2].mean()
    torch.testing.assert_close(loss, expected)


def test_padding_does_not_enter_the_first_standardisation(audio: Open, model: cpc.CPC) -> None:
    num_samples = [4_000, 700, 1_500]
    x = 0.1 * torch.randn(3, 4_000)
    for row, valid in enumerate(num_samples):
        x[row, valid:] = 0
    nothing = torch.zeros(3, 0, dtype=torch.int64)
    batch = Batch(x, torch.tensor(num_samples), torch.arange(3), torch.full((3,), -1), nothing)
    head = new_head(10, 2, "first_batch", seed=0)
    with torch.no_grad():
        vectors, is_valid = audio().vectors(model, batch)
        _standardise(head, vectors[is_valid])
        contexts = model(x).contexts
    valid = np.concatenate([contexts[row, : n // 160].numpy() for row, n in enumerate(num_samples)])
    np.testing.assert_allclose(head.mean, valid.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(1 / head.scale, valid.std(0, ddof=1), rtol=1e-4)


def test_a_batch_without_labels_has_no_gradient() -> None:
    head, contexts = Probe(3, 4), torch.randn(1, 5, 3, requires_grad=True)
    loss = _loss(head, contexts, torch.full((1, 5), -100), torch.ones(1, 5, dtype=torch.bool), "frames")
    loss.backward()
    assert loss == 0
    assert not contexts.grad.any()


def test_a_loss_that_is_not_finite_stops(audio: Open, model: cpc.CPC, monkeypatch: pytest.MonkeyPatch) -> None:
    task, batches = Task("phones", audio()), AudioProbeData.batches

    def broken(*arguments: Any) -> Iterator[Batch]:
        return (batch._replace(x=batch.x * np.nan) for batch in batches(*arguments))

    monkeypatch.setattr(AudioProbeData, "batches", broken)
    with pytest.raises(FloatingPointError, match=r"not finite by step 40: lower its learning_rate \(0"):
        train_supervised(model, task.probe_data, task, BRIEF)


def test_an_untrained_model_is_initialised_and_repeats(audio: Open, manifest: Manifest, model: cpc.CPC) -> None:
    """By the training split's statistics; its own windows standardise every channel of the first layer."""
    probe_data, models = audio(), [copy.deepcopy(model) for _ in range(3)]
    for network, seed in zip(models, (5, 5, 6), strict=True):
        probe_data.initialise(network, seed)
    first, again, other = (network.encoder.layers[0] for network in models)
    assert torch.equal(first.scale, again.scale)
    assert not torch.equal(first.scale, other.scale)
    files = [file for file, split in zip(manifest.files, manifest.column("split"), strict=True) if split == "train"]
    waves = [soundfile.read(file, dtype="float32")[0] for file in files]
    mean, std = np.concatenate(waves).mean(), np.concatenate(waves).std()
    assert models[0].encoder.input_mean.item() == pytest.approx(mean, rel=1e-3, abs=1e-6)
    assert models[0].encoder.input_std.item() == pytest.approx(std, rel=1e-4)
    train = WindowDataset(probe_data.corpus.samples.subset(manifest.rows("train")), 4_000)
    windows = train.initialisation(NUM_INITIALISATION_WINDOWS, 5)
    with torch.no_grad():
        x = (windows[:, None] - models[0].encoder.input_mean) / models[0].encoder.input_std
        convolved = F.conv1d(x, first.weight, None, first.stride, first.padding)
        deviation, centre = torch.std_mean(convolved * first.scale[:, None] + first.bias[:, None], (0, 2))
    np.testing.assert_allclose(centre, 0, atol=1e-4)
    np.testing.assert_allclose(deviation, 1, atol=1e-4)
