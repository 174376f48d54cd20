"""Products with drawn candidates alone, in C, against vectors gathered in torch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpc.losses import info_nce
from cpc.losses.engine import tiles
from cpc.losses.engine.tiles import DrawnTiles

compiled = pytest.mark.skipif(tiles.compiled(tiles.SOURCE) is None, reason="no C compiler")


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dim", "num_drawn"), [(1, 1), (5, 3), (16, 4), (130, 7), (256, 300)])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_equal_those_of_gathered_vectors(
    dtype: torch.dtype,
    dim: int,
    num_drawn: int,
    num_threads: int,
    has_bias: bool,
    set_num_threads: Callable[[int], None],
) -> None:
    set_num_threads(num_threads)
    generator = torch.Generator().manual_seed(dim)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    queries, candidates, slopes, weight = random(11, dim), random(13, dim), random(11, num_drawn), random(11, 1)
    slopes[slopes.abs() < 0.3] = 0  # they add nothing
    drawn = torch.randint(13, (11, num_drawn), generator=generator)
    bias, rows = random(13) if has_bias else None, slice(0, 11)
    of = DrawnTiles(drawn, candidates, bias)
    by_candidates, by_bias = torch.ones_like(candidates), candidates.new_ones(13)
    found = [of.scores(queries, rows), of.query_gradient(slopes)]
    of.add_bias_gradient(slopes, weight, by_bias)
    of.add_candidate_gradient(slopes, queries, by_candidates)
    vectors, flat = candidates[drawn], drawn.flatten()
    scores = torch.einsum("md,mnd->mn", queries, vectors) + (0 if bias is None else bias[drawn])
    expected = [scores, torch.einsum("mn,mnd->md", slopes, vectors)]
    expected.append(candidates.new_ones(13).index_add(0, flat, (slopes * weight).flatten()))
    each = (slopes[..., None] * queries[:, None]).flatten(0, 1)
    expected.append(torch.ones_like(candidates).index_add(0, flat, each))
    torch.testing.assert_close([*found, by_bias, by_candidates], expected)


@compiled
def test_equal_candidates_have_equal_scores() -> None:
    """Whatever their place in a row's draw: accuracy counts ties."""
    candidates = torch.randn(1, 37).expand(9, 37).contiguous()
    scores = DrawnTiles(torch.arange(9)[None], candidates, None).scores(torch.randn(1, 37), slice(0, 1))
    assert scores.unique().numel() == 1


def test_candidates_that_lie_in_memory_otherwise() -> None:
    """As those of a transposed convolution output do."""
    queries, positives = torch.randn(32, 8), torch.arange(32)
    found = []
    for candidates in (torch.randn(8, 64).T, torch.empty(64, 8)):
        candidates = candidates if not found else found[0][2].detach().contiguous()
        candidates.requires_grad_()
        loss = info_nce(
            queries, candidates, positives, num_negatives=5, generator=torch.Generator().manual_seed(0)
        ).loss
        found.append((loss, torch.autograd.grad(loss, candidates)[0], candidates))
    torch.testing.assert_close(found[0][:2], found[1][:2])
