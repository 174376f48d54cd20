"""Many score matrices against one pass over all of their rows."""

import math

import pytest
import torch
from torch import Tensor

from cpc.bounds.estimates import Estimate, EstimateTally, pooled
from cpc.bounds.estimators import ESTIMATORS


def some_scores(num_matrices: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 9, (num_matrices,), generator=generator).tolist()
    return [1.5 * torch.randn(n, n, generator=generator, dtype=torch.float64) for n in sizes]


def read(name: str, scores: Tensor) -> Estimate:
    options = {"log_baseline": scores.mean(1)} if ESTIMATORS[name].needs_baseline else {}
    return ESTIMATORS[name].estimate(scores, **options)


def tallied(estimates: list[Estimate]) -> EstimateTally:
    tally = EstimateTally()
    for reading in estimates:
        tally.update(reading)
    return tally


@pytest.mark.parametrize("name", ESTIMATORS)
def test_readings_are_one_pass_over_the_concatenation(name: str) -> None:
    estimates = [read(name, scores) for scores in some_scores(6)]
    nats, _ = tallied(estimates).compute()
    assert nats == pytest.approx(pooled(estimates).nats.item(), rel=1e-12)


@pytest.mark.usefixtures("unchecked_types")  # of 4000 equal calls
@pytest.mark.parametrize("name", ["info_nce", "nwj", "dv", "js_kl"])
def test_their_standard_error_is_the_spread_of_such_averages(name: str) -> None:
    """Groups of 40 matrices, 100 times over."""
    estimates = [read(name, scores / 2) for scores in some_scores(4000)]
    groups = [tallied(estimates[start : start + 40]).compute() for start in range(0, 4000, 40)]
    averages, errors = torch.tensor(groups, dtype=torch.float64).unbind(1)
    assert errors.square().mean().sqrt().item() == pytest.approx(averages.std().item(), rel=0.2)


def test_large_scores_pool() -> None:
    scores = [torch.full((3, 3), 1e4, dtype=torch.float64), torch.full((4, 4), -1e4, dtype=torch.float64)]
    nats, _ = tallied([read("dv", s) for s in scores]).compute()
    expected = (3 * 1e4 - 4 * 1e4) / 7 - (1e4 + math.log(3 / 7))
    assert nats == pytest.approx(expected)


def test_one_matrix_has_no_standard_error_and_none_nothing_to_read() -> None:
    assert math.isnan(tallied([read("nwj", some_scores(1)[0])]).compute()[1])
    with pytest.raises(ValueError, match="no score matrix"):
        EstimateTally().compute()
