"""Draws from unnormalised weights, one stage and two."""

import math

import pytest
import torch
from scipy.stats import chisquare

from benchmarks.extreme import softmax
from benchmarks.extreme.softmax import chunked_inverse_cdf
from cpc.candidates.samplers.inverse_cdf import inverse_cdf


@pytest.mark.parametrize("chunk", [4, 1000])
def test_frequencies(chunk: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "CHUNK", chunk)
    weights = torch.tensor([[0.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 2.0, 0.0], [1.0] * 12])
    for expected, row in zip(weights, weights, strict=True):
        many = row.expand(5000, -1)  # two draws each: so few that large tables are done in two stages
        uniform = torch.rand(2, 5000, 2, generator=generator, dtype=torch.float64)
        counts = torch.bincount(chunked_inverse_cdf(many, uniform).flatten(), minlength=12)
        proposal = expected / expected.sum()
        assert counts[proposal == 0].sum() == 0
        assert chisquare(counts[proposal > 0], proposal[proposal > 0] * 10_000, sum_check=False).pvalue > 1e-4


def test_ends_fall_on_weights_that_are_not_zero() -> None:
    weights = torch.tensor([0.0, 1e-30, 5.0, 0.1, 0.0])
    ends = torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert inverse_cdf(weights, ends).tolist() == [1, 3]


def test_rare_classes_come_as_rarely_as_they_should(generator: torch.Generator) -> None:
    """1200 of weight 1e-8 before one of weight 1: float32 would add nothing, or miss them with its 2^24 numbers."""
    weights = torch.full((1201,), 1e-8)
    weights[-1] = 1
    drawn = sum(
        int((inverse_cdf(weights, torch.rand(10**6, generator=generator, dtype=torch.float64)) < 1200).sum())
        for _ in range(3)
    )
    assert abs(drawn - 36) < 4 * 6
