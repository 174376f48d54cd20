"""From a tile of scores to log odds and to d loss / d score, which InfoNCE's gradients are made of.

The positive has probability p and log odds log((1 - p) / p) against it: log of the negatives' sum of exp s, less the
positive's score. The loss is their softplus, and a score's slope is 1 - p times its share of the negatives' sum, or -1
for the positive. Written so, large scores cancel before anything is added, and tiny losses keep their digits.

M rows, N candidates, S = 1 + R selected scores of the positive and R drawn negatives.
"""

import os

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

# `triton`: cpc/losses/triton_slopes.py instead of the torch code of `against_all`, on a GPU (docs/decisions/losses.md).
KERNEL = os.environ.get("CPC_LOSS_KERNEL", "torch")
if KERNEL not in ("torch", "triton"):
    raise ValueError(f"the environment's CPC_LOSS_KERNEL={KERNEL} is not one of torch, triton")


def against_all(
    scores: Float[Tensor, "M N"],
    positive: Int[Tensor, " M"],
    pool: Bool[Tensor, "B N"] | None,
    sequence: Int[Tensor, " M"],
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, "M N"]]:
    """Log odds and accuracy of every row, and slopes without the factor 1 - p; slopes take the scores' memory.

    Args:
        scores: of all candidates.
        positive: each row's place among them.
        pool: which candidates a sequence's rows meet besides their positives; None: all.
        sequence: each row's row of `pool`.
    """
    if KERNEL == "triton" and scores.dtype == torch.float32 and (scores.is_cuda or "TRITON_INTERPRET" in os.environ):
        from cpc.losses import triton_slopes

        return triton_slopes.against_all(scores, positive, pool, sequence)
    positive = rearrange(positive, "m -> m 1")
    positive_score = scores.gather(1, positive)
    if pool is not None:
        scores.masked_fill_(~pool[sequence], -torch.inf)
    scores.scatter_(1, positive, -torch.inf)
    best_negative = scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, scores)
    shares, log_total = softmax_in_place(scores)
    log_odds = log_odds_against(positive_score, best_negative, log_total)
    return rearrange(log_odds, "m 1 -> m"), accuracy, shares.scatter_(1, positive, -1.0)


def against_drawn(
    scores: Float[Tensor, "M S"],
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, "M S"]]:
    """The same for the scores of the positive, in front, and of drawn negatives, which may repeat."""
    positive_score, negative_scores = scores[:, :1].clone(), scores[:, 1:]
    best_negative = negative_scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, negative_scores)
    scores[:, 0] = -torch.inf
    shares, log_total = softmax_in_place(scores)
    shares[:, 0] = -1.0
    log_odds = log_odds_against(positive_score, best_negative, log_total)
    return rearrange(log_odds, "m 1 -> m"), accuracy, shares


def log_odds_against(
    positive_score: Float[Tensor, "*M"], best: Float[Tensor, "*M"], log_total: Float[Tensor, "*M"]
) -> Float[Tensor, "*M"]:
    """Log of the negatives' sum of exp s: `log_total` has it relative to the best, the result to the positive.

    nan where the positive's score overflowed, which is no loss of 0.
    """
    return ((best - positive_score) + log_total).masked_fill(positive_score == torch.inf, torch.nan)


def loss_and_factor(log_odds: Float[Tensor, " M"]) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"]]:
    """-log p and 1 - p, the factor of a row's slopes."""
    return F.softplus(log_odds), without_denormals(log_odds.sigmoid(), _OF_TWO)


def rank_accuracy(
    positive_score: Float[Tensor, "M 1"],
    best_negative: Float[Tensor, "M 1"],
    negative_scores: Float[Tensor, "M N"],
    tie_width: Float[Tensor, "M 1"] | float = 0.0,
) -> Float[Tensor, " M"]:
    """[no negative higher] / (1 + ties); only rows whose best negative ties with the positive count their ties.

    Scores tie that differ by no more than the width: zero where both come from the same product.
    """
    lowest, highest = positive_score - tie_width, positive_score + tie_width
    accuracy = rearrange((best_negative < lowest).float(), "m 1 -> m")
    tied = ((best_negative >= lowest) & (best_negative <= highest)).nonzero()[:, 0]
    if len(tied) > 0:
        num_ties = (negative_scores[tied] >= lowest[tied]).sum(1)
        accuracy[tied] = 1 / (1 + num_ties.float())
    return accuracy


def softmax_in_place(scores: Float[Tensor, "M N"]) -> tuple[Float[Tensor, "M N"], Float[Tensor, "M 1"]]:
    """Probabilities, in the scores' own memory, and the log of the sum of exponentials relative to the largest.

    The largest probability is one over that sum, and no less than 1/N: its log is safe.
    """
    probabilities = torch.softmax(scores, 1, out=scores if scores.device.type == "cpu" else None)
    log_total = -probabilities.amax(1, keepdim=True).log()
    return without_denormals(probabilities, _OF_TWO), log_total


_OF_ONE, _OF_TWO = 0.7, 0.35  # a slope comes alone, e^-61 in float32, or as a share times 1 - p, e^-30 each


def without_denormals(slopes: Float[Tensor, "*M"], power: float = _OF_ONE) -> Float[Tensor, "*M"]:
    """Slopes so small that products with them would be denormal become exact zeros, in place.

    Denormal operands slow a CPU's matrix products down up to a hundredfold, and a trained critic makes many; e^-30 of
    a row's sum is far below what sums in float32 resolve.
    """
    return F.threshold(slopes, torch.finfo(slopes.dtype).tiny ** power, 0.0, inplace=True)
