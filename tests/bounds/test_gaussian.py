import math

import pytest
import torch

from cpc.bounds import VectorAR1, optimal_bound_nats
from cpc.bounds.gaussian import is_biased
from cpc.losses import info_nce


@pytest.mark.parametrize(("information_nats", "num_candidates"), [(0.5, 2), (2, 16), (6, 16), (6, 256)])
def test_the_optimum_is_what_the_exact_critic_reads_in_many_dimensions(
    information_nats: float, num_candidates: int
) -> None:
    """Against simulation: lag one of a vector AR(1) of 400 dimensions with that information."""
    dim = 400
    process = VectorAR1(math.sqrt(-math.expm1(-2 * information_nats / dim)), dim)
    assert process.mutual_information_nats(1) == pytest.approx(information_nats)
    generator = torch.Generator().manual_seed(0)
    readings = []
    for _ in range(47):  # 12 032 pairs, each among its own group of N
        pairs = process.sample(256, 2, generator)
        scores = process.optimal_scores(pairs[:, 0], pairs[:, 1], step=1)
        groups = torch.arange(256).split(num_candidates)
        group_scores = torch.cat([scores[group][:, group] for group in groups])
        positives = torch.arange(num_candidates).repeat(len(groups))
        result = info_nce(group_scores, torch.eye(num_candidates, dtype=torch.float64), positives)
        reading = torch.log(result.num_candidates.double()) - result.loss_nats
        readings.append(reading.reshape(-1, num_candidates).mean(1))
    readings = torch.cat(readings)
    standard_error = (readings.std() / len(readings) ** 0.5).item()
    assert standard_error < 0.04
    assert optimal_bound_nats(information_nats, num_candidates) == pytest.approx(
        readings.mean().item(), abs=3 * standard_error + 0.01
    )


@pytest.mark.parametrize(
    ("information_nats", "tabled"),
    [(2, (1.52, 1.89, 1.96)), (4, (2.30, 3.34, 3.70)), (6, (2.62, 4.22, 4.96)), (10, (2.76, 4.79, 6.05))],
)
def test_twenty_dimensions_are_nearly_many(information_nats: float, tabled: tuple[float, ...]) -> None:
    """The table of docs/theory.md, simulated in 20 dimensions: the fewer, the nearer the optimum is to the truth."""
    for num_candidates, reading in zip((16, 129, 512), tabled, strict=True):
        below = reading - optimal_bound_nats(information_nats, num_candidates)
        assert -0.005 < below < 0.16


def test_the_limits() -> None:
    for num_candidates in (2, 129, 5000):
        assert optimal_bound_nats(0, num_candidates) == pytest.approx(0, abs=2e-4)
        assert optimal_bound_nats(60, num_candidates) == pytest.approx(math.log(num_candidates), abs=2e-4)
    assert optimal_bound_nats(3, 1) == pytest.approx(0, abs=2e-4)
    assert optimal_bound_nats(1, 1e7) == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize(
    ("reading", "num_candidates", "biased"),
    [
        (1.52, 16, True),  # by the table: of 2 nats
        (2.30, 16, True),
        (1.89, 129, False),  # of 2 nats
        (3.34, 129, True),  # of 4 nats
        (1.96, 512, False),
        (4.96, 512, True),
        (2.77, 16, True),  # at the ceiling
        (0.02, 16, False),
        (-1.0, 16, False),
        (math.nan, math.nan, False),  # a step without rows
    ],
)
def test_a_reading_is_biased_if_it_would_be_optimal_far_above_it(
    reading: float, num_candidates: float, biased: bool
) -> None:
    assert is_biased(reading, num_candidates) is biased
