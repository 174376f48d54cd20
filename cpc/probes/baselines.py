"""Baselines without a trained probe: the frequencies of the classes, and the nearest neighbours.

n examples, D feature dim, Y classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from einops import repeat

from cpc.probes.results import Answers, answer_by_likelihood
from cpc.probes.task import Examples

_TEMPERATURE = 0.07  # temperature of Wu et al. 2018
_BLOCK_ROWS = 1024


def answer_by_frequency(train: Examples, test: Examples, num_classes: int) -> list[Answers]:
    """Predict the most frequent class of the training examples.

    Counts start at one, so that the likelihood of a class without training examples is above zero.
    """
    counts = np.bincount(train.labels, minlength=num_classes)
    log_share = np.log((counts + 1) / (counts + 1).sum())
    return [answer_by_likelihood(np.broadcast_to(log_share, (len(test), num_classes)), test.labels)]


def answer_by_neighbours(train: Examples, test: Examples, num_classes: int, num_neighbours: int = 20) -> list[Answers]:
    """Predict classes by a weighted vote of the most similar training examples (Wu et al. 2018, arXiv:1805.01978).

    Similarity is the cosine of features centred on the training mean. A neighbour votes with the weight
    exp(similarity / 0.07). The likelihood of a class is its share of the votes. One more vote, with the weight of the
    weakest neighbour, is spread evenly over all classes.

    Args:
        train: the training examples.
        test: the examples to classify.
        num_classes: Y.
        num_neighbours: number of neighbours that vote; if there are fewer training examples, all vote.
    """
    values = train.values[train.rows]
    mean = torch.from_numpy(values.mean(0, dtype=np.float64)).float()
    bank = F.normalize(torch.from_numpy(values).float() - mean, dim=1)
    classes = torch.from_numpy(train.labels)
    log_shares = []
    for start in range(0, len(test), _BLOCK_ROWS):
        x = torch.from_numpy(test.values[test.rows[start : start + _BLOCK_ROWS]]).float()
        similarity, nearest = (F.normalize(x - mean, dim=1) @ bank.T).topk(min(num_neighbours, len(bank)), 1)
        weights = ((similarity - similarity[:, :1]) / _TEMPERATURE).exp()
        votes = repeat(weights[:, -1] / num_classes, "m -> m y", y=num_classes).clone()
        votes.scatter_add_(1, classes[nearest], weights)
        log_shares.append((votes / votes.sum(1, keepdim=True)).log())
    return [answer_by_likelihood(torch.cat(log_shares).numpy(), test.labels)]
