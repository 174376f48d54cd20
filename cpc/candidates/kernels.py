"""Feature maps of kernels: phi(x) . phi(y) is K(x, y), for masses of blocks.

D dims, F features, R rows of a random projection.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from cpc.candidates.fixed_dtype import FixedDtype

NORM_TOLERANCE = 1e-3  # of what was normalised in bfloat16 this is the rounding
PROJECTIONS = ("gaussian", "orthogonal")


class KernelMap(FixedDtype, ABC):
    """Features phi with phi(x) . phi(y) = K(x, y), in the mean over the map's own draw where it is random.

    Random maps draw once, from a seed, and keep the draw in buffers: classes and queries must see the same one.

    Args:
        dim: D of what is mapped.
        num_features: F.
        scales: of the kernel, by name.

    Raises:
        ValueError: if there is no dimension or no feature, or a scale is not positive.
    """

    needs_normalised = False  # K is a function of x . y on the unit sphere only

    def __init__(self, dim: int, num_features: int, **scales: float) -> None:
        super().__init__()
        if dim < 1 or num_features < 1:
            raise ValueError(f"dim={dim} and num_features={num_features}: both must be at least 1")
        for name, scale in scales.items():
            if not scale > 0:
                raise ValueError(f"{name}={scale} must be positive")
        self.dim = dim
        self.num_features = num_features

    @abstractmethod
    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """phi(x)."""

    def query_features(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """phi(x) times a positive number for each x, chosen so that nothing over- or underflows."""
        return self(x)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse vectors that this kernel cannot use.

        Raises:
            ValueError: if they have another width, or are not of unit length where the kernel needs that.
        """
        if vectors.shape[-1] != self.dim:
            raise ValueError(f"{name} have {vectors.shape[-1]} dimensions, {type(self).__name__} takes {self.dim}")
        if self.needs_normalised and vectors.numel():
            off = float((torch.linalg.vector_norm(vectors.float(), dim=-1) - 1).abs().max())
            if not off <= NORM_TOLERANCE:
                raise ValueError(
                    f"{name} must have unit length for {type(self).__name__}, one is off by {off:.3g}: normalise "
                    "classes and queries (ClassTable(is_normalised=True)), or take CentroidMass"
                )


class RandomFourier(KernelMap):
    """K(x, y) = exp(-nu |x - y|^2 / 2) in the mean: phi(x) = [cos W x, sin W x] / sqrt(D), rows of W from N(0, nu I).

    Rahimi and Recht 2007, as RF-softmax takes it (Rawat et al. 2019, arXiv:1907.10747, Eq. 17; there the rows are
    printed as N(0, I / nu), which would make the kernel exp(-|x - y|^2 / (2 nu)); the variance of the Gaussian kernel's
    spectrum is nu). On the unit sphere K is e^-nu exp(nu x . y), hence the softmax's kernel at nu = 1 / temperature.
    Var[phi(x) . phi(y)] = (1 - e^{-nu r^2})^2 / (2 D) at distance r, for Gaussian rows.

    The estimate can be negative, and is noise where K is small against 1 / sqrt(D): a larger nu is nearer to the
    softmax and noisier.

    Args:
        dim: of the embeddings.
        num_frequencies: D: there are 2 D features.
        nu: inverse squared width of the kernel.
        projection: how W is drawn: gaussian or orthogonal, see `random_projection`.
        seed: of that draw.
    """

    frequencies: Tensor  # [F, D], each row twice: for the cosines and for the sines
    phases: Tensor  # [F]
    needs_normalised = True

    def __init__(
        self, dim: int, num_frequencies: int, nu: float = 4.0, projection: str = "gaussian", seed: int = 0
    ) -> None:
        super().__init__(dim, 2 * num_frequencies, nu=nu)
        self.nu = nu
        self.num_frequencies, self.projection, self.seed = num_frequencies, projection, seed
        frequencies = math.sqrt(nu) * random_projection(projection, num_frequencies, dim, seed)
        # cos(a - pi / 2) is the sine: half the operators, which is what a handful of queries costs.
        phases = torch.tensor([0.0, -math.pi / 2])
        self.register_buffer("frequencies", repeat(frequencies, "f d -> (two f) d", two=2))
        self.register_buffer("phases", repeat(phases, "two -> (two f)", f=num_frequencies))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Cosines, then sines."""
        return self.query_features(x) / math.sqrt(self.num_frequencies)

    def query_features(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """The same times sqrt(D)."""
        return F.linear(x, self.frequencies, self.phases).cos()


class Quadratic(KernelMap):
    """K(x, y) = alpha (x . y)^2 + beta: Blanc and Rendle 2018 (arXiv:1712.00527), there with alpha = 100, beta = 1.

    Never negative. As x and y of opposite directions count as similar, it suits the absolute softmax, which those
    authors train, better than the plain one. Products x_i x_j are kept once: F = D (D + 1) / 2 + 1.

    Args:
        dim: D.
        alpha: weight of the square; for scores x . y / T, alpha = 100 / T^2 is alpha = 100 of the scores.
        beta: mass that every class has, whatever its direction.
    """

    factors: Tensor
    pairs: Tensor

    def __init__(self, dim: int, alpha: float = 100.0, beta: float = 1.0) -> None:
        super().__init__(dim, dim * (dim + 1) // 2 + 1, alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta
        rows, columns = torch.triu_indices(dim, dim)
        # (x . y)^2 holds every product of two different dimensions twice.
        self.register_buffer("factors", torch.where(rows == columns, 1.0, math.sqrt(2)) * math.sqrt(alpha))
        self.register_buffer("pairs", torch.stack([rows, columns]))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """The products of all pairs, and the constant."""
        rows, columns = self.pairs
        products = x[..., rows] * x[..., columns] * self.factors
        return torch.cat([products, torch.full_like(x[..., :1], math.sqrt(self.beta))], dim=-1)


def random_projection(kind: str, num_rows: int, dim: int, seed: int) -> Float[Tensor, "R D"]:
    """W, each row of which has by itself the length and the direction of a draw from N(0, I).

    Args:
        kind: `gaussian`: independent rows. `orthogonal`: within blocks of D rows the directions are orthogonal and the
            lengths drawn from chi of D degrees: the same law of each row, less variance (Yu et al. 2016,
            arXiv:1610.09072, ORF).
        num_rows: R.
        dim: D.
        seed: of the draw.

    Raises:
        ValueError: on another kind.
    """
    if kind not in PROJECTIONS:
        raise ValueError(f"projection={kind!r} is not one of {', '.join(PROJECTIONS)}")
    generator = torch.Generator().manual_seed(seed)
    if kind == "gaussian":
        return torch.randn(num_rows, dim, generator=generator)
    blocks = [_orthogonal_block(dim, generator) for _ in range(math.ceil(num_rows / dim))]
    return torch.cat(blocks)[:num_rows]


def _orthogonal_block(dim: int, generator: torch.Generator) -> Float[Tensor, "D D"]:
    directions, triangle = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
    directions = directions * triangle.diagonal().sign()  # else QR's convention on signs shows in the law
    lengths = torch.linalg.vector_norm(torch.randn(dim, dim, generator=generator), dim=1)
    return directions.T * rearrange(lengths, "r -> r 1")
