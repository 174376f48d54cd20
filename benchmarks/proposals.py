"""Synthetic classes and queries, and the distance of a proposal from the softmax.

n classes, M queries, D dims.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.09  # Rawat et al. 2019: 1 / sqrt(tau) = 0.3
NUM_QUERIES = 64


@dataclass
class Scene:
    """Normalised classes, queries, and the queries' targets."""

    classes: Tensor
    queries: Tensor
    targets: Tensor

    def log_softmax(self) -> Tensor:
        """Return the log-softmax of every query over all classes."""
        return (self.queries @ self.classes.T / TEMPERATURE).log_softmax(1)


def clustered(num_classes: int, dim: int, generator: torch.Generator, num_queries: int = NUM_QUERIES) -> Scene:
    """Classes around 100 centres, queries near their targets: median p(target) about 0.2, perplexity about 400."""
    centres = F.normalize(torch.randn(100, dim, generator=generator), dim=1)
    noise = 0.9 / math.sqrt(dim) * torch.randn(num_classes, dim, generator=generator)
    classes = F.normalize(centres[torch.randint(100, (num_classes,), generator=generator)] + noise, dim=1)
    targets = torch.randint(num_classes, (num_queries,), generator=generator)
    noise = 0.6 / math.sqrt(dim) * torch.randn(num_queries, dim, generator=generator)
    return Scene(classes, F.normalize(classes[targets] + noise, dim=1), targets)


def sphere(num_classes: int, dim: int, generator: torch.Generator, num_queries: int = NUM_QUERIES) -> Scene:
    """Classes and queries uniform on the sphere, independent of each other."""
    classes = F.normalize(torch.randn(num_classes, dim, generator=generator), dim=1)
    queries = F.normalize(torch.randn(num_queries, dim, generator=generator), dim=1)
    return Scene(classes, queries, torch.randint(num_classes, (num_queries,), generator=generator))


def chi_square(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return sum p^2 / q - 1 of each query: m times the relative variance of the partition function's estimate."""
    return (2 * log_p - log_q).logsumexp(1).expm1()
