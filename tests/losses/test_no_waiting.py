"""No operator of a training step makes a GPU wait: the step runs on tensors without values.

Tensors of the device `meta` have shapes alone. An operator that asks for a value, or whose result's shape depends on
values (`item`, `nonzero`, masks as indices), cannot run on them, and would make a GPU wait. What is known of a batch
(lengths, identities, draws) stays on the host, as in training.
"""

import contextlib
from typing import Any
from unittest.mock import MagicMock

import lightning.pytorch as pl
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cpc.candidates import STRATEGIES, ClassTable
from cpc.contexts import GRU, Identity, PixelCNN
from cpc.data import Batch, Modality
from cpc.encoders import AudioEncoder, FrameEncoder, PatchEncoder, TinyTrunk, TokenEncoder
from cpc.losses import ClassTableLoss, Contrastive, LocalContrastive, candidate_sets
from cpc.model import CPC
from cpc.predictors import Bilinear, TransformerPredictor
from cpc.pretraining.data import PretrainingData
from cpc.pretraining.module import Pretraining
from cpc.probes.online import OnlineProbe

KNOWN = {
    "num_valid": torch.tensor([1600, 1600, 640, 1600, 1120, 160, 1600, 1600]),
    "sequence_id": torch.tensor([0, 0, 1, 2, 3, 3, 4, 5]),
    "group_id": torch.tensor([0, 0, 1, 0, 1, 1, 0, 1]),
}


@pytest.fixture(autouse=True)
def autocast_of_meta(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """torch has no autocast for tensors without values."""
    if request.node.get_closest_marker("gpu"):
        return
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)


def step(model: CPC, batch: Batch) -> None:
    model.initialise_from(batch.x)
    model = model.to("meta")
    contrast = model.loss(batch._replace(x=batch.x.to("meta")), torch.Generator().manual_seed(0))
    contrast.loss.backward()
    for result in (contrast.loss, contrast.loss_nats, contrast.accuracy):
        assert result.is_meta
    learnt = [name for name, each in model.named_parameters() if each.grad is not None]
    assert any("encoder" in name for name in learnt)
    assert any("predictor" in name for name in learnt)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_negatives": 4}, {"num_negatives": 4, "shared_across_steps": True}, {"skip_steps": 1}],
    ids=["all", "drawn", "shared", "skip"],
)
def test_audio(strategy: str, options: dict) -> None:
    model = CPC(AudioEncoder(8), GRU(8), Bilinear(3), Contrastive(strategy, **options))
    step(model, Batch.of(torch.randn(8, 1600))._replace(**KNOWN))


def test_transformers_and_auxiliary_negatives() -> None:
    predictor = TransformerPredictor(2, num_heads=2, feedforward_dim=8)
    loss = Contrastive("mixed", 4, auxiliary_negatives={"same_speaker": 0.5})
    step(CPC(AudioEncoder(8, norm="layer"), GRU(8), predictor, loss), Batch.of(torch.randn(8, 1600))._replace(**KNOWN))


@pytest.mark.parametrize("num_negatives", [None, 4])
def test_images(num_negatives: int | None) -> None:
    trunk = TinyTrunk(6, 1, strides=(2, 1), widths=(4, 4))
    context = PixelCNN(6, 2, 6, ("down", "left"))
    loss = Contrastive("mixed_excluding", num_negatives, skip_steps=1)
    step(
        CPC(PatchEncoder(trunk, patch_size=4, stride=2), context, Bilinear(2), loss),
        Batch.of(torch.randn(8, 1, 12, 10)),
    )


def test_places_of_frames() -> None:
    encoder = FrameEncoder((16, 16), 6, widths=(4, 3), kernels=(4, 3), strides=(2, 2))
    frames = torch.randint(0, 256, (8, 4, 1, 16, 16), dtype=torch.uint8)
    step(CPC(encoder, Identity(), Bilinear(1), LocalContrastive()), Batch.of(frames))


def test_classes() -> None:
    """Of the full softmax; samplers of classes check targets, and would make a GPU wait."""
    loss = ClassTableLoss(ClassTable(12, 5), "full_softmax")
    batch = Batch.of(torch.randint(0, 12, (8, 10)))._replace(labels=torch.randint(0, 12, (8, 11)))
    step(CPC(TokenEncoder(12, 4), GRU(5), Bilinear(2), loss), batch)


class WholeStep:
    """A training step on a device, with the online probe."""

    def __init__(self, device: str, **options: Any) -> None:
        self.training = Pretraining(AudioEncoder(8), GRU(8), Bilinear(3), Contrastive(**options))
        self.batch = Batch.of(torch.randn(8, 1600))._replace(**KNOWN, labels=torch.randint(-1, 4, (8, 10)))
        self.training.model.initialise_from(self.batch.x)
        self.training.to(device)
        self.training._trainer = MagicMock(spec=pl.Trainer, world_size=1, global_step=3)
        self.training._trainer.datamodule = MagicMock(modality=MagicMock(spec=Modality, is_continuous=False))
        self.probe = OnlineProbe("phone")
        self.probe.classes = list("abcd")
        self.probe._labels_are_groups = False
        self.probe.on_train_start(self.training.trainer, self.training)
        self.device = torch.device(device)

    def __call__(self) -> Batch:
        there = PretrainingData.transfer_batch_to_device(MagicMock(), self.batch, self.device, 0)
        outputs = self.training.training_step(there, 0)
        outputs["loss"].backward()
        self.probe.on_train_batch_end(self.training.trainer, self.training, outputs, there, 0)
        return there


def test_a_whole_training_step() -> None:
    """That a loss is finite is known in the step after it."""
    step = WholeStep("meta")
    there = step()
    assert there.x.is_meta
    assert there.sequence_id is step.batch.sequence_id
    assert step.probe.num_batches == 1
    with pytest.raises(RuntimeError, match="meta"):
        step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, {"num_negatives": 4}], ids=["all", "drawn"])
@pytest.mark.parametrize("is_short", [False, True], ids=["float32", "bf16"])
def test_a_gpu_is_never_waited_for(options: dict, is_short: bool) -> None:
    """Operators of the second of two steps, the first of which plans the batch and compiles kernels."""
    step = WholeStep("cuda", **options)
    with torch.autocast("cuda", torch.bfloat16, enabled=is_short):
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


class HostCopies(TorchDispatchMode):
    """Lists operators that copy from the host. Operators take the value of a tensor without axes along."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors, results = ([t for t in tree_leaves(x) if isinstance(t, torch.Tensor)] for x in (args, result))
        if any(t.is_meta for t in (*tensors, *results)) and any(t.is_cpu and t.ndim > 0 for t in tensors):
            self.found.append(str(function))
        return result


@pytest.mark.parametrize(
    "options",
    [{}, {"num_negatives": 4}, {"num_negatives": 4, "shared_across_steps": True}, {"negatives": "same_speaker"}],
    ids=["all", "drawn", "shared", "blocks"],
)
def test_a_batch_like_the_last_copies_nothing_from_the_host(options: dict) -> None:
    """The identities have other names, but the same are equal. A CUDA graph can replay such a step."""
    model = CPC(AudioEncoder(8), GRU(8), Bilinear(3), Contrastive(**options))
    batch = Batch.of(torch.randn(8, 1600))._replace(**KNOWN)
    model.initialise_from(batch.x)
    model.to("meta")
    candidate_sets._plan.cache_clear()
    found = []
    for sequence_id in (KNOWN["sequence_id"], KNOWN["sequence_id"] + 7):
        with HostCopies() as copies:
            there = batch._replace(x=torch.empty(8, 1600, device="meta"), sequence_id=sequence_id)
            model.loss(there, torch.Generator().manual_seed(0)).loss.backward()
        found.append(copies.found)
    assert found[0]
    assert found[1] == []


def test_plain_observations_have_their_identities_on_the_host() -> None:
    batch = Batch.of(torch.empty(3, 1600, device="meta"))
    assert batch.group_id.tolist() == [-1] * 3
    assert batch.labels.is_cpu
