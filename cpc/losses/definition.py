"""The definition of the loss: equation 4 of van den Oord et al. 2018 (arXiv:1807.03748), in plain torch.

Everything else in this folder prepares the arguments of `info_nce_rows` or computes the same values faster. The tests
compare every fast path with this file (`tests/losses/test_definition.py`), and `compute="reference"` runs it.

K steps, B sequences, Q queries, M rows, N candidates, R drawn negatives, D latent dim.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.losses.output import RowLosses


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """The rows of a loss, and the set of candidates that each row is scored against.

    A row is one query with its positive, z_{t+k}. The candidates of a row are its negatives and, once, its positive.
    `cpc.losses.candidate_sets` builds the rows of a batch.
    """

    query_index: Tensor | None  # `[M]`, index of the row's query among the Q queries; None: row m has query m
    positive_index: Tensor  # `[M]`, index of the row's positive among the N candidates
    sequence: Tensor  # `[M]`, index of the row's sequence among the B
    step: Tensor  # `[M]`, index of the row's step among the K
    # `[B, N]`, the candidates of a sequence's rows. The positive counts once, whether it is in the mask or not.
    candidate_mask: Tensor
    weight: Tensor  # `[M]`, weight of the row in the loss: 1 / (steps that have rows x rows of this row's step)
    num_steps: int  # K


def info_nce_rows(
    queries: Float[Tensor, "Q D"],
    candidates: Float[Tensor, "N D"],
    rows: CandidateSet,
    drawn: Int[Tensor, "M R"] | None = None,
    bias: Float[Tensor, " N"] | None = None,
) -> RowLosses:
    """Return the losses of all rows: L = -log( exp s(q, z+) / sum over candidates of exp s(q, z) ), s = q . z + bias.

    The negatives of a row are all candidates of its sequence, or the ones `drawn` for it (never its positive).
    All scores exist at once, in float64, and autograd finds the gradients.
    """
    negatives = _num_times_negative(rows, drawn)  # [M, N]
    positive = rearrange(rows.positive_index, "m -> m 1")
    num_times = negatives.scatter(1, positive, 1.0)  # the positive is a candidate exactly once

    is_used = rearrange(num_times.sum(0) > 0, "n -> n 1")
    z = candidates.double().where(is_used, 0)  # unused candidates, such as padding, may hold nan
    q = (queries if rows.query_index is None else queries[rows.query_index]).double()
    scores = q @ z.T  # [M, N]
    if bias is not None:
        scores = scores + bias
    positive_scores = scores.gather(1, positive)  # [M, 1]

    log_sum = (scores + num_times.log()).logsumexp(1)
    loss_nats = log_sum - positive_scores[:, 0]
    loss = rows.weight.double() @ loss_nats  # mean over the rows of a step, then over steps

    width = _tie_width(queries.dtype, q, z[rows.positive_index], None if bias is None else bias[rows.positive_index])
    is_lower_or_ties = (negatives == 0) | (scores <= positive_scores + width)
    num_ties = (negatives * (scores >= positive_scores - width)).sum(1)
    accuracy = torch.where(is_lower_or_ties.all(1), 1 / (1 + num_ties), 0.0)

    dtype = torch.float64 if queries.dtype == torch.float64 else torch.float32
    num_candidates = num_times.sum(1).long()
    return RowLosses(loss.to(dtype), loss_nats.detach().to(dtype), num_candidates, accuracy.detach().float())


def _num_times_negative(rows: CandidateSet, drawn: Int[Tensor, "M R"] | None) -> Float[Tensor, "M N"]:
    """Return how often each candidate is a negative of each row: 0 or 1, or as often as it was drawn."""
    mask = rows.candidate_mask[rows.sequence].double()
    if drawn is not None:
        return torch.zeros_like(mask).scatter_add(1, drawn, torch.ones_like(drawn).double())
    return mask.scatter(1, rearrange(rows.positive_index, "m -> m 1"), 0.0)


def _tie_width(
    dtype: torch.dtype, q: Float[Tensor, "M D"], positives: Float[Tensor, "M D"], bias: Float[Tensor, " M"] | None
) -> Float[Tensor, "M 1"]:
    """Return the largest difference of two scores that still tie: the rounding error of equal scores.

    This is `cpc.losses.engine.tie_width` for scores in float32, or in float64 if the queries are float64.
    """
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    largest = q.norm(dim=1) * positives.norm(dim=1) + (0 if bias is None else bias.abs())
    return rearrange(max(16, q.shape[1]) * eps * largest, "m -> m 1").detach()
