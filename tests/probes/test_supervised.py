"""The fully supervised baseline learns what is easy, within its budget."""

import copy
import itertools

import numpy as np
import pytest
import torch

import cpc
from cpc.data.audio.files import AudioFiles
from cpc.data.audio.manifest import Manifest
from cpc.data.batch import Batch
from cpc.probes import Features, FeatureStore, SupervisedProtocol, Task, train_supervised
from cpc.probes.linear import Probe
from cpc.probes.results import ProbeResult, summarise
from cpc.probes.supervised import _loss, _softmax

BRIEF = SupervisedProtocol(seconds=None, num_steps=40, batch_size=8, window_latents=16, learning_rate=0.01)


def outcome(task: Task, model: cpc.CPC, manifest: Manifest) -> ProbeResult:
    audio = AudioFiles.from_manifest(manifest, 16000)
    probe, num_steps = train_supervised(model, task, audio.subset(task.train), BRIEF)
    assert num_steps == 40
    assert not model.training
    store = FeatureStore.extract(Features("c", model), manifest, audio, task.test)
    test = task.examples("test", store, "c")
    return summarise([probe.answer(test)], test, len(task.classes), 0)


@pytest.mark.parametrize(("name", "pool"), [("phones", "frames"), ("first", "mean"), ("speaker", "frames")])
def test_learns_tones_and_levels(name: str, pool: str, manifest: Manifest, model: cpc.CPC) -> None:
    if name == "first":  # a label of the whole file: its loudness
        speakers = manifest.column("speaker")
        manifest = Manifest(manifest.root, manifest.columns | {"first": speakers})
    found = outcome(Task(name, manifest, pool=pool), model, manifest)
    assert found.accuracy_percent > 70  # of three classes


def test_repeats(manifest: Manifest, model: cpc.CPC) -> None:
    same = copy.deepcopy(model)
    task = Task("phones", manifest)
    assert outcome(task, model, manifest) == outcome(task, same, manifest)


def test_a_budget_of_seconds_ends(manifest: Manifest, model: cpc.CPC, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is a quarter of a second further whenever it is looked at."""
    clock = itertools.count(100.0, 0.25)
    monkeypatch.setattr("cpc.probes.supervised.time.monotonic", lambda: next(clock))
    task = Task("phones", manifest)
    audio = AudioFiles.from_manifest(manifest, 16000).subset(task.train)
    _, num_steps = train_supervised(model, task, audio, SupervisedProtocol(seconds=1.2, batch_size=2))
    assert num_steps == 5


@pytest.mark.parametrize("pool", ["frames", "mean"])
def test_padding_teaches_nothing(pool: str) -> None:
    probe = Probe(3, 4, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(probe.weights[0])
    contexts, labels = torch.randn(2, 6, 3), torch.full((2, 6), 2)
    num_valid = torch.tensor([6, 2])
    loss = _loss(probe, contexts, labels, num_valid, pool)
    rows = [contexts[0], contexts[1, :2]]
    seen = torch.cat(rows) if pool == "frames" else torch.stack([row.mean(0) for row in rows])
    expected = -probe(seen).log_softmax(1)[:, 2].mean()
    torch.testing.assert_close(loss, expected)


def test_padding_does_not_enter_the_first_standardisation(model: cpc.CPC) -> None:
    num_samples = [4_000, 700, 1_500]
    x = 0.1 * torch.randn(3, 4_000)
    for row, valid in enumerate(num_samples):
        x[row, valid:] = 0
    nothing = torch.zeros(3, 0, dtype=torch.int64)
    batch = Batch(x, torch.tensor(num_samples), torch.arange(3), torch.full((3,), -1), nothing)
    probe = _softmax(model, batch, num_classes=2, seed=0)
    with torch.no_grad():
        contexts = model(x).contexts
    valid = np.concatenate([contexts[row, : n // 160].numpy() for row, n in enumerate(num_samples)])
    np.testing.assert_allclose(probe.mean, valid.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(1 / probe.scale, valid.std(0, ddof=1), rtol=1e-4)


def test_a_batch_without_labels_has_no_gradient() -> None:
    probe, contexts = Probe(3, 4), torch.randn(1, 5, 3, requires_grad=True)
    loss = _loss(probe, contexts, torch.full((1, 5), -100), torch.tensor([5]), "frames")
    loss.backward()
    assert loss == 0
    assert not contexts.grad.any()


def test_a_loss_that_is_not_finite_stops(manifest: Manifest, model: cpc.CPC) -> None:
    task = Task("phones", manifest)

    class Broken(AudioFiles):
        def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
            return super().read(file_index, start, num_samples) * np.float32(np.nan)

    audio = Broken(
        [manifest.files[row] for row in task.train],
        16000,
        manifest.num_samples[task.train],
        manifest.sample_rate_hz[task.train],
    )
    with pytest.raises(FloatingPointError, match="lower its learning_rate"):
        train_supervised(model, task, audio, BRIEF)


@pytest.mark.parametrize(
    "arguments",
    [{"seconds": None}, {"seconds": 1.0, "num_steps": 3}, {"seconds": -1.0}, {"seconds": None, "num_steps": 0}],
)
def test_one_positive_budget_is_needed(arguments: dict) -> None:
    with pytest.raises(ValueError, match="budget"):
        SupervisedProtocol(**arguments)
