"""The threaded pass against the whole one: the same losses and gradients, whatever the scheduling."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cpc
from cpc.data.batch import Batch
from cpc.losses import Contrastive, tiled_loss
from cpc.predictors import TransformerPredictor
from cpc.threaded_model import OwnDropout, threaded_output


@pytest.fixture(autouse=True)
def two_threads(set_num_threads: Callable[[int], None]) -> None:
    set_num_threads(2)


def audio_model(context: Any = None, predictor: Any = None, **options: Any) -> cpc.CPC:
    torch.manual_seed(0)
    encoder = cpc.encoders.AudioEncoder(8, kernels=(4, 4), strides=(2, 2), paddings=(1, 1))
    context = cpc.contexts.GRU(6) if context is None else context
    predictor = cpc.predictors.Bilinear(3) if predictor is None else predictor
    return cpc.CPC(encoder, context, predictor, Contrastive(**options)).double()


def image_model() -> cpc.CPC:
    torch.manual_seed(0)
    trunk = cpc.encoders.TinyTrunk(8, strides=(2, 1, 2), widths=(4, 4, 6))
    encoder = cpc.encoders.PatchEncoder(trunk, patch_size=8, stride=4)
    context = cpc.contexts.PixelCNN(8, num_blocks=2, hidden_dim=4, directions=("down", "left"))
    return cpc.CPC(encoder, context, cpc.predictors.Bilinear(2), Contrastive(skip_steps=1)).double()


def loss_and_gradients(model: cpc.CPC, batch: Batch, is_threaded: bool) -> tuple[Tensor, list[Tensor | None]]:
    model.zero_grad()
    torch.manual_seed(1)
    output = threaded_output(model, batch) if is_threaded else model(batch.x)
    batch = batch._replace(target=None) if is_threaded else batch
    loss = model.contrast(output, batch, torch.Generator().manual_seed(0)).loss
    loss.backward()
    return loss.detach(), [each.grad for each in model.parameters()]


def audio_batch(size: int = 5, **fields: Any) -> Batch:
    x = torch.randn(size, 120, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Batch.of(x)._replace(**fields)


CASES: dict[str, tuple[Any, Batch]] = {
    "mixed": (audio_model, audio_batch()),
    "drawn": (lambda: audio_model(num_negatives=5), audio_batch()),
    "padding": (audio_model, audio_batch(num_valid=torch.tensor([120, 40, 77, 120, 60]))),
    "a target of its own": (audio_model, audio_batch(target=audio_batch().x.flip(0))),
    "one sequence more than threads": (lambda: audio_model(negatives="sequence_only"), audio_batch(3)),
    "transformer": (
        lambda: audio_model(cpc.contexts.CausalTransformer(8, num_heads=2), num_negatives=4),
        audio_batch(),
    ),
    "grids": (image_model, Batch.of(torch.rand(3, 3, 24, 24, dtype=torch.float64))),
}


@pytest.mark.parametrize("name", CASES)
def test_threads_give_the_loss_and_gradients_of_the_whole_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_loss, "LEAST_WORK", 1)
    model, batch = CASES[name][0](), CASES[name][1]
    model.initialise_from(batch.x)
    expected, threaded = (loss_and_gradients(model, batch, is_threaded) for is_threaded in (False, True))
    torch.testing.assert_close(threaded, expected, rtol=1e-12, atol=1e-14)


def test_a_frozen_part_gets_no_gradients_and_its_outputs_ask_for_none() -> None:
    model, batch = audio_model(), audio_batch()
    model.encoder.requires_grad_(False)
    output = threaded_output(model, batch)
    assert not output.latents.requires_grad
    assert output.contexts.requires_grad
    expected, threaded = (loss_and_gradients(model, batch, is_threaded) for is_threaded in (False, True))
    torch.testing.assert_close(threaded, expected, rtol=1e-12, atol=1e-14)


def test_a_state_goes_on_per_sequence() -> None:
    model, batch = audio_model(), audio_batch()
    whole = model(batch.x)
    again = threaded_output(model, batch, tuple(each.detach() for each in whole.state))
    expected = model(batch.x, whole.state)
    torch.testing.assert_close(again.contexts, expected.contexts)
    torch.testing.assert_close(again.state, expected.state)


def test_nothing_is_kept_for_gradients_where_none_are_wanted() -> None:
    model, batch = audio_model(), audio_batch()
    with torch.no_grad():
        output = threaded_output(model.eval(), batch)
    assert not output.contexts.requires_grad
    torch.testing.assert_close(output.contexts, model(batch.x).contexts.detach())


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            lambda: audio_model(cpc.contexts.GRU(6, 2, dropout=0.5), cpc.predictors.Bilinear(3, 0.5)), id="gru"
        ),
        pytest.param(lambda: audio_model(cpc.contexts.CausalTransformer(8, num_heads=2, dropout=0.5)), id="attention"),
        pytest.param(lambda: audio_model(predictor=TransformerPredictor(2, 1, 8, 0.5)), id="predictor"),
    ],
)
def test_dropout_does_not_depend_on_which_thread_is_faster(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model().train(), audio_batch()
    own = OwnDropout.__torch_function__

    def slow(self: OwnDropout, *arguments: Any) -> Any:
        time.sleep(random.random() / 1000)
        return own(self, *arguments)

    first = loss_and_gradients(model, batch, is_threaded=True)
    monkeypatch.setattr(OwnDropout, "__torch_function__", slow)
    for _ in range(3):
        again = loss_and_gradients(model, batch, is_threaded=True)
        torch.testing.assert_close(again, first, rtol=0, atol=0)
    torch.manual_seed(2)
    other = threaded_output(model, batch).queries[""]
    assert not torch.equal(other, threaded_output(model, batch).queries[""])  # each step draws anew


def test_own_dropout_keeps_the_mean_and_its_share() -> None:
    x = torch.ones(200_000)
    with OwnDropout(0):
        kept = F.dropout(x, 0.3)
        assert F.dropout(x, 0.3, training=False) is x
    share = (kept > 0).double().mean().item()
    assert abs(share - 0.7) < 4 * (0.21 / len(x)) ** 0.5
    torch.testing.assert_close(kept.unique(), torch.tensor([0, 1 / 0.7]))


def test_own_dropout_of_attention_is_torchs_for_the_same_mask() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    with OwnDropout(3):
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, is_causal=True)
    is_kept = torch.empty(2, 3, 5, 5, dtype=torch.bool).bernoulli_(0.6, generator=torch.Generator().manual_seed(3))
    scores = (q @ k.mT / 2).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(found, (scores.softmax(-1) * is_kept / 0.6) @ v)


class Foreign(nn.Module):
    """Written elsewhere: nobody knows whether it keeps observations apart."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_modules_that_may_mix_observations_take_the_batch_whole() -> None:
    model, batch = audio_model(), audio_batch()
    model.context.extra = Foreign()
    calls: list[int] = []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    threaded_output(model, batch)
    assert len(calls) == 1
    del model.context.extra
    threaded_output(model, batch)
    assert len(calls) == 3
