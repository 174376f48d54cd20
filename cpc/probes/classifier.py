"""Classifiers of features: linear probes, nearest neighbours, frequencies. n examples, D feature dim, Y classes."""

import numpy as np
import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn

from cpc.probes.results import Answers, answer_by_likelihood
from cpc.probes.task import Examples

BLOCK_ROWS = 4096
_TEMPERATURE = 0.07  # temperature of Wu et al. 2018


class Probe(nn.Module):
    """A linear classifier of standardised features; with `is_layer_normed`, of features after a LayerNorm."""

    def __init__(self, dim: int, num_classes: int, l2: float | None = None, *, is_layer_normed: bool = False) -> None:
        super().__init__()
        self.l2, self.is_layer_normed = l2, is_layer_normed
        self.weight = nn.Parameter(torch.zeros(num_classes, dim))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.mean = nn.Buffer(torch.zeros(dim))
        self.scale = nn.Buffer(torch.ones(dim))

    def forward(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n Y"]:
        """Return unnormalised log-probabilities of the classes."""
        x = F.layer_norm(x, x.shape[-1:]) if self.is_layer_normed else x
        return F.linear(x if x.is_sparse_csr else (x - self.mean) * self.scale, self.weight, self.bias)

    @torch.inference_mode()
    def answer(self, test: Examples) -> Answers:
        """Return the predicted class of every test example, and the log-probability of its true class."""
        l2 = () if self.l2 is None else (self.l2,)
        return answer_by_likelihood(lambda x: self(x.to(self.mean.device)).log_softmax(1), test, l2)


def standardise(train: Examples) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Return mean and inverse deviation of the training examples. Constant and sparse features keep their scale."""
    total = torch.zeros(train.values.shape[1], dtype=torch.float64)
    if not isinstance(train.values, np.ndarray):
        return total.float(), 1 + total.float()
    squares = torch.zeros_like(total)
    shift = train.read(slice(0, 1))[0].double()  # shifted, so that sums of squares keep all digits
    for start in range(0, len(train), BLOCK_ROWS):
        x = train.read(slice(start, start + BLOCK_ROWS)).double() - shift
        total += x.sum(0)
        squares += x.square().sum(0)
    mean = total / len(train)
    std = (squares / len(train) - mean.square()).clamp(min=0).sqrt()
    mean = mean + shift
    is_constant = std <= 1e-6 * mean.abs().clamp(min=1e-6)
    return mean.float(), torch.where(is_constant, 1.0, 1 / std).float()


def answer_by_frequency(train: Examples, test: Examples, num_classes: int) -> list[Answers]:
    """Predict the most frequent class of the training examples; counts start at one."""
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
