"""Equal scores tie, though products round them differently: a collapsed encoder is right once in N, to the last bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpc.candidates import STRATEGIES, LatentBank
from cpc.candidates.samplers import Draw
from cpc.losses import bank_loss, class_loss, contrast, info_nce
from cpc.losses.engine.score_gradients import tie_width
from cpc.losses.engine.tiles import DRAWN_BEYOND

pytestmark = pytest.mark.usefixtures("unchecked_types")  # thousands of equal calls

M, R = 4, 3
PLACES = torch.arange(M)


def negatives(num: int) -> Tensor:
    return (PLACES[:, None] + torch.arange(1, R + 1)) % num


def draw(num: int, shared: bool) -> Draw:
    ids = torch.arange(R) + num - R if shared else negatives(num)
    return Draw(ids, torch.zeros(ids.shape), torch.zeros(M))


def of_classes(objective: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, z: class_loss(q, z, PLACES, objective=objective, bias=torch.full((len(z),), 7.3)).accuracy


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "info_nce": lambda q, z: info_nce(q, z, PLACES).accuracy,
    "reference": lambda q, z: info_nce(q, z, PLACES, compute="reference").accuracy,
    "temperature": lambda q, z: info_nce(q, z, PLACES, temperature=0.07).accuracy,
    "log counts": lambda q, z: info_nce(q, z, PLACES, log_count=torch.full((len(z),), -3.3)).accuracy,
    "full_softmax": of_classes("full_softmax"),
    "full_logistic": of_classes("full_logistic"),
    "bank": lambda q, z: bank_loss(q, z[:M], LatentBank(z[1:])).accuracy,
}
OF_DRAWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "info_nce": lambda q, z: info_nce(q, z, PLACES, negatives=negatives(len(z))).accuracy,
    "drawn here": lambda q, z: info_nce(q, z, PLACES, num_negatives=R).accuracy,
    **{
        f"{objective}, shared={shared}": lambda q, z, objective=objective, shared=shared: (
            class_loss(q, z, PLACES, draw(len(z), shared), objective=objective).accuracy
        )
        for objective in ("info_nce", "sampled_logistic")
        for shared in (False, True)
    },
    **{
        f"bank, shared={shared}": lambda q, z, shared=shared: (
            bank_loss(q, z[:M], LatentBank(z), draw(len(z), shared)).accuracy
        )
        for shared in (False, True)
    },
}


def collapsed(dim: int, num: int, kind: str) -> tuple[Tensor, Tensor]:
    """Queries, and latents that are all the same; entries of one value make errors that add up."""
    generator = torch.Generator().manual_seed(dim + num)
    if kind == "constant":
        return torch.full((M, dim), 0.7), torch.full((num, dim), 0.37)
    return torch.randn(M, dim, generator=generator), torch.randn(dim, generator=generator).repeat(num, 1)


COLLAPSED = [
    collapsed(dim, num, kind) for dim in (1, 48, 2048) for num in (7, 9, 37) for kind in ("random", "constant")
]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])


def check(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, num_candidates: int | None = None) -> None:
    for queries, latents in COLLAPSED:
        expected = [(1 / torch.tensor(float(num_candidates or len(latents)))).item()] * M
        assert loss(queries.to(dtype), latents.to(dtype)).tolist() == expected, (queries.shape[1], len(latents))


@DTYPES
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_of_all_candidates(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    check(loss, dtype)


@DTYPES
@pytest.mark.parametrize("loss", OF_DRAWS.values(), ids=OF_DRAWS)
def test_of_drawn_candidates(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    check(loss, dtype, R + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_rounded_products(dtype: torch.dtype) -> None:
    check(lambda q, z: info_nce(q, z, PLACES, compute="bf16").accuracy, dtype)
    check(lambda q, z: info_nce(q, z, PLACES, compute="bf16", num_negatives=R).accuracy, dtype, R + 1)


def test_of_few_drawn_candidates() -> None:
    num = R * DRAWN_BEYOND + 1
    for compute in ("float32", "bf16"):
        found = info_nce(*collapsed(300, num, "random"), PLACES, negatives=negatives(num), compute=compute)
        assert found.accuracy.tolist() == [1 / (R + 1)] * M


@pytest.mark.parametrize("num_negatives", [None, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_sequences(strategy: str, num_negatives: int | None) -> None:
    known = {"num_latents": torch.tensor([7, 5, 6]), "sequence_id": torch.tensor([0, 1, 0])}
    known["group_id"] = torch.zeros(3).long()
    latents, queries = torch.randn(200).expand(3, 7, 200), torch.randn(2, 3, 7, 200)
    found = contrast(queries, latents, strategy=strategy, num_negatives=num_negatives, **known)
    each = found.num_candidates / found.num_rows
    torch.testing.assert_close(found.accuracy, found.num_rows / each, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-10, 1e8])
def test_at_any_scale(scale: float) -> None:
    """Squares of the least of them underflow."""
    queries, latents = collapsed(384, 9, "random")
    for loss in LOSSES.values():
        assert loss(queries, scale * latents).tolist() == [(1 / torch.tensor(9.0)).item()] * M


@pytest.mark.parametrize("dim", [8, 512])
def test_what_differs_by_more_than_rounding_does_not_tie(dim: int) -> None:
    queries, latents = torch.rand(M, dim), torch.ones(9, dim)
    for change, expected in ((1e-3, 1.0), (-1e-3, 0.0)):
        latents[0] = 1 + change
        assert info_nce(queries, latents, torch.zeros_like(PLACES)).accuracy.tolist() == [expected] * M


def test_the_width_bounds_what_any_order_of_summation_errs() -> None:
    """Products summed one by one, the worst order, against float64."""
    for dim in (3, 100, 1000):
        for q, z in ((torch.rand(M, dim), torch.rand(dim)), (torch.full((M, dim), 0.7), torch.full((dim,), 0.37))):
            exact = q.double() @ z.double()
            one_by_one = torch.zeros(M)
            for each, other in zip(q.T, z, strict=True):
                one_by_one = one_by_one + each * other
            width = tie_width(q, z.norm().expand(M, 1))[:, 0]
            assert bool(((one_by_one - exact).abs() <= width / 2).all())
            assert bool((width < 2e-4 * q.norm(dim=1) * z.norm()).all())
