"""Baselines without a trained probe: the frequencies of the classes, and the nearest neighbours.

n examples, D feature dim, Y classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from einops import repeat
from torch import Tensor

from cpc.probes.results import Answers, answer_by_likelihood
from cpc.probes.task import Examples

_TEMPERATURE = 0.07  # temperature of Wu et al. 2018


def answer_by_frequency(train: Examples, test: Examples, num_classes: int) -> list[Answers]:
    """Predict the most frequent class of the training examples.

    Counts start at one, so that the likelihood of a class without training examples is above zero.
    """
    counts = torch.from_numpy(np.bincount(train.labels, minlength=num_classes) + 1).double()
    log_share = (counts / counts.sum()).log()
    return [answer_by_likelihood(lambda x: log_share.expand(len(x), -1), test)]


def answer_by_neighbours(train: Examples, test: Examples, num_classes: int, num_neighbours: int = 20) -> list[Answers]:
    """Predict classes by a weighted vote of the most similar training examples (Wu et al. 2018, arXiv:1805.01978).

    Similarity is the cosine of features centred on the training mean. A neighbour votes with the weight
    exp(similarity / 0.07). The likelihood of a class is its share of the votes. One more vote, with the weight of the
    weakest neighbour, is spread evenly over all classes. If there are fewer training examples, all vote.
    """
    values = train.read(slice(None))
    mean = values.double().mean(0).float()
    bank, classes = F.normalize(values - mean, dim=1), torch.from_numpy(train.labels)

    def log_shares(x: Tensor) -> Tensor:
        similarity, nearest = (F.normalize(x - mean, dim=1) @ bank.T).topk(min(num_neighbours, len(bank)), 1)
        weights = ((similarity - similarity[:, :1]) / _TEMPERATURE).exp()
        votes = repeat(weights[:, -1] / num_classes, "m -> m y", y=num_classes).clone()
        votes.scatter_add_(1, classes[nearest], weights)
        return (votes / votes.sum(1, keepdim=True)).log()

    return [answer_by_likelihood(log_shares, test)]
