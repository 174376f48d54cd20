"""From a tile of scores to losses and to d loss / d score, which InfoNCE's gradients are made of.

M rows, N candidates, S = 1 + R selected scores of the positive and R drawn negatives.
"""

import os

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

# `triton` runs cpc/losses/triton_slopes.py on a GPU instead of the torch code of `against_all`; see docs/decisions.md.
KERNEL = os.environ.get("CPC_LOSS_KERNEL", "torch")
if KERNEL not in ("torch", "triton"):
    raise ValueError(f"the environment's CPC_LOSS_KERNEL={KERNEL} is not one of torch, triton")


def against_all(
    scores: Float[Tensor, "M N"],
    positive: Int[Tensor, " M"],
    pool: Bool[Tensor, "B N"] | None,
    sequence: Int[Tensor, " M"],
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, "M N"]]:
    """Loss, accuracy and slopes of every row; slopes take the scores' memory.

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
    scores.scatter_(1, positive, positive_score)
    probabilities, log_total = softmax_in_place(scores)
    loss = log_total + torch.maximum(best_negative, positive_score) - positive_score
    probabilities.scatter_add_(1, positive, scores.new_full(positive.shape, -1.0))
    return rearrange(loss, "m 1 -> m"), accuracy, probabilities


def against_drawn(
    scores: Float[Tensor, "M S"],
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, "M S"]]:
    """The same for the scores of the positive, in front, and of drawn negatives, which may repeat."""
    positive_score, negative_scores = scores[:, :1], scores[:, 1:]
    best_negative = negative_scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, negative_scores)
    above_positive = torch.maximum(best_negative, positive_score) - positive_score
    probabilities, log_total = softmax_in_place(scores)
    probabilities[:, 0] -= 1
    return rearrange(above_positive + log_total, "m 1 -> m"), accuracy, probabilities


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

    The largest probability is one over that sum, and no less than 1/N: its log is safe, that of the positive's is not.
    """
    probabilities = torch.softmax(scores, 1, out=scores if scores.device.type == "cpu" else None)
    log_total = -probabilities.amax(1, keepdim=True).log()
    return without_denormals(probabilities), log_total


def without_denormals(slopes: Float[Tensor, "M N"]) -> Float[Tensor, "M N"]:
    """Slopes so small that products with them would be denormal become exact zeros, in place.

    Denormal operands slow a CPU's matrix products down up to a hundredfold, and a trained critic makes many; e^-61 is
    far below what sums in float32 resolve.
    """
    return F.threshold(slopes, torch.finfo(slopes.dtype).tiny ** 0.7, 0.0, inplace=True)
