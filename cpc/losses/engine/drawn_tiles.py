"""Tiles for few candidates drawn from many, on a CPU: drawn.c reads the vectors without a gathered copy.

M rows, N candidates, R drawn negatives, D latent dim; m counts the rows of a tile.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.losses.engine.score_gradients import LossAndGradients, ScoreCorrections, loss_and_gradients
from cpc.native.compiled import REAL, CFunction, source

SOURCE = source("drawn.c")
TILE_SCORES = 2**22


def _function(name: str, left: str, right: str, out: str) -> CFunction:
    """Declare a function of drawn.c. Its arguments are two operands, the drawn indices, and the result."""

    def arguments(num_queries: int, num_drawn: int, num_candidates: int, dim: int) -> dict[str, Any]:
        rows, drawn, columns = (num_queries, dim), (num_queries, num_drawn), (num_candidates, dim)
        shapes = {"queries": rows, "queries_grad": rows, "candidates": columns, "candidates_grad": columns}
        operands = {each: (REAL, shapes.get(each, drawn)) for each in (left, right)}
        return operands | {"drawn": (torch.int64, drawn), out: (REAL, shapes.get(out, drawn))}

    return CFunction(SOURCE, name, arguments)


SCORES = _function("drawn_scores", "queries", "candidates", "scores")
BY_QUERIES = _function("drawn_by_queries", "score_grads", "candidates", "queries_grad")
BY_CANDIDATES = _function("drawn_by_candidates", "score_grads", "queries", "candidates_grad")


class DrawnTiles:
    """The methods of `SharedTiles`, for scores of the positive and the drawn negatives of each row.

    `drawn` is `[M, 1 + R]`, the positive first; so are the scores.
    """

    def __init__(self, drawn: Int[Tensor, "M _"], candidates: Tensor, bias: Tensor | None) -> None:
        self.drawn, self.candidates, self.bias = drawn, candidates, bias
        self.tile_rows = max(1, TILE_SCORES // drawn.shape[1])

    def scores(self, queries: Float[Tensor, "m D"], tile: slice) -> Tensor:  # noqa: D102
        self.index = self.drawn[tile].contiguous()
        scores = queries.new_empty(self.index.shape)
        self._multiply(SCORES, queries, self.candidates, scores)
        return scores if self.bias is None else scores.add_(self.bias[self.index])

    def losses(  # noqa: D102
        self, form: str, scores: Tensor, tile: slice, corrections: ScoreCorrections, targets: Tensor | None
    ) -> tuple[Tensor, LossAndGradients]:
        return loss_and_gradients(form, scores, corrections, torch.zeros_like(self.index[:, :1]))

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        gradient = score_grads.new_empty(len(score_grads), self.candidates.shape[1])
        self._multiply(BY_QUERIES, score_grads, self.candidates, gradient)
        return gradient

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        self._multiply(BY_CANDIDATES, score_grads, queries, total)

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        total.index_add_(0, self.index.flatten(), (score_grads * weight).flatten())

    def _multiply(self, function: CFunction, left: Tensor, right: Tensor, out: Tensor) -> None:
        tensors = (left.contiguous(), right.contiguous(), self.index, out)
        if not function((*self.index.shape, *self.candidates.shape), (), tensors):
            raise ValueError(f"indices of drawn candidates must be from 0 to {len(self.candidates) - 1}")
