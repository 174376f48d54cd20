"""Drawn negatives, and the excess of log N - L from repeated ones."""

import itertools
import math

import pytest
import torch
from oracles import exact_critic
from scipy.stats import chisquare

from cpc.bounds import BoundTally, VectorAR1
from cpc.candidates import draw_excess_nats, draw_negatives, draws, interpretation
from cpc.candidates.draws import _draw
from cpc.losses import contrast


def test_uniform_over_exactly_the_rows_negatives() -> None:
    """Chi-square against the uniform law on the pool without the positive (facts T1, T2)."""
    generator = torch.Generator().manual_seed(0)
    pool = torch.rand(3, 20, generator=generator) < 0.6
    query_sequence = torch.tensor([0, 0, 1, 2, 2])
    positives = torch.tensor([0, 19, 7, 11, 3])  # inside and outside of their pools
    inside = pool[query_sequence, positives]
    assert inside.any()
    assert not inside.all()
    draws = draw_negatives(pool, query_sequence, positives, 40_000, generator)
    for row, sequence, positive in zip(draws, query_sequence, positives, strict=True):
        eligible = pool[sequence].clone()
        eligible[positive] = False
        counts = torch.bincount(row, minlength=20)
        assert counts[~eligible].sum() == 0
        assert chisquare(counts[eligible]).pvalue > 1e-4


@pytest.mark.parametrize("shares_pool", [False, True])
def test_draws_in_c_are_those_in_torch(shares_pool: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if draws.compiled(draws.SOURCE) is None:
        pytest.skip("no C compiler")
    pool = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    pool = pool[:1].expand(3, -1) if shares_pool else pool
    rows = (torch.arange(10) % 3, torch.arange(10) * 3)
    found = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(1)
        found.append(draw_negatives(pool, *rows, 700, generator, num_before=10**9))
        monkeypatch.setattr(draws, "compiled", lambda source: None)
    assert torch.equal(*found)


def test_numbers_are_those_of_splitmix64() -> None:
    """The first three of seed 1234567, as its reference implementation prints them; here as places among 2^20."""
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    key, one = 1234567 + 0x9E3779B97F4A7C15 - 2**64, torch.zeros(1, dtype=torch.int64)  # it counts from 1
    for each in (key, torch.tensor(key)):
        places = _draw(each, 0, 3, one, one + 2**20, one + 2**40, torch.arange(2**20))
        assert places.tolist() == [[number >> 44 for number in published]]


def test_excludes_nothing_without_a_positive() -> None:
    draws = draw_negatives(torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, dtype=torch.long), None, 1000)
    assert draws.unique().tolist() == [0, 1, 2]


def test_a_row_without_negatives_is_refused() -> None:
    pool = torch.tensor([[False, True, False]])
    with pytest.raises(ValueError, match="1 of 1 rows have no negative"):
        draw_negatives(pool, torch.tensor([0]), torch.tensor([1]), 2)


def test_rows_that_processes_share_draw_as_those_of_one() -> None:
    pool = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    sequence, positives = torch.arange(10) % 3, torch.arange(10) * 3

    def drawn(rows: slice, num_before: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return draw_negatives(pool, sequence[rows], positives[rows], 7, generator, num_before=num_before)

    together = drawn(slice(None), 0)
    assert torch.equal(torch.cat([drawn(slice(4), 0), drawn(slice(4, 5), 4), drawn(slice(5, 10), 5)]), together)
    assert not torch.equal(drawn(slice(4, 5), 0), together[4:5])


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
