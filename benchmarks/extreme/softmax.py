"""Sampling from the softmax itself.

M queries, D dims, n classes, m sampled candidates, T targets per query, U updated classes, K weights, R samples a row.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.samplers.inverse_cdf import inverse_cdf
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Request

CHUNK = 512


class SoftmaxSampler(QuerySampler):
    """A sampler with q(i) = softmax_i(h . c_i / temperature), the ideal proposal of sampled softmax ("Exp").

    If targets are excluded and the table has not changed since the last `refresh` or `update`, the loss with
    `importance` equals the loss of the full softmax for every sample. A sample costs O(n D) per query and O(M n)
    memory, as much as the full softmax: this sampler is the reference for the others.

    Args:
        num_classes: n.
        dim: D.
        temperature: divides the scores.
    """

    def __init__(self, num_classes: int, dim: int, temperature: float = 1.0) -> None:
        super().__init__(num_classes, dim, temperature)
        self.embeddings = nn.Buffer(torch.zeros(num_classes, dim))

    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        self.embeddings.copy_(embeddings)

    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        self.embeddings[ids] = embeddings

    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        return self._scores(queries).log_softmax(1)

    def _sample_by_query(self, queries: Float[Tensor, "M D"], request: Request) -> Draw:
        _, num, targets, hits, generator = request
        self.check_values(queries, targets)
        scores = self._scores(queries)
        target_scores = scores.gather(1, targets.clamp(min=0))
        if hits == "exclude":
            row, column = (targets != NO_TARGET).nonzero(as_tuple=True)
            scores[row, targets[row, column]] = -torch.inf
        highest = scores.amax(1, keepdim=True)
        weights = scores.sub_(highest).exp_()
        uniform = torch.rand(2, len(scores), num, generator=generator, dtype=torch.float64).to(scores.device)
        ids = chunked_inverse_cdf(weights, uniform)
        log_num = math.log(num) - weights.sum(1, keepdim=True).log()
        return Draw(ids, log_num + weights.gather(1, ids).log(), log_num + target_scores - highest)

    def _scores(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        return (queries / self.temperature) @ self.embeddings.T


def chunked_inverse_cdf(weights: Float[Tensor, "M K"], uniform: Float[Tensor, "two M R"]) -> Int[Tensor, "M R"]:
    """Return samples as `inverse_cdf` does, faster for large K and few samples.

    The function first samples a chunk in proportion to its sum, then a weight within the chunk. Sums of chunks take one
    pass over the weights; cumulative sums of all weights in float64 take several passes.
    """
    if 8 * CHUNK * uniform.shape[2] > weights.shape[1]:
        return inverse_cdf(weights, uniform[0])
    chunks = rearrange(F.pad(weights, (0, -weights.shape[1] % CHUNK)), "m (c k) -> m c k", k=CHUNK)
    chunk = inverse_cdf(chunks.sum(-1), uniform[0])  # [M, R]
    chunk_weights = chunks.take_along_dim(rearrange(chunk, "m r -> m r 1"), dim=1)  # [M, R, CHUNK]
    index = inverse_cdf(chunk_weights, rearrange(uniform[1], "m r -> m r 1"))
    return chunk * CHUNK + rearrange(index, "m r 1 -> m r")
