"""The scores of a block of rows, a tile at a time, and the way back from slopes to gradients.

M rows of the block, N of its candidates, R drawn negatives, D latent dim; m counts a tile's rows.
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from cpc.losses.products import Products

TILE_ROWS = 1024
TILE_SCORES = 2**24  # 64 MiB of float32
# Drawn negatives are selected from all scores as long as those cost no more than to gather the negatives' vectors.
GATHER_BEYOND = 100  # candidates per drawn negative; measured by `python -m benchmarks.loss --rule`


def tiles_of(
    num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None, products: type[Products]
) -> "Tiles":
    """The faster way to score the candidates, or of all those that were drawn.

    Args:
        num_rows: M.
        candidates: `[N, D]` that all rows meet, or `[M, N, D]`, each row's own.
        bias: added to the scores, `[N]` or `[M, N]`.
        drawn: `[M, 1 + R]` places of what a row meets, its positive in front; None: it meets all.
        products: how matrices are multiplied.
    """
    if candidates.ndim == 3:
        return OwnTiles(candidates, bias)
    if drawn is None:
        return SharedTiles(num_rows, products(candidates), bias)
    if len(candidates) > GATHER_BEYOND * (drawn.shape[1] - 1):
        return GatheredTiles(candidates, bias, drawn)
    return SelectedTiles(num_rows, products(candidates), bias, drawn)


class Tiles:
    """Scores of one tile after the other; a tile's gradients are asked for before the next one begins."""

    @abstractmethod
    def rows(self) -> Iterator[slice]:
        """The tiles, as places in the block's rows."""

    @abstractmethod
    def scores(self, queries: Tensor, tile: slice) -> Tensor:
        """`[m, N]` or `[m, 1 + R]`, to be overwritten, given the tile's queries `[m, D]`."""

    @abstractmethod
    def query_gradient(self, slopes: Tensor) -> Tensor:
        """`[m, D]`: slopes times candidates."""

    @abstractmethod
    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor) -> None:
        """Add slopes times queries to `total`, of the candidates' shape; queries come with the rows' weights."""

    def add_bias_gradient(self, slopes: Tensor, weight: Tensor, total: Tensor) -> None:
        """Add slopes times weight `[m, 1]` to `total`, of the bias's shape; of drawn candidates biases have none."""
        raise NotImplementedError


class SharedTiles(Tiles):
    """Every candidate is scored."""

    def __init__(self, num_rows: int, products: Products, bias: Tensor | None) -> None:
        self.num_rows, self.products, self.bias = num_rows, products, bias
        width = len(products.candidates)
        size = min(num_rows, TILE_ROWS, max(64, TILE_SCORES // width))
        self.scratch = products.candidates.new_empty(size, width)

    def rows(self) -> Iterator[slice]:  # noqa: D102
        return slices(self.num_rows, len(self.scratch))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        scores = self.products.scores(queries, out=self.scratch[: len(queries)])
        return scores if self.bias is None else scores.add_(self.bias)

    def query_gradient(self, slopes: Tensor) -> Tensor:  # noqa: D102
        return self.products.query_gradient(slopes)

    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        self.products.add_candidate_gradient(slopes, queries, total)

    def add_bias_gradient(self, slopes: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        total.addmv_(slopes.T, weight[:, 0])


class SelectedTiles(SharedTiles):
    """Every candidate is scored, and the drawn ones are selected."""

    def __init__(self, num_rows: int, products: Products, bias: Tensor | None, drawn: Tensor) -> None:
        super().__init__(num_rows, products, bias)
        self.drawn = drawn

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        self.of_all, self.of_tile = super().scores(queries, tile), self.drawn[tile]
        return self.of_all.gather(1, self.of_tile)

    def query_gradient(self, slopes: Tensor) -> Tensor:  # noqa: D102
        return super().query_gradient(self._spread(slopes))

    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        super().add_candidate_gradient(self._spread(slopes), queries, total)

    def _spread(self, slopes: Tensor) -> Tensor:
        """Slopes among those of all candidates, which takes the place of the scores, once a tile."""
        if self.of_tile.numel() > 0:
            self.of_all.zero_().scatter_add_(1, self.of_tile, slopes)
            self.of_tile = self.of_tile[:0]
        return self.of_all


class GatheredTiles(Tiles):
    """The drawn candidates' vectors are gathered: for few from very many."""

    def __init__(self, candidates: Tensor, bias: Tensor | None, drawn: Tensor) -> None:
        self.candidates, self.bias, self.drawn = candidates, bias, drawn

    def rows(self) -> Iterator[slice]:  # noqa: D102
        num_rows, num_drawn = self.drawn.shape
        return slices(num_rows, max(1, TILE_SCORES // 4 // (num_drawn * self.candidates.shape[1])))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        self.of_tile = self.drawn[tile]
        self.vectors = self.candidates[self.of_tile]  # [m, 1 + R, D]
        scores = torch.einsum("mrd,md->mr", self.vectors, queries)
        return scores if self.bias is None else scores + self.bias[self.of_tile]

    def query_gradient(self, slopes: Tensor) -> Tensor:  # noqa: D102
        return torch.einsum("mr,mrd->md", slopes, self.vectors)

    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        torch.mul(rearrange(slopes, "m r -> m r 1"), rearrange(queries, "m d -> m 1 d"), out=self.vectors)
        total.index_add_(0, self.of_tile.flatten(), rearrange(self.vectors, "m r d -> (m r) d"))


class OwnTiles(Tiles):
    """Each row has candidates of its own: gathered already, they are larger than all scores, and one tile."""

    def __init__(self, candidates: Tensor, bias: Tensor | None) -> None:
        self.candidates, self.bias = candidates, bias

    def rows(self) -> Iterator[slice]:  # noqa: D102
        return slices(len(self.candidates), len(self.candidates))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        scores = torch.einsum("md,mnd->mn", queries, self.candidates)
        return scores if self.bias is None else scores.add_(self.bias)

    def query_gradient(self, slopes: Tensor) -> Tensor:  # noqa: D102
        return torch.einsum("mn,mnd->md", slopes, self.candidates)

    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        torch.mul(rearrange(slopes, "m n -> m n 1"), rearrange(queries, "m d -> m 1 d"), out=total)

    def add_bias_gradient(self, slopes: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        torch.mul(slopes, weight, out=total)


def slices(num_rows: int, size: int) -> Iterator[slice]:
    """All rows, so many at a time."""
    return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))
