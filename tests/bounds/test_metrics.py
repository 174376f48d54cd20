"""Sums over ragged batches and ranks against one pass over everything."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from cpc.bounds import BoundTally
from cpc.bounds.estimators import ESTIMATORS, Reading, pooled
from cpc.bounds.metrics import BoundMetric, ReadingMetric
from cpc.losses import Contrast, contrast
from cpc.predictors import Step

STEPS = [Step("", 1), Step("", 2)]
SHAPES = [(4, 6), (3, 3), (7, 5), (2, 6), (5, 4)]  # sequences, valid latents


def a_contrast(num_sequences: int, num_valid: int, seed: int) -> Contrast:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(2, num_sequences, 6, 4, generator=generator)
    latents = torch.randn(num_sequences, 6, 4, generator=generator)
    return contrast(queries, latents, num_valid=torch.full((num_sequences,), num_valid))


@pytest.fixture
def contrasts() -> list[Contrast]:
    return [a_contrast(*shape, seed) for seed, shape in enumerate(SHAPES)]


def a_metric(contrasts: list[Contrast], **options: object) -> BoundMetric:
    metric = BoundMetric(STEPS, **options)
    for each in contrasts:
        metric.update(each)
    return metric


def assert_equal(bound: object, expected: object) -> None:
    for name, value in asdict(expected).items():
        found = asdict(bound)[name]
        assert found == (pytest.approx(value, rel=1e-6) if isinstance(value, list) and name != "directions" else value)


def test_the_bound_over_ragged_batches_is_the_tallys(contrasts: list[Contrast]) -> None:
    """BoundTally keeps every batch, and is itself tested against the loops."""
    tally = BoundTally(STEPS)
    for each in contrasts:
        tally.update(each)
    assert_equal(a_metric(contrasts).bound("mixed", "valid"), tally.compute("mixed", "valid"))


def test_the_bound_over_ranks_is_that_of_all_batches(contrasts: list[Contrast]) -> None:
    """Two ranks with three and two batches of different sizes; the mean of their bounds would be another."""
    merged = a_metric(contrasts[:3])
    merged.merge_state(a_metric(contrasts[3:]))
    whole = a_metric(contrasts).bound("mixed", "valid")
    assert_equal(merged.bound("mixed", "valid"), whole)
    of_ranks = [a_metric(part).bound("mixed", "valid").mi_bound_nats[0] for part in (contrasts[:3], contrasts[3:])]
    assert sum(of_ranks) / 2 != pytest.approx(whole.mi_bound_nats[0], rel=1e-3)


def test_what_ranks_gather_is_summed(contrasts: list[Contrast]) -> None:
    """torchmetrics' own synchronisation, with a gathering that hands over the other rank's states in their order."""
    other = a_metric(contrasts[3:])
    states = iter([other.num_batches, other.sums, other.products])
    mine = a_metric(
        contrasts[:3],
        dist_sync_fn=lambda state, group=None: [state, next(states)],
        distributed_available_fn=lambda: True,
    )
    assert_equal(mine.bound("mixed", "valid"), a_metric(contrasts).bound("mixed", "valid"))


def test_batches_without_rows_of_a_step_are_no_units_of_it(contrasts: list[Contrast]) -> None:
    """k = 2 has rows in two batches only, and loses its standard error with one of them."""
    ragged = [a_contrast(3, 2, seed=7), *contrasts[:2], a_contrast(5, 2, seed=8)]
    tally = BoundTally(STEPS)
    for each in ragged:
        tally.update(each)
    assert_equal(a_metric(ragged).bound("mixed", "valid"), tally.compute("mixed", "valid"))
    of_two = a_metric(contrasts[:2]).bound("mixed", "valid").standard_error_nats[1]
    assert a_metric(ragged).bound("mixed", "valid").standard_error_nats[1] == pytest.approx(of_two)
    assert math.isnan(a_metric(ragged[:2]).bound("mixed", "valid").standard_error_nats[1])


def test_one_batch_has_no_standard_error(contrasts: list[Contrast]) -> None:
    metric = a_metric(contrasts[:1])
    bound = metric.bound("mixed", "valid")
    assert metric.bound("mixed_excluding", "test").mi_bound_nats == bound.mi_bound_nats  # asked again
    assert all(math.isnan(error) for error in bound.standard_error_nats)
    assert bound.num_batches == 1


def test_a_single_step_keeps_its_list(contrasts: list[Contrast]) -> None:
    """torchmetrics hands results of one number out without an axis."""
    metric = BoundMetric(STEPS[:1])
    for each in contrasts:
        metric.update(each._replace(**{name: getattr(each, name)[:1] for name in each._fields[1:]}))
    whole = a_metric(contrasts).bound("mixed", "valid")
    assert metric.bound("mixed", "valid").mi_bound_nats == pytest.approx(whole.mi_bound_nats[:1])


def some_scores(num_matrices: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 9, (num_matrices,), generator=generator).tolist()
    return [1.5 * torch.randn(n, n, generator=generator, dtype=torch.float64) for n in sizes]


def read(name: str, scores: Tensor) -> Reading:
    options = {"log_baseline": scores.mean(1)} if ESTIMATORS[name].needs_baseline else {}
    return ESTIMATORS[name].read(scores, **options)


def a_reading_metric(readings: list[Reading]) -> ReadingMetric:
    metric = ReadingMetric()
    for reading in readings:
        metric.update(reading)
    return metric


@pytest.mark.parametrize("name", ESTIMATORS)
def test_readings_are_one_pass_over_the_concatenation(name: str) -> None:
    readings = [read(name, scores) for scores in some_scores(6)]
    nats, _ = a_reading_metric(readings).compute()
    assert nats.item() == pytest.approx(pooled(readings).nats.item(), rel=1e-12)
    ranks = [a_reading_metric(readings[:4]), a_reading_metric(readings[4:])]
    ranks[0].merge_state(ranks[1])
    assert ranks[0].compute()[0].item() == pytest.approx(nats.item(), rel=1e-12)


@pytest.mark.parametrize("name", ["nwj", "dv"])
def test_ranks_gather_their_matrices(name: str) -> None:
    """As torchmetrics gathers: every state of the other rank, concatenated, in the order in which they were added."""
    readings = [read(name, scores) for scores in some_scores(6)]
    other = a_reading_metric(readings[4:])
    lists = (other.num_rows, other.joint_nats, other.log_marginal)
    states = iter([*map(torch.cat, lists), other.is_log])
    mine = ReadingMetric(
        dist_sync_fn=lambda state, group=None: [state, next(states)], distributed_available_fn=lambda: True
    )
    for reading in readings[:4]:
        mine.update(reading)
    expected = a_reading_metric(readings).compute()
    assert [v.item() for v in mine.compute()] == pytest.approx([v.item() for v in expected], rel=1e-12)


@pytest.mark.parametrize("name", ["info_nce", "nwj", "dv"])
def test_their_standard_error_is_the_spread_of_such_averages(name: str) -> None:
    """Groups of 40 matrices, 100 times over."""
    readings = [read(name, scores / 2) for scores in some_scores(4000)]
    metrics = [a_reading_metric(readings[start : start + 40]).compute() for start in range(0, 4000, 40)]
    averages, errors = (torch.stack(part) for part in zip(*metrics, strict=True))
    assert errors.square().mean().sqrt().item() == pytest.approx(averages.std().item(), rel=0.2)


def test_large_scores_pool() -> None:
    scores = [torch.full((3, 3), 1e4, dtype=torch.float64), torch.full((4, 4), -1e4, dtype=torch.float64)]
    nats, _ = a_reading_metric([read("dv", s) for s in scores]).compute()
    expected = (3 * 1e4 - 4 * 1e4) / 7 - (1e4 + math.log(3 / 7))
    assert nats.item() == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_added() -> None:
    with pytest.raises(ValueError, match="no batch was added"):
        BoundMetric(STEPS).compute()
    with pytest.raises(ValueError, match="no score matrix"):
        ReadingMetric().compute()
