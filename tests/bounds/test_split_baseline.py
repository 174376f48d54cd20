import math

import pytest
import torch

from cpc.bounds.estimators import interpolated, tuba
from cpc.bounds.sequences import mean_baseline, scored_rows, split_by_sequence
from cpc.bounds.tasks import make_task
from cpc.bounds.vector_ar1 import VectorAR1
from cpc.losses.candidate_sets import plan
from cpc.losses.rows import Geometry
from cpc.losses.sequences import Sequences


def test_the_mean_over_columns_against_a_loop(generator: torch.Generator) -> None:
    scores = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    columns = torch.rand(4, 7, generator=generator) < 0.5
    columns[:, 0] = True
    found = mean_baseline(scores, columns)
    for i in range(4):
        chosen = [math.exp(scores[i, j]) for j in range(7) if columns[i, j]]
        assert found[i].item() == pytest.approx(math.log(sum(chosen) / len(chosen)))


def test_sequences_are_parted_whole() -> None:
    ids = torch.tensor([4, 4, 1, 9, 9, 7])
    pool = torch.tensor([[True, False, True, True, True, True], [True, True, False, True, False, False]])
    first, second = split_by_sequence(pool, ids)
    assert first.tolist() == [[True, False, True, False, False, False], [True, True, False, False, False, False]]
    assert second.tolist() == [[False, False, False, True, True, True], [False, False, False, True, False, False]]
    with pytest.raises(ValueError, match="half of the sequences with candidates, and there are only 1"):
        split_by_sequence(pool[:, :2], ids[:2])


def test_a_critic_that_lost_its_rows_constants_reads_a_lower_bound(generator: torch.Generator) -> None:
    """The exact critic plus noise of the row's own: TUBA with a baseline of 1 falls apart, this one stays near I."""
    task, readings = make_task("gaussian", 1.0, 2), []
    pool = ~torch.eye(128, dtype=torch.bool)
    first, second = split_by_sequence(pool, torch.arange(128))
    for _ in range(200):
        scores = task.log_density_ratio(*task.sample(128, generator))
        scores = scores + 3 * torch.randn(128, 1, generator=generator, dtype=torch.float64)
        readings.append(tuba(scores, candidates=second, log_baseline=mean_baseline(scores, first)).nats)
    readings = torch.stack(readings)
    standard_error = readings.std() / 200**0.5
    assert readings.mean() < 1 + 3 * standard_error
    assert readings.mean() > 0.85
    assert tuba(scores, log_baseline=torch.zeros(128).double()).nats < -10


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("read", [tuba, interpolated])
def test_many_draws_of_a_small_pool_stay_below_the_truth(read: object) -> None:
    """6 nats, 64 latents of other sequences, 2000 draws: parted after the draw, TUBA read a nat more than there is."""
    coefficient, generator, readings = 0.6717, torch.Generator().manual_seed(0), []
    process = VectorAR1(coefficient, 20)
    x_factor, square_factor = coefficient / (1 - coefficient**2), -(coefficient**2) / (2 - 2 * coefficient**2)
    for _ in range(20):
        x = process.sample(33, 2, generator)
        square = x.square().sum(-1, keepdim=True)
        flat = torch.cat([x_factor * x, torch.full_like(square, square_factor)], -1), torch.cat([x, square], -1)
        planned = plan("mixed_excluding", Sequences.of(Geometry((2,), ("",), (1,)), 33)).rows
        flat = (each.flatten(0, 1) for each in flat)
        found = scored_rows(*flat, planned, torch.arange(33), num_negatives=2000, generator=generator)
        rows = [rows for _, rows in found]
        row_queries = [read(*each[:3], log_baseline=mean_baseline(each.scores, each.baseline)).nats for each in rows]
        readings.append(torch.stack(row_queries).mean())
    readings = torch.stack(readings)
    assert readings.mean() < process.mutual_information_nats(1) + 3 * readings.std() / 20**0.5
