"""Every input that can learn gets its gradient, beside any others that do, as often as it is asked for.

That these gradients are right is shown beside each loss: test_definition.py, test_class_loss.py, test_bank_loss.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from cpc.candidates import LatentBank
from cpc.candidates.samplers import Draw
from cpc.losses import bank_loss, class_loss, contrast, info_nce
from cpc.losses.engine.tiles import DRAWN_BEYOND

M, N, D, R = 4, 7, 3, 5
MANY = R * DRAWN_BEYOND + 1
ROWS, TEMPERATURE = torch.arange(M), {"temperature": torch.tensor(0.7, dtype=torch.float64)}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def negatives(num: int) -> Tensor:
    """Any but the positive, which is the row's number."""
    return (ROWS[:, None] + torch.randint(1, num, (M, R), generator=torch.Generator().manual_seed(1))) % num


class Case(NamedTuple):
    """A loss and the inputs that can learn."""

    ours: Callable[..., Tensor]
    inputs: dict[str, Tensor]


VECTORS = {"queries": random(M, D), "candidates": random(N, D, seed=1)}
IN_FLOAT32 = {name: each.float() for name, each in VECTORS.items()}
CLASSES = {"queries": random(M, D), "classes": random(N, D, seed=1), "bias": random(N, seed=2)} | TEMPERATURE
PAIRS = {"queries": random(M, D), "positives": random(M, D, seed=1)} | TEMPERATURE
BANK = random(N, D, seed=3)
CASES = {
    "contrast": Case(
        lambda queries, latents: contrast(queries, latents).loss,
        {"queries": random(2, 3, 5, D), "latents": random(3, 5, D, seed=1)},
    ),
    "contrast, drawn": Case(
        lambda queries, latents: (
            contrast(queries, latents, num_negatives=R, generator=torch.Generator().manual_seed(0)).loss
        ),
        {"queries": random(2, 3, 5, D), "latents": random(3, 5, D, seed=1)},
    ),
    "all": Case(
        lambda queries, candidates, temperature: info_nce(queries, candidates, ROWS, temperature=temperature).loss,
        VECTORS | TEMPERATURE,
    ),
    "bf16": Case(lambda queries, candidates: info_nce(queries, candidates, ROWS, compute="bf16").loss, IN_FLOAT32),
    **{
        f"drawn from {num}": Case(
            lambda queries, candidates: info_nce(queries, candidates, ROWS, negatives=negatives(len(candidates))).loss,
            {"queries": random(M, D), "candidates": random(num, D, seed=1)},
        )
        for num in (N, 3 * R, MANY)
    },
    "bf16, drawn": Case(
        lambda queries, candidates: info_nce(queries, candidates, ROWS, negatives=negatives(MANY), compute="bf16").loss,
        {"queries": random(M, D).float(), "candidates": random(MANY, D, seed=1).float()},
    ),
    "classes": Case(lambda **inputs: class_loss(targets=ROWS, objective="full_softmax", **inputs).loss, CLASSES),
    "classes, logistic": Case(
        lambda **inputs: class_loss(targets=ROWS, objective="full_logistic", **inputs).loss, CLASSES
    ),
    "classes, drawn": Case(
        lambda **inputs: (
            class_loss(
                targets=ROWS,
                draw=Draw(negatives(N), torch.zeros(M, R), torch.zeros(M)),
                objective="sampled_softmax",
                **inputs,
            ).loss
        ),
        CLASSES,
    ),
    "bank": Case(lambda **inputs: bank_loss(bank=LatentBank(BANK), **inputs).loss, PAIRS),
    "bank, drawn": Case(
        lambda **inputs: (
            bank_loss(bank=LatentBank(BANK), draw=Draw(negatives(N), torch.zeros(M, R), torch.zeros(M)), **inputs).loss
        ),
        PAIRS,
    ),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def leaves(case: Case, learning: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: each.clone().requires_grad_(name in learning) for name, each in case.inputs.items()}


@EACH
def test_each_input_learns_beside_others_and_by_itself(case: Case) -> None:
    names = tuple(case.inputs)
    inputs = leaves(case, names)
    together = torch.autograd.grad(case.ours(**inputs), inputs.values())
    for name, expected in zip(names, together, strict=True):
        inputs = leaves(case, (name,))
        case.ours(**inputs).backward()
        torch.testing.assert_close(inputs[name].grad, expected)
        assert not any(each.grad is not None for other, each in inputs.items() if other != name)


@EACH
def test_a_gradient_that_was_handed_out_is_the_callers_own(case: Case) -> None:
    """Inputs pass through a view, as those of a model do: torch then keeps the gradient that it is given."""
    inputs = leaves(case, tuple(case.inputs))
    loss = case.ours(**{name: each.unsqueeze(0).squeeze(0) for name, each in inputs.items()})
    loss.backward(retain_graph=True)
    first = {name: each.grad.clone() for name, each in inputs.items()}
    for spoil in (lambda gradient: gradient.zero_(), lambda gradient: gradient.data.fill_(9)):
        for each in inputs.values():
            spoil(each.grad)
            each.grad = None
        loss.backward(retain_graph=True)
        for name, each in inputs.items():
            torch.testing.assert_close(each.grad, first[name])
