"""Contexts of both directions: what each half reads and predicts, and recordings as a whole."""

from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor

from cpc.bounds.bound import BoundTally
from cpc.config.description import build, describe
from cpc.contexts import GRU, Bidirectional, CausalTransformer, PixelCNN
from cpc.data import Frames
from cpc.data.features import Features
from cpc.encoders import FrameEncoder, MelEncoder
from cpc.losses import Contrastive
from cpc.losses.contrastive import contrast
from cpc.model import CPC
from cpc.predictors import Bilinear


def connected(context: Bidirectional) -> Bidirectional:
    context.connect(5)
    return context.double().eval()


def model() -> CPC:
    torch.manual_seed(0)
    loss = Contrastive("mixed", skip_steps=2)
    return CPC(MelEncoder(dim=6, hidden_dim=8), Bidirectional(GRU(dim=7)), Bilinear(num_steps=3), loss)


@pytest.mark.parametrize("kind", [lambda: GRU(4), lambda: CausalTransformer(4, num_heads=2, num_layers=1)])
def test_each_half_reads_its_side(kind: type) -> None:
    context = connected(Bidirectional(kind()))
    z = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    contexts, state = context(z)
    assert contexts.shape == (2, 6, context.dim)
    assert state == ()
    for t in range(6):
        for half, seen in ((slice(None, 4), range(t + 1)), (slice(4, None), range(t, 6))):
            (gradient,) = torch.autograd.grad(contexts[1, t, half].pow(2).sum(), z, retain_graph=True)
            assert {place for place in range(6) if gradient[1, place].any()} <= set(seen)
            assert gradient[1, t].any()
            assert not gradient[0].any()


def test_reversed_sequences_and_exchanged_networks_give_exchanged_halves() -> None:
    context, z = connected(Bidirectional(GRU(4))), torch.randn(2, 6, 5, dtype=torch.float64)
    before = context(z)[0]
    context.context, context.backward_context = context.backward_context, context.context
    after = context(z.flip(1))[0].flip(1)
    torch.testing.assert_close(after, before.roll(4, -1), rtol=0, atol=0)
    assert not torch.allclose(before[..., :4], before[..., 4:])  # their weights differ


@pytest.mark.parametrize("lengths", [None, [20, 25, 9, 25]])
def test_loss_is_the_mean_of_a_loss_of_each_direction(lengths: list[int] | None) -> None:
    cpc, x = model(), torch.randn(4, 4000)
    output = cpc(x)
    num_latents = None if lengths is None else torch.tensor(lengths)
    sequences = cpc.loss_part.sequences(output, num_latents)
    found = cpc.loss_part(output, sequences)

    def one(direction: str, z: Tensor, is_known: Tensor | None) -> Tensor:
        return contrast(output.queries[direction], z, skip_steps=2, is_known=is_known).loss

    known = None if num_latents is None else torch.arange(25) < num_latents[:, None]
    forward = one("forward", output.latents, known)
    backward = one("backward", output.latents.flip(1), None if known is None else known.flip(1))
    torch.testing.assert_close(found.loss, (forward + backward) / 2)


def test_bound_has_both_directions() -> None:
    cpc = model()
    tally = BoundTally(cpc.steps)
    tally.update(cpc.loss(torch.randn(4, 4000)))
    bound = tally.compute("mixed_excluding", "valid")
    assert bound.directions == ["forward"] * 3 + ["backward"] * 3
    assert bound.steps == [3, 4, 5] * 2
    assert bound.is_bound
    assert bound.reading == "lower bound on I(z; c), if latents mix fast within a sequence"


def test_files_are_encoded_as_a_whole() -> None:
    cpc, rng = model(), np.random.default_rng(0)
    waves = [rng.standard_normal(size).astype(np.float32) for size in (9000, 2500)]
    in_pieces, at_once = (Features("zc", cpc, chunk_seconds=seconds) for seconds in (0.02, 4.0))
    assert in_pieces(np.zeros(40, np.float32)).shape == (0, 20)
    for wave in waves:
        with torch.no_grad():
            latents, contexts, _ = cpc.eval().encode(torch.from_numpy(wave[None]))
        expected = torch.cat([latents, contexts], 2)[0].numpy()
        for found in (in_pieces(wave), at_once(wave)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_description_rebuilds_it() -> None:
    again = build(describe(model()))
    again.load_state_dict(model().state_dict())
    x = torch.randn(2, 2000)
    torch.testing.assert_close(again(x).contexts, model()(x).contexts, rtol=0, atol=0)


def test_what_cannot_read_ahead_refuses_it(tmp_path: Path, unchecked_types: None) -> None:
    context = connected(Bidirectional(GRU(4)))
    z = torch.randn(1, 3, 5).double()
    _, state = context(z)
    refuses("takes no state", context, z, state)
    for wrong in (PixelCNN(directions=("down", "up")), context.context, "GRU"):
        refuses("a context of one direction that is not connected", Bidirectional, wrong)
    frames = CPC(FrameEncoder(), Bidirectional(GRU(8)), Bilinear(num_steps=2))
    refuses("Bidirectional, which reads ahead, but frames are not", Frames(source=str(tmp_path)).check, frames)
