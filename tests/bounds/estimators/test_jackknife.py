"""Against the spread of the estimate over many matrices."""

import math

import pytest
import torch

from cpc.bounds.estimators import Reading, donsker_varadhan, info_nce, nwj, standard_error_nats
from cpc.bounds.tasks import task_named


@pytest.mark.parametrize("read", [info_nce, nwj, donsker_varadhan])
def test_it_is_the_standard_deviation_over_matrices(read: object, generator: torch.Generator) -> None:
    task = task_named("gaussian", 1.5, 3)
    matrices = [task.log_density_ratio(*task.sample(96, generator)) for _ in range(120)]
    spread = torch.stack([read(scores).nats for scores in matrices]).std().item()
    errors = torch.stack([standard_error_nats(read, scores) for scores in matrices[:40]])
    assert errors.square().mean().sqrt().item() == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize("num_pairs", [17, 24, 32, 100, 129])
def test_an_estimate_without_error_has_none(num_pairs: int) -> None:
    """Saturated InfoNCE reads log N of every group alike only if all groups are of one size."""
    scores = 60 * torch.eye(num_pairs, dtype=torch.float64)
    assert standard_error_nats(info_nce, scores).item() == pytest.approx(0, abs=1e-12)


def test_pairs_left_over_take_nothing_away(generator: torch.Generator) -> None:
    """24 pairs in 16 groups of one: of a mean over pairs, the mean square is the variance of the mean."""
    matrices = [torch.diag(torch.randn(24, generator=generator, dtype=torch.float64)) for _ in range(400)]

    def mean_of_positives(scores: torch.Tensor) -> Reading:
        return Reading(scores.diagonal(), torch.full((len(scores),), -math.inf, dtype=scores.dtype), is_log=False)

    squares = torch.stack([standard_error_nats(mean_of_positives, scores).square() for scores in matrices])
    assert squares.mean().item() == pytest.approx(1 / 24, rel=0.08)


def test_shared_candidates_count() -> None:
    """One candidate that draws every row's score: the rows agree with each other, and are all wrong together."""
    scores = torch.zeros(64, 64, dtype=torch.float64)
    scores[:, 5] = 6.0
    of_rows = info_nce(scores).joint_nats.std() / 8
    assert standard_error_nats(info_nce, scores) > 2 * of_rows


@pytest.mark.parametrize("shape", [(4, 5), (2, 2)])
def test_mistakes(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"square|fewest"):
        standard_error_nats(info_nce, torch.zeros(shape))
