"""Tests of the excess of log N - L from repeated negatives."""

import itertools
import math

import pytest
import torch
from oracles import exact_critic

from cpc.bounds import BoundTally, VectorAR1
from cpc.candidates import draw_excess_nats, interpretation
from cpc.losses import contrast


@pytest.mark.parametrize(
    ("num_negatives", "pools"), [(1, (1, 9)), (7, (1, 2)), (3, (8, 4, 1)), (5, (6, 3)), (2, (40,))]
)
def test_the_excess_is_the_mean_over_all_draws(num_negatives: int, pools: tuple[int, ...]) -> None:
    """By enumeration of every draw with replacement: log(N E[1 / (1 + D)]), D the distinct ones of each."""
    expected = []
    for pool in pools:
        draws = itertools.product(range(pool), repeat=num_negatives)
        shares = [1 / (1 + len(set(draw))) for draw in draws]
        expected.append(math.log((1 + num_negatives) * math.fsum(shares) / len(shares)))
    assert draw_excess_nats(num_negatives, torch.tensor(pools)).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("num_negatives", "pool"), [(128, 1016), (500, 20), (4096, 64), (3, 50_000)])
def test_the_excess_of_many_draws_follows_the_law_of_their_distinct_ones(num_negatives: int, pool: int) -> None:
    """By the law of D, draw after draw: the next is new with chance 1 - D / P."""
    distinct = torch.arange(min(num_negatives, pool) + 1, dtype=torch.float64)
    proposal = (distinct == 0).double()
    for _ in range(num_negatives):
        proposal = proposal * distinct / pool + torch.cat(
            [proposal.new_zeros(1), (proposal * (1 - distinct / pool))[:-1]]
        )
    expected = math.log((1 + num_negatives) * float((proposal / (1 + distinct)).sum()))
    assert draw_excess_nats(num_negatives, torch.tensor([pool])).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("num_negatives", "is_bound"), [(4096, False), (12, True), (None, True)])
def test_the_exact_critic_exceeds_the_truth_by_repeated_draws(num_negatives: int | None, is_bound: bool) -> None:
    """6 nats, pools of 64: many draws read more, by less than the excess allowed for, and are not called a bound."""
    process, tally, generator = VectorAR1(0.6717, 20), BoundTally(), torch.Generator().manual_seed(0)
    truth = process.mutual_information_nats(1)
    options = {"strategy": "mixed_excluding", "num_negatives": num_negatives, "generator": generator}
    for _ in range(12):
        queries, latents = exact_critic(process, process.sample(33, 2, generator).float())
        tally.update(contrast(queries[None], latents, **options))
    bound = tally.compute("mixed_excluding", "test")
    reading, excess = bound.mi_bound_nats[0], bound.draw_excess_nats[0]
    error = 3 * bound.standard_error_nats[0]
    assert (reading - error > truth) == (not is_bound)
    assert reading - error < truth + excess
    assert bound.reading.startswith("lower bound") == is_bound
    assert (excess == 0) == (num_negatives is None)


def test_the_words_name_every_excess() -> None:
    assert interpretation("mixed_excluding", False, 0.05).startswith("lower bound on I(z; c) plus up to 0.1, if")
    assert interpretation("mixed_excluding", True, 0.05).startswith(
        "lower bound on I(z; c) plus up to log(H / (H - k)) + "
    )
    for on_grid in (False, True):
        assert interpretation("mixed_excluding", on_grid, 0.2) == "drawn negatives repeat, not a bound on I(z; c)"
    assert interpretation("mixed", False, 0.2) == "in-sequence candidates, not a bound on I(z; c)"
