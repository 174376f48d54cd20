"""Probes: linear classifiers, or networks with one hidden layer, of standardised features.

n examples, D feature dim, Y classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Positive, Range, check_fields
from cpc.probes.results import Answers, answer_by_likelihood
from cpc.probes.task import Examples

BLOCK_ROWS = 4096
_HIDDEN_LAYER_DEFAULTS = {
    "hidden_dim": 512,
    "num_seeds": 3,
    "num_epochs": 20,
    "min_steps": 1000,
    "batch_size": 1024,
    "learning_rate": 0.001,
}


@dataclass(frozen=True)
class ProbeProtocol:
    """Settings of a probe's fit; docs/decisions/evaluation_and_probes.md has the measurements behind the defaults.

    The linear probe is solved to its optimum. Its only setting is the penalty `l2`; all other settings except `hidden`
    apply only to a hidden layer.

    Args:
        hidden: hidden layers: 0 for the linear probe, 1 for the multi-layer probe of van den Oord et al. 2018.
        l2: weight of the penalty. The objective is the sum of the losses plus l2 / 2 times the sum of the squared
            weights of all classes: scikit-learn's C = 1 / l2 (2 / l2 for two classes). If not given, the weight is
            chosen on held-out groups of the training part; with a hidden layer the default is 1.
        hidden_dim: width of the hidden layer; 512 if not given (the paper does not state its width).
        num_seeds: number of probes with a hidden layer, which differ in initial weights and order of examples; 3 if not
            given.
        num_epochs: minimum passes over the training examples; 20 if not given.
        min_steps: minimum steps; small training parts get more passes. 1000 if not given.
        batch_size: examples per step; 1024 if not given.
        learning_rate: Adam's initial rate, which falls to zero along a cosine; 0.001 if not given.

    Raises:
        ValueError: if a value is out of range, or a setting of a hidden layer is given for the linear probe.
    """

    hidden: Annotated[int, Range(0, 1)] = 0
    l2: Positive | None = None
    hidden_dim: Count | None = None
    num_seeds: Count | None = None
    num_epochs: Count | None = None
    min_steps: Count | None = None
    batch_size: Count | None = None
    learning_rate: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name, default in (_HIDDEN_LAYER_DEFAULTS | {"l2": 1.0}).items():
            value = getattr(self, name)
            if self.hidden and value is None:
                object.__setattr__(self, name, default)
            elif not self.hidden and value is not None and name != "l2":
                raise ValueError(
                    f"{name}={value} applies only to a hidden layer, because the linear probe is solved, not trained: "
                    "leave it out, or set `hidden` to 1"
                )


class Probe(nn.Module):
    """A classifier of features, with hidden layers of these widths; the weights of the last layer start at zero."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        hidden_dims: Sequence[int] = (),
        l2: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.l2 = l2
        widths = [dim, *hidden_dims, num_classes]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for i, (input_dim, output_dim) in enumerate(pairwise(widths)):
            weight = torch.zeros(output_dim, input_dim)
            if i < len(hidden_dims):
                nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(output_dim)))
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def forward(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n Y"]:
        """Return unnormalised log-probabilities of the classes."""
        hidden = x if x.is_sparse_csr else (x - self.mean) * self.scale
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = F.linear(hidden.relu() if i else hidden, weight, bias)
        return hidden

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
