"""Draws from the softmax itself.

M queries, D dims, n classes, m candidates drawn, T targets per query, U updated classes.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.inverse_cdf import inverse_cdf_of_many
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Hits


class SoftmaxSampler(QuerySampler):
    """q(i) = softmax_i(h . c_i / temperature): "Exp", the ideal proposal of sampled softmax, at O(n D) a query.

    If targets are excluded and the table has not moved, the loss with `importance` equals the full softmax's, whatever
    is drawn. It saves no time against the full softmax; it is what the others are measured by. O(M n) in memory.

    Args:
        num_classes: n.
        dim: D.
        temperature: of the scores.
        replacement: candidates may repeat, expected m q times. Otherwise they are distinct (the m largest keys
            log q + Gumbel noise), and a class is expected 1 - exp(-q t) times, where t is when class m + 1 came: sums
            over the drawn classes weighted by its inverse are unbiased, for m > 1 with finite variance.

    Raises:
        ValueError: unless the temperature is positive.
    """

    embeddings: Tensor

    def __init__(self, num_classes: int, dim: int, temperature: float = 1.0, replacement: bool = True) -> None:
        super().__init__(num_classes, dim, temperature)
        self.replacement = replacement
        self.register_buffer("embeddings", torch.zeros(num_classes, dim))

    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        self.embeddings.copy_(embeddings)

    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        self.embeddings[ids] = embeddings

    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        return self._scores(queries).log_softmax(1)

    def _sample(
        self,
        queries: Float[Tensor, "M D"],
        num: int,
        targets: Int[Tensor, "M T"],
        hits: Hits,
        generator: torch.Generator | None,
    ) -> Draw:
        """By the two-stage inverse of the law, or by Gumbel keys."""
        self.check_values(queries, targets)
        scores = self._scores(queries)
        target_scores = scores.gather(1, targets.clamp(min=0))
        if hits == "exclude":
            row, place = (targets != NO_TARGET).nonzero(as_tuple=True)
            scores[row, targets[row, place]] = -torch.inf
        draw = _repeating if self.replacement else _distinct
        return draw(scores, target_scores, num, generator)

    def _scores(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        return (queries / self.temperature) @ self.embeddings.T


def _repeating(
    scores: Float[Tensor, "M n"], target_scores: Float[Tensor, "M T"], num: int, generator: torch.Generator | None
) -> Draw:
    highest = scores.amax(1, keepdim=True)
    weights = scores.sub_(highest).exp_()
    uniform = torch.rand(2, len(scores), num, generator=generator, dtype=torch.float64).to(scores.device)
    ids = inverse_cdf_of_many(weights, uniform)
    log_num = math.log(num) - weights.sum(1, keepdim=True).log()
    return Draw(ids, log_num + weights.gather(1, ids).log(), log_num + target_scores - highest)


def _distinct(
    scores: Float[Tensor, "M n"], target_scores: Float[Tensor, "M T"], num: int, generator: torch.Generator | None
) -> Draw:
    # Class i arrives first at a time that is exponential of rate exp(score): minus its log is a Gumbel key.
    log_time = torch.empty(scores.shape).exponential_(generator=generator).log_().to(scores.device) - scores
    num_possible = scores.shape[1]
    first = log_time.topk(min(num + 1, num_possible), dim=1, largest=False, sorted=True)
    ids = first.indices[:, :num]
    # Where nothing is left to come, everything that can be drawn has been.
    following = first.values[:, num:] if num < num_possible else torch.full_like(target_scores[:, :1], torch.inf)
    log_count = torch.log(-torch.expm1(-torch.exp(scores.gather(1, ids) + following)))
    return Draw(ids, log_count, torch.log(-torch.expm1(-torch.exp(target_scores + following))))
