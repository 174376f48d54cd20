"""Losses that train the critics of estimators, where the loss is not the estimate itself: objectives to maximise.

M rows (queries), N candidates; the arguments are those of `cpc.bounds.estimators`.
"""

import math

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.estimates import Candidates, Positives, ScoreMatrix, log_sum_of_others, split_scores
from cpc.config.argument_rules import Range
from cpc.losses.engine import softplus

DEFAULT_ANCHOR = 1.0


def jensen_shannon(scores: ScoreMatrix) -> Float[Tensor, ""]:
    """Return the training objective -E[softplus(-s)] over positives - E[softplus(s)] over negatives.

    It is not an estimate of information. It is the f-GAN bound on the Jensen-Shannon divergence (Nowozin et al. 2016,
    arXiv:1606.00709), used by Deep InfoMax (Hjelm et al. 2019, arXiv:1808.06670). The maximum is at s = log p(y | x) /
    p(y). Gradients are bounded, because there is no exponential.
    """
    split = split_scores(scores)
    negative_term = reduce(softplus(split.negatives), "m n -> m", "sum") / split.num_negatives
    return -(softplus(-split.positive) + negative_term).mean()


def anchored_info_nce(
    scores: ScoreMatrix,
    positives: Positives = None,
    candidates: Candidates = None,
    *,
    anchor: int | float = DEFAULT_ANCHOR,
) -> Float[Tensor, ""]:
    """Return the training objective of InfoNCE-anchor: Ryu et al. 2025 (arXiv:2510.25983), derived in docs/theory.md.

    It is not an estimate of information. With r = p(y | x) / p(y), candidate k of K is the positive with the posterior
    r_k / (nu + sum_j r_j). The anchor class, in which all K candidates are negatives, has nu / (nu + sum_j r_j). The
    objective is minus the cross-entropy of this posterior with exp s for r. Its only maximum is s = log p(y | x) /
    p(y), because the anchor fixes the constant of each row, which InfoNCE leaves free.

    A row with n negatives has K = n candidates. The anchor class has all n negatives; the other classes have the
    positive and n - 1 negatives, in the mean over the negative that is left out. `anchor` is nu, a positive number.
    """
    Range(0, is_open=True).check("`anchor`", anchor)
    split, log_anchor = split_scores(scores, positives, candidates), math.log(anchor)
    log_sums = torch.logaddexp(log_sum_of_others(split), torch.full_like(split.negatives, log_anchor))
    mean_log_sum = reduce(log_sums.where(split.is_negative, 0), "m n -> m", "sum") / split.num_negatives
    log_anchor_share = -softplus(split.negatives.logsumexp(1) - log_anchor)
    weighted = split.num_negatives * (split.positive - mean_log_sum) + anchor * log_anchor_share
    return (weighted / (split.num_negatives + anchor)).mean()
