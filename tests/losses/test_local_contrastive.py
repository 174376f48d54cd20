"""Prediction place by place, against a loop over places and rows."""

import pytest
import torch

from cpc.contexts import GRU, Identity
from cpc.data.batch import Batch
from cpc.encoders import FrameEncoder, VectorEncoder
from cpc.losses import Contrastive, LocalContrastive
from cpc.model import CPC
from cpc.predictors import Bilinear


def model_with(loss: Contrastive, num_steps: int = 2, **layers: tuple[int, ...]) -> CPC:
    torch.manual_seed(0)
    shape: dict[str, tuple[int, ...]] = {"widths": (4, 3), "kernels": (4, 3), "strides": (2, 2)} | layers
    encoder = FrameEncoder((16, 16), 6, **shape)  # type: ignore[arg-type]
    return CPC(encoder, GRU(5), Bilinear(num_steps), loss).double()


def frames(num_windows: int, num_frames: int) -> torch.Tensor:
    return torch.randint(0, 256, (num_windows, num_frames, 1, 16, 16), dtype=torch.uint8)


@pytest.mark.parametrize("strategy", ["mixed", "mixed_excluding", "sequence_only"])
def test_equals_a_loop_over_places(strategy: str) -> None:
    model, x = model_with(LocalContrastive(strategy)), frames(3, 5)
    lengths = [5, 4, 5]
    places = model.encoder.latents_and_places(x)[1].unflatten(-1, (model.encoder.num_places, 3))
    assert model.encoder.num_places == 3 * 3
    queries = model(x).queries[""].unflatten(-1, places.shape[-2:])
    of_steps = []
    for k in (1, 2):
        of_rows = []
        for b in range(3):
            for t in range(lengths[b] - k):
                of_places = []
                for p in range(model.encoder.num_places):
                    scores = {
                        (other, s): queries[k - 1, b, t, p] @ places[other, s, p]
                        for other in range(3)
                        for s in range(lengths[other])
                        if {"mixed": True, "mixed_excluding": other != b, "sequence_only": other == b}[strategy]
                        or (other, s) == (b, t + k)
                    }
                    of_places.append(torch.stack(list(scores.values())).logsumexp(0) - scores[b, t + k])
                of_rows.append(torch.stack(of_places).mean())
        of_steps.append(torch.stack(of_rows).mean())
    expected = torch.stack(of_steps).mean()
    found = model.loss(Batch.of(x)._replace(num_valid=torch.tensor(lengths)))
    torch.testing.assert_close(found.loss, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close((found.loss_nats.sum(1) / found.num_rows.sum(1)).mean().double(), expected.detach())


def test_gradients_reach_the_projection_through_contexts_alone() -> None:
    model, x = model_with(LocalContrastive()), frames(4, 3)
    model.loss(x).loss.backward()
    assert all(each.grad is not None and each.grad.any() for each in model.parameters())
    detached = model(x)
    detached = detached._replace(queries={"": detached.queries[""].detach()})
    model.zero_grad()
    model.contrast(detached, Batch.of(x)).loss.backward()
    assert model.encoder.projection.weight.grad is None
    assert model.encoder.layers[0].weight.grad.any()


def test_another_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match="LocalContrastive, which predicts places of frames, but VectorEncoder"):
        CPC(VectorEncoder(4, 3), Identity(), Bilinear(1), LocalContrastive())
