"""Feature maps phi of kernels K(x, y) = phi(x) . phi(y), which estimate the masses of blocks.

D dims, F features, R rows of a random projection.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Positive, checked
from cpc.data.tensors import FixedDtype, check_tensor

NORM_TOLERANCE = 1e-3  # rounding error of the length of a vector that was normalised in bfloat16
Projection = Literal["gaussian", "orthogonal"]


class KernelMap(FixedDtype, ABC):
    """A feature map phi with phi(x) . phi(y) = K(x, y), in expectation if the map is random.

    A random map is sampled once, from a seed, and stored in buffers, because classes and queries need the same map.

    Args:
        dim: D, the dimension of the vectors.
        num_features: F.
    """

    needs_normalised = False  # K is a function of x . y on the unit sphere only

    @checked
    def __init__(self, dim: Count, num_features: Count) -> None:
        super().__init__()
        self.dim = dim
        self.num_features = num_features

    @abstractmethod
    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Return phi(x)."""

    def query_features(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Return phi(x) times a positive number per x, which avoids overflow and underflow."""
        return self(x)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise ValueError on vectors of another width than D, or without unit length if the kernel needs it."""
        check_tensor(name, vectors, "floats", (*vectors.shape[:-1], self.dim))
        if self.needs_normalised and vectors.numel():
            off = float((torch.linalg.vector_norm(vectors.float(), dim=-1) - 1).abs().max())
            if not off <= NORM_TOLERANCE:
                found = f"{type(self).__name__}, but one length is off by {off:.3g}: normalise classes and queries"
                raise ValueError(f"{name} must have unit length for {found}")


class RandomFourier(KernelMap):
    """Random Fourier features of the Gaussian kernel K(x, y) = exp(-nu |x - y|^2 / 2).

    phi(x) = [cos W x, sin W x] / sqrt(D) with rows of W from N(0, nu I) (Rahimi and Recht 2007). RF-softmax uses these
    features (Rawat et al. 2019, arXiv:1907.10747, Eq. 17). The paper prints the rows as N(0, I / nu), which would give
    the kernel exp(-|x - y|^2 / (2 nu)); the variance of the spectrum of this kernel is nu. On the unit sphere K equals
    e^-nu exp(nu x . y), the kernel of the softmax at nu = 1 / temperature. For Gaussian rows,
    Var[phi(x) . phi(y)] = (1 - e^{-nu r^2})^2 / (2 D) at distance r.

    The estimate can be negative, and its noise dominates if K is small against 1 / sqrt(D). A larger nu is closer to
    the softmax, but noisier.

    Args:
        dim: dimension of the embeddings.
        num_frequencies: D; there are 2 D features.
        nu: inverse squared width of the kernel.
        projection: distribution of W, gaussian or orthogonal; see `random_projection`.
        seed: seed of W.
    """

    needs_normalised = True

    @checked
    def __init__(
        self, dim: int, num_frequencies: Count, nu: Positive = 4.0, projection: Projection = "gaussian", seed: int = 0
    ) -> None:
        super().__init__(dim, 2 * num_frequencies)
        self.nu = nu
        self.num_frequencies, self.projection, self.seed = num_frequencies, projection, seed
        frequencies = math.sqrt(nu) * random_projection(projection, num_frequencies, dim, seed)
        # cos(a - pi / 2) is the sine. One operator for both halves the time if there are few queries.
        phases = torch.tensor([0.0, -math.pi / 2])
        self.frequencies = nn.Buffer(repeat(frequencies, "f d -> (two f) d", two=2))  # of the cosines, then the sines
        self.phases = nn.Buffer(repeat(phases, "two -> (two f)", f=num_frequencies))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Return the cosines, then the sines, divided by sqrt(D)."""
        return self.query_features(x) / math.sqrt(self.num_frequencies)

    def query_features(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Return phi(x) sqrt(D)."""
        return F.linear(x, self.frequencies, self.phases).cos()


@checked
def random_projection(kind: Projection, num_rows: int, dim: int, seed: int) -> Float[Tensor, "R D"]:
    """Return a random matrix W whose rows each follow N(0, I).

    `gaussian`: the rows are independent. `orthogonal`: within blocks of D rows the directions are orthogonal and the
    lengths follow the chi distribution of D degrees of freedom, which leaves the distribution of each row and lowers
    the variance of the kernel (Yu et al. 2016, arXiv:1610.09072, ORF).
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "gaussian":
        return torch.randn(num_rows, dim, generator=generator)
    blocks = []
    for _ in range(math.ceil(num_rows / dim)):
        directions, triangle = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
        directions = directions * triangle.diagonal().sign()  # without the sign convention of QR they are uniform
        lengths = torch.linalg.vector_norm(torch.randn(dim, dim, generator=generator), dim=1)
        blocks.append(directions.T * rearrange(lengths, "r -> r 1"))
    return torch.cat(blocks)[:num_rows]
