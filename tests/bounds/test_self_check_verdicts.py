"""Errors of differences, and the verdicts on them."""

import math
from collections.abc import Callable

import pytest
import torch

from cpc.bounds.estimators import ESTIMATORS, info_nce
from cpc.bounds.readings import ReadingTally, weighted_sum
from cpc.bounds.self_consistency import largest_error, verdict


@pytest.mark.parametrize("name", ["info_nce", "nwj", "dv", "js_kl"])
def test_the_error_of_a_difference_is_that_of_the_spread_over_batches(name: str) -> None:
    """Of estimates that share batches; 60 groups of 30 batches. Separate errors would be far too large."""
    generator = torch.Generator().manual_seed(0)
    differences, errors, apart = [], [], []
    read: Callable = ESTIMATORS[name].read
    for _ in range(60):
        one, other = ReadingTally(), ReadingTally()
        for _ in range(30):
            shared = torch.randn((), generator=generator, dtype=torch.float64)
            scores = torch.randn(6, 6, generator=generator, dtype=torch.float64) / 2 + shared * torch.eye(6)
            one.update(read(scores))
            other.update(read(scores + 0.2 * torch.randn(6, 6, generator=generator, dtype=torch.float64)))
        difference, error = weighted_sum([one, other], [1.0, -1.0])
        assert difference == pytest.approx(one.compute()[0] - other.compute()[0])
        differences.append(difference)
        errors.append(error)
        apart.append(math.hypot(one.compute()[1], other.compute()[1]))
    spread = torch.tensor(differences).std().item()
    assert torch.tensor(errors).square().mean().sqrt().item() == pytest.approx(spread, rel=0.25)
    assert torch.tensor(apart).square().mean().sqrt().item() > 2 * spread


def test_tallies_without_common_batches_have_no_difference() -> None:
    one, other = ReadingTally(), ReadingTally()
    one.update(info_nce(torch.eye(3)))
    with pytest.raises(ValueError, match=r"tallies of \[0, 1\] matrices have no common batches"):
        weighted_sum([one, other], [1.0, -1.0])


def test_few_batches_allow_more_errors() -> None:
    """The quantile of Student's t by simulation: as rare as 3 known standard errors, one-sided (0.00135)."""
    assert largest_error(10_000) == pytest.approx(3, abs=1e-2)
    assert largest_error(1) == math.inf
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(400_000, 4, generator=generator, dtype=torch.float64)
    ratios = batches.mean(1) / (batches.std(1) / 2)
    assert (ratios > largest_error(4)).double().mean().item() == pytest.approx(0.00135, rel=0.15)


@pytest.mark.parametrize(
    ("check", "difference", "error", "reading", "reference", "num_candidates", "expected"),
    [
        ("shuffled", 0.05, 0.01, 0.05, 0.0, 100, "failed"),
        ("shuffled", 0.05, 0.02, 0.05, 0.0, 100, "passed"),
        ("shuffled", -9.0, 0.5, -9.0, 0.0, 100, "passed"),  # an error of a nat, and yet far below 0
        ("shuffled", -9.0, 5.0, -9.0, 0.0, 100, "not measured"),
        ("shuffled", math.nan, math.nan, math.nan, 0.0, 100, "not measured"),
        ("data_processing", 0.05, 0.01, 1.05, 1.0, 100, "failed"),
        ("data_processing", -0.05, 0.01, 1.0, 1.05, 100, "passed"),
        ("data_processing", -0.05, 0.01, 4.5, 4.55, 100, "limited by the ceiling"),
        ("data_processing", -0.05, 0.01, 4.5, 4.55, None, "passed"),
        ("rescaling", 0.05, 0.01, 1.05, 1.0, 100, "failed"),
        ("rescaling", -0.05, 0.01, 4.5, 4.55, 100, "limited by the ceiling"),
        ("additivity", -0.09, 0.001, 1.91, 2.0, 1000, "passed"),
        ("additivity", 0.2, 0.01, 2.2, 2.0, 1000, "failed"),
        ("additivity", -1.0, 0.01, 1.0, 2.0, 1000, "failed"),  # N = 1000 shows 2 nats
        ("additivity", -1.5, 0.01, 4.5, 6.0, 129, "limited by the ceiling"),
        ("additivity", -1.5, 0.01, 4.5, 6.0, None, "failed"),
        ("additivity", 0.0, 0.5, 6.0, 6.0, None, "not measured"),
    ],
)
def test_verdicts(
    check: str,
    difference: float,
    error: float,
    reading: float,
    reference: float,
    num_candidates: int | None,
    expected: str,
) -> None:
    assert verdict(check, difference, error, 64, reading, reference, num_candidates) == expected  # type: ignore[arg-type]
    assert verdict(check, difference, math.inf, 64, reading, reference, num_candidates) == "not measured"  # type: ignore[arg-type]
