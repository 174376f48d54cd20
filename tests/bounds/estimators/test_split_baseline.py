import math

import pytest
import torch

from cpc.bounds.estimators import split_baseline, tuba
from cpc.bounds.tasks import task_named


def test_the_first_half_of_a_rows_negatives_against_a_loop(generator: torch.Generator) -> None:
    scores = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    candidates = torch.rand(4, 7, generator=generator) < 0.8
    candidates[:, 5:] = True
    positives = torch.tensor([0, 6, 3, 2])
    log_baseline, others = split_baseline(scores, positives, candidates)
    for i in range(4):
        negatives = [j for j in range(7) if j != positives[i] and candidates[i, j]]
        first = negatives[: len(negatives) // 2]
        expected = math.log(sum(math.exp(scores[i, j]) for j in first) / len(first))
        assert log_baseline[i].item() == pytest.approx(expected)
        assert others[i].nonzero().flatten().tolist() == negatives[len(first) :]


def test_a_critic_that_lost_its_rows_constants_reads_a_lower_bound(generator: torch.Generator) -> None:
    """The exact critic plus noise of the row's own: TUBA with a baseline of 1 falls apart, this one stays near I."""
    task, readings = task_named("gaussian", 1.0, 2), []
    for _ in range(200):
        scores = task.log_density_ratio(*task.sample(128, generator))
        scores = scores + 3 * torch.randn(128, 1, generator=generator, dtype=torch.float64)
        log_baseline, candidates = split_baseline(scores)
        readings.append(tuba(scores, candidates=candidates, log_baseline=log_baseline).nats)
    readings = torch.stack(readings)
    standard_error = readings.std() / 200**0.5
    assert readings.mean() < 1 + 3 * standard_error
    assert readings.mean() > 0.85
    assert tuba(scores, log_baseline=torch.zeros(128).double()).nats < -10


def test_one_negative_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="N of at least 3"):
        split_baseline(torch.zeros(2, 2))
