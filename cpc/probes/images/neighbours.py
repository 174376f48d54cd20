"""Answers of the nearest neighbours: no training, so nothing but the features is judged.

n examples, D feature dim, Y classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float

from cpc.probes.results import Answers, answer_by_likelihood

_TEMPERATURE = 0.07  # of Wu et al. 2018
_BLOCK_ROWS = 1024


def answer_by_neighbours(
    train: Float[np.ndarray, "n D"],
    labels: np.ndarray,
    test: Float[np.ndarray, "m D"],
    test_labels: np.ndarray,
    num_classes: int,
    num_neighbours: int = 20,
) -> Answers:
    """Classes by weighted vote of the most similar training examples (Wu et al. 2018, arXiv:1805.01978).

    Similarity is the cosine of features centred on the training mean; a neighbour's vote is exp(similarity / 0.07).
    Likelihoods are shares of the votes, with one vote of the weakest neighbour spread over all classes.

    Args:
        train: features.
        labels: `[n]` their classes.
        test: features.
        test_labels: `[m]` their classes, `UNSEEN` where the training part has no such class.
        num_classes: Y.
        num_neighbours: that vote; all if there are fewer.
    """
    mean = torch.from_numpy(train.mean(0, dtype=np.float64)).float()
    bank = F.normalize(torch.from_numpy(train).float() - mean, dim=1)
    classes = torch.from_numpy(labels)
    log_shares = []
    for start in range(0, len(test), _BLOCK_ROWS):
        block = F.normalize(torch.from_numpy(test[start : start + _BLOCK_ROWS]).float() - mean, dim=1)
        similarity, nearest = (block @ bank.T).topk(min(num_neighbours, len(bank)), 1)
        weights = ((similarity - similarity[:, :1]) / _TEMPERATURE).exp()
        votes = repeat(weights[:, -1] / num_classes, "m -> m y", y=num_classes).clone()
        votes.scatter_add_(1, classes[nearest], weights)
        log_shares.append((votes / votes.sum(1, keepdim=True)).log())
    return answer_by_likelihood(torch.cat(log_shares).numpy(), test_labels)
