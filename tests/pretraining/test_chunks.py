"""Batches encoded in chunks against batches encoded whole, in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpc.contexts import GRU, Identity, PixelCNN
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder, FrameEncoder, PatchEncoder, TinyTrunk
from cpc.losses import Contrastive, LocalContrastive
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.pretraining.chunks import contrast_in_chunks

Case = tuple[CPC, Batch]


def audio(dropout: float = 0.0) -> Case:
    torch.manual_seed(0)
    model = CPC(AudioEncoder(6), GRU(5, num_layers=2, dropout=dropout), Bilinear(2), Contrastive("mixed", 4)).double()
    x, num_valid = torch.randn(7, 1920, dtype=torch.float64), torch.tensor([1920, 1920, 640, 1920, 1120, 320, 1920])
    return model, Batch.of(x)._replace(num_valid=num_valid, sequence_id=torch.tensor([0, 0, 1, 2, 3, 3, 4]))


def changed_audio() -> Case:
    model, batch = audio()
    return model, batch._replace(target=batch.x.roll(1, 0))


def images() -> Case:
    torch.manual_seed(0)
    trunk = TinyTrunk(6, 1, strides=(2, 1), widths=(4, 4))
    context = PixelCNN(6, 2, 6, ("down", "left"))
    model = CPC(PatchEncoder(trunk, patch_size=4, stride=2), context, Bilinear(2), Contrastive("mixed", skip_steps=1))
    return model.double(), Batch.of(torch.randn(5, 1, 12, 10, dtype=torch.float64))


def frames() -> Case:
    torch.manual_seed(0)
    encoder = FrameEncoder((16, 16), 6, widths=(4, 3), kernels=(4, 3), strides=(2, 2))
    model = CPC(encoder, Identity(), Bilinear(1), LocalContrastive()).double()
    return model, Batch.of(torch.randint(0, 256, (5, 3, 1, 16, 16), dtype=torch.uint8))


@pytest.mark.parametrize("case", [audio, changed_audio, images, frames])
@pytest.mark.parametrize("num_chunks", [2, 3, 8])
def test_loss_and_gradients_are_those_of_the_whole_batch(case: Callable[[], Case], num_chunks: int) -> None:
    model, batch = case()
    whole = model.contrast(model(batch.x), batch, torch.Generator().manual_seed(1))
    _, in_chunks = contrast_in_chunks(model, batch, num_chunks, torch.Generator().manual_seed(1))
    assert whole.loss > 0.1
    for expected, found in zip(
        (whole.loss, whole.loss_nats, *torch.autograd.grad(whole.loss, list(model.parameters()))),
        (in_chunks.loss, in_chunks.loss_nats, *torch.autograd.grad(in_chunks.loss, list(model.parameters()))),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_dropout_draws_alike_in_both_passes() -> None:
    """The gradient is that of the loss under the first pass' masks, by finite differences."""
    model, batch = audio(dropout=0.3)
    weight = next(model.encoder.parameters())

    def loss() -> Tensor:
        torch.manual_seed(5)
        return contrast_in_chunks(model, batch, 3, torch.Generator().manual_seed(1))[1].loss

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction, values = torch.randn_like(weight), []
    for size in (1e-5, -2e-5):
        with torch.no_grad():
            weight.add_(direction, alpha=size)
        values.append(loss().item())
    assert (values[0] - values[1]) / 2e-5 == pytest.approx((gradient * direction).sum().item(), rel=1e-6)


def test_less_than_a_quarter_is_held_for_the_backward_pass() -> None:
    """What autograd keeps outside of chunks, with what one chunk needs when it is computed again; without weights."""
    model = audio()[0].float()
    batch = Batch.of(torch.randn(16, 20480))
    kept_anyway = {each.untyped_storage().data_ptr() for each in (batch.x, *model.parameters())}

    def num_bytes(call: Callable[[], object]) -> int:
        held: dict[int, Tensor] = {}

        def hold(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in kept_anyway:
                held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            result = call()
        assert result is not None  # and with it the graph, until all is counted
        return sum(each.untyped_storage().nbytes() for each in held.values())

    whole = num_bytes(lambda: model.contrast(model(batch.x), batch))
    of_a_chunk = num_bytes(lambda: model(batch.x[:2]))
    assert num_bytes(lambda: contrast_in_chunks(model, batch, 8)) + of_a_chunk < whole / 4
