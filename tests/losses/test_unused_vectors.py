"""What no row meets may hold anything: losses and gradients are those without it.

Of padding, masked candidates and unused draws `test_definition.py` shows it.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpc.candidates import LatentBank
from cpc.candidates.samplers import Draw
from cpc.losses import bank_loss, contrast
from cpc.losses.class_loss import candidate_loss
from cpc.losses.engine.score_gradients import ScoreCorrections

Found = tuple[Tensor, list[Tensor]]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attach_gradients(loss: Callable[..., Tensor], *inputs: Tensor) -> Found:
    leaves = [each.clone().requires_grad_() for each in inputs]
    found = loss(*leaves)
    return found.detach(), list(torch.autograd.grad(found, leaves))


def filled(vectors: Tensor, is_used: Tensor, value: float) -> Tensor:
    return vectors.masked_fill(~is_used[..., None], value)


def check(clean: Found, dirty: Found) -> None:
    assert bool(clean[0].isfinite())
    torch.testing.assert_close(dirty, clean)


VALUES = pytest.mark.parametrize("value", [math.nan, math.inf, -3e38])


@VALUES
@pytest.mark.parametrize("drawn", [None, "shared", "own"])
def test_a_bank(value: float, drawn: str | None) -> None:
    """Latents of the rows' own sequence, in a bank of which everything or a draw is met."""
    sequences = torch.tensor([0, 1, 2, 0, 3, 4])
    draw = None
    if drawn is not None:
        ids = torch.tensor([1, 3, 4]) if drawn == "shared" else torch.tensor([[1, 3, 4], [3, 0, 5]])
        draw = Draw(ids, torch.zeros(ids.shape), torch.zeros(2))

    def loss(latents: Tensor) -> Callable[..., Tensor]:
        bank, own = LatentBank(latents, sequences), torch.zeros(2, dtype=torch.long)
        return lambda queries, positives: bank_loss(queries, positives, bank, draw, sequence_id=own).loss

    inputs, latents = (random(2, 4), random(2, 4, seed=1)), random(6, 4, seed=2)
    dirty = filled(latents, sequences != 0, value)
    check(attach_gradients(loss(latents), *inputs), attach_gradients(loss(dirty), *inputs))


@VALUES
@pytest.mark.parametrize("form", ["softmax", "logistic"])
@pytest.mark.parametrize("own", [False, True])
def test_classes(value: float, form: str, own: bool) -> None:
    """Places of a draw that are empty, and those of targets that a row does not have."""
    target_shifts, shifts = torch.tensor([[0.0, torch.inf], [0.0, 0.0]]), torch.tensor([0.0, torch.inf, 0.3])
    shifts = shifts.expand(2, -1) if own else shifts

    def loss(queries: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
        return candidate_loss(
            queries, candidates, None, (targets, None), ScoreCorrections(shifts, target_shifts), form
        ).loss

    queries, targets = random(2, 4), random(2, 2, 4, seed=1)
    candidates = random(2, 3, 4, seed=2) if own else random(3, 4, seed=2)
    dirty = filled(targets, target_shifts < torch.inf, value), filled(candidates, shifts < torch.inf, value)
    check(attach_gradients(loss, queries, targets, candidates), attach_gradients(loss, queries, *dirty))


@pytest.mark.parametrize("place", [0, 2, 4])
def test_what_a_row_meets_is_not_hidden(place: int) -> None:
    """A positive, a negative, and one that some rows alone meet."""
    latents = random(2, 3, 4)
    latents.view(6, 4)[place] = math.nan
    assert bool(contrast(random(1, 2, 3, 4), latents, strategy="mixed_excluding").loss.isnan())
    draw = Draw(torch.tensor([0, 1]), torch.zeros(2), torch.zeros(1))
    bank = LatentBank(latents.view(6, 4)[[place, 1]])
    for of_bank in (None, draw):
        assert bool(bank_loss(random(1, 4), random(1, 4), bank, of_bank).loss.isnan())
