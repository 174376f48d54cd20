"""The optimum of the exact critic on Gaussians, its inverse, and advice."""

import json
import math
from dataclasses import replace

import pytest
import torch

from cpc.bounds import Bound, VectorAR1
from cpc.bounds.gaussian import advice, information_at_bound_nats, is_biased, optimal_bound_nats
from cpc.candidates import STRATEGIES
from cpc.losses import info_nce


@pytest.mark.parametrize(("information_nats", "num_candidates"), [(0.5, 2), (2, 16), (6, 16), (6, 256)])
def test_the_optimum_is_what_the_exact_critic_reads_in_many_dims(information_nats: float, num_candidates: int) -> None:
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


def test_a_reading_is_biased_if_it_would_be_optimal_far_above_it() -> None:
    """By the table above; a reading at the ceiling is biased, a step without rows is not."""
    for reading, num_candidates in ((1.52, 16), (2.30, 16), (3.34, 129), (2.77, 16)):
        assert is_biased(reading, num_candidates) is True
    for reading, num_candidates in ((1.89, 129), (1.96, 512), (-1.0, 16), (math.nan, math.nan)):
        assert is_biased(reading, num_candidates) is False


@pytest.mark.parametrize("num_candidates", [2, 16, 129, 1024])
@pytest.mark.parametrize("information_nats", [0.2, 1.0, 2.5])
def test_the_inverse_gives_the_information_back(information_nats: float, num_candidates: int) -> None:
    reading = optimal_bound_nats(information_nats, num_candidates)
    assert information_at_bound_nats(reading, num_candidates) == pytest.approx(information_nats, abs=5e-3)


def test_the_ends_of_the_inverse() -> None:
    assert information_at_bound_nats(-0.1, 16) == 0
    assert information_at_bound_nats(0, 16) == 0
    assert information_at_bound_nats(math.log(16) - 0.01, 16) == math.inf
    assert information_at_bound_nats(math.log(16) - 0.03, 16) < 20
    assert information_at_bound_nats(0.3, 10**6) == pytest.approx(0.3, abs=2e-3)


@pytest.mark.parametrize("reading", [1e-5, 1e-4, 5e-4])
def test_a_reading_of_next_to_nothing_has_an_inverse(reading: float) -> None:
    assert information_at_bound_nats(reading, 129) == pytest.approx(0, abs=2e-3)
    assert math.isnan(information_at_bound_nats(math.nan, 129))


@pytest.mark.parametrize(("reading", "num_candidates"), [(1.88, 129), (-0.5, 16), (math.nan, math.nan)])
def test_a_reading_near_the_truth_needs_no_advice(reading: float, num_candidates: float) -> None:
    assert advice(reading, num_candidates, "batch_size") == ""


def a_bound(strategy: str = "mixed_excluding", direction: str = "", excess: float = 0.0, n: float = 129.0) -> Bound:
    """Steps that read 4.1 and 4.8 at a ceiling of log 129."""
    ceiling = math.log(129)
    lists = ([0.7, 0.1], [n] * 2, [ceiling] * 2, [4.103, 4.8], [0.01] * 2, [0.5] * 2, [excess] * 2)
    return Bound([1, 2], [direction] * 2, strategy, "valid", 3, [9, 9], *lists)


def test_only_a_bound_is_inverted() -> None:
    told = a_bound().advice("num_negatives")
    assert told[0] == "at N = 129 a true 6.0 nats reads 4.1 for Gaussians: raise num_negatives"
    assert told[1] == "at N = 129 the truth may be any 8.3 nats or more, for Gaussians: raise num_negatives"
    assert a_bound().biased == [True, True]
    others = [a_bound(strategy) for strategy in STRATEGIES if strategy != "mixed_excluding"]
    for bound in [*others, a_bound(direction="down"), a_bound(excess=0.2)]:
        assert bound.advice("num_negatives") == ["", ""]
        assert bound.biased == [False, False]
        assert bound.saturated == [False, True]  # whatever the strategy, nothing reads above log N
    assert a_bound(excess=0.05).biased == [True, True]


def test_a_record_says_none_where_json_has_no_number() -> None:
    ceiling_bound = replace(a_bound(), mi_bound_nats=[4.103, math.log(129)], loss_nats=[0.7, math.nan])
    record = json.loads(json.dumps(ceiling_bound.record(5), allow_nan=False))
    assert record["information_for_gaussians_nats"] == [pytest.approx(6.0, abs=0.05), None]
    assert record["loss_nats"] == [0.7, None]
    assert a_bound("mixed").record(5)["information_for_gaussians_nats"] == [None, None]


def test_ragged_rows_are_judged_at_the_n_of_their_ceiling() -> None:
    assert a_bound(n=500.0).advice("batch_size") == a_bound().advice("batch_size")
