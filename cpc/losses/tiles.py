"""A block of the score matrix, a tile of rows at a time: by scoring every candidate, or by gathering the drawn ones.

M rows of the block, N of its candidates, R drawn negatives, D latent dim; m counts a tile's rows.
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from cpc.losses.blocks import Block
from cpc.losses.products import Products
from cpc.losses.slopes import against_all, against_drawn

TILE_ROWS = 1024
TILE_SCORES = 2**24  # 64 MiB of float32
# Drawn negatives are selected from all scores as long as those cost no more than to gather the negatives' vectors.
GATHER_BEYOND = 100  # candidates per drawn negative; measured by `python -m benchmarks.loss --rule`


def tiles_of(block: Block, products: Products, bias: Tensor | None) -> "Tiles":
    """The faster way for this block."""
    if block.negatives is not None and len(products.candidates) > GATHER_BEYOND * block.negatives.shape[1]:
        return GatheredTiles(block, products.candidates, bias)
    return ScoredTiles(block, products, bias)


class Tiles:
    """Losses and gradients of one tile after the other; a tile's gradients are asked for before the next one begins."""

    @abstractmethod
    def rows(self) -> Iterator[slice]:
        """The tiles, as places in the block's rows."""

    @abstractmethod
    def contrast(self, queries: Tensor, tile: slice) -> tuple[Tensor, Tensor]:
        """Log odds against the positive and accuracy `[m]` of a tile, given its queries `[m, D]`."""

    @abstractmethod
    def query_gradient(self) -> Tensor:
        """`[m, D]`: d loss / d query of the rows last contrasted, but for the factor 1 - p."""

    @abstractmethod
    def add_candidate_gradient(self, queries: Tensor, total: Tensor) -> None:
        """Add the candidates' share to `total` `[n, D]`; `queries` come with weight and 1 - p."""


class ScoredTiles(Tiles):
    """By scoring every candidate."""

    def __init__(self, block: Block, products: Products, bias: Tensor | None) -> None:
        self.block, self.products, self.bias = block, products, bias
        width = len(products.candidates)
        self.scratch = products.candidates.new_empty(tile_rows(len(block.positives), width), width)

    def rows(self) -> Iterator[slice]:  # noqa: D102
        return row_slices(len(self.block.positives), len(self.scratch))

    def contrast(self, queries: Tensor, tile: slice) -> tuple[Tensor, Tensor]:  # noqa: D102
        block = self.block
        scores = self.scratch[: len(queries)]
        self.products.scores(queries, out=scores)
        if self.bias is not None:
            scores += self.bias
        positive = block.positives[tile]
        if block.negatives is None:
            log_odds, accuracy, self.slopes = against_all(scores, positive, block.pool, block.sequence[tile])
        else:
            drawn = torch.cat([rearrange(positive, "m -> m 1"), block.negatives[tile].long()], 1)
            log_odds, accuracy, slopes = against_drawn(scores.gather(1, drawn))
            self.slopes = scores.zero_().scatter_add_(1, drawn, slopes)
        return log_odds, accuracy

    def query_gradient(self) -> Tensor:  # noqa: D102
        return self.products.query_gradient(self.slopes)

    def add_candidate_gradient(self, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        self.products.add_candidate_gradient(self.slopes, queries, total)


class GatheredTiles(Tiles):
    """By gathering the drawn negatives' vectors: for few negatives from very many candidates."""

    def __init__(self, block: Block, candidates: Tensor, bias: Tensor | None) -> None:
        assert block.negatives is not None
        positives = rearrange(block.positives, "m -> m 1")
        self.drawn_of_rows = torch.cat([positives, block.negatives.long()], 1)  # [M, 1 + R]
        self.candidates, self.bias = candidates, bias

    def rows(self) -> Iterator[slice]:  # noqa: D102
        num_rows, num_drawn = self.drawn_of_rows.shape
        return row_slices(num_rows, max(1, TILE_SCORES // 4 // (num_drawn * self.candidates.shape[1])))

    def contrast(self, queries: Tensor, tile: slice) -> tuple[Tensor, Tensor]:  # noqa: D102
        self.drawn = self.drawn_of_rows[tile]
        self.vectors = self.candidates[self.drawn]  # [m, 1 + R, D]
        scores = torch.einsum("mrd,md->mr", self.vectors, queries)
        if self.bias is not None:
            scores += self.bias[self.drawn]
        log_odds, accuracy, self.slopes = against_drawn(scores)
        return log_odds, accuracy

    def query_gradient(self) -> Tensor:  # noqa: D102
        return torch.einsum("mr,mrd->md", self.slopes, self.vectors)

    def add_candidate_gradient(self, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        torch.mul(rearrange(self.slopes, "m r -> m r 1"), rearrange(queries, "m d -> m 1 d"), out=self.vectors)
        total.index_add_(0, self.drawn.flatten(), rearrange(self.vectors, "m r d -> (m r) d"))


def tile_rows(num_rows: int, num_candidates: int) -> int:
    """How many rows of scores are formed at a time."""
    return min(num_rows, TILE_ROWS, max(64, TILE_SCORES // num_candidates))


def row_slices(num_rows: int, size: int) -> Iterator[slice]:
    """All rows, so many at a time."""
    return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))
