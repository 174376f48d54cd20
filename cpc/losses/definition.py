"""InfoNCE as equation 4 of van den Oord et al. 2018 (arXiv:1807.03748) writes it: every faster path must equal it.

It holds all M x N scores at once, and autograd forms the gradients: `compute="reference"` trains with it.

M rows, N candidates, R drawn negatives, D latent dim, B sequences.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.losses.engine.score_gradients import tie_width


def definition(
    queries: Float[Tensor, "M D"],
    candidates: Float[Tensor, "N D"],
    positives: Int[Tensor, " M"],
    weight: Float[Tensor, " M"],
    candidate_mask: Bool[Tensor, "M N"] | None = None,
    negatives: Int[Tensor, "M R"] | None = None,
    bias: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, " M"], Float[Tensor, " M"]]:
    """Return the weighted mean of the row losses, the row losses in nats, and the accuracy of each row.

    Args:
        queries: q = W_k c_t of each row.
        candidates: latents z.
        positives: the index of z_{t+k} among the candidates, for each row.
        weight: the share of each row in the mean over steps of the mean over rows.
        candidate_mask: the candidates of each row; None: all. The positive is a candidate in any case.
        negatives: the indices of drawn negatives, which take the place of all candidates.
        bias: added to the scores of each candidate.
    """
    scores = queries @ candidates.T  # s(q, z) = q . z: [M, N]
    if bias is not None:
        scores = scores + bias
    index = rearrange(positives, "m -> m 1")
    positive_scores = scores.gather(1, index)
    if negatives is not None:
        negative_scores = scores.gather(1, negatives)
    else:
        is_negative = torch.ones_like(scores, dtype=torch.bool) if candidate_mask is None else candidate_mask
        is_negative = is_negative.scatter(1, index, False)  # the positive is in the sum once, as the positive
        negative_scores = scores.masked_fill(~is_negative, -torch.inf)
    log_total = torch.cat([positive_scores, negative_scores], 1).logsumexp(1)
    loss_nats = log_total - positive_scores[:, 0]  # -log softmax of the positive among the candidates
    with torch.no_grad():
        positive_bias = None if bias is None else bias[index]
        width = tie_width(queries, candidates[index].norm(dim=-1), positive_bias)
        num_ties = (negative_scores >= positive_scores - width).sum(1)
        is_best = (negative_scores <= positive_scores + width).all(1)
        accuracy = torch.where(is_best, 1 / (1 + num_ties.float()), 0.0)
    return weight @ loss_nats, loss_nats.detach(), accuracy
