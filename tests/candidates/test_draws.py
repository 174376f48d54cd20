import pytest
import torch
from scipy.stats import chisquare

from cpc.candidates import draw_negatives, draws
from cpc.candidates.draws import _draw


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
