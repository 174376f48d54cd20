"""Kernels of the literature that RF-softmax is compared with: quadratic, positive, Maclaurin's, and structured rows.

D dims, F features.
"""

import math

import numpy as np
import torch
from einops import repeat
from jaxtyping import Float
from scipy.linalg import hadamard
from torch import Tensor, nn

from cpc.candidates.kernels import KernelMap, Projection, RandomFourier, random_projection
from cpc.config.argument_rules import Positive, checked

LARGEST_EXPONENT = 32.0  # of positive features: five standard deviations of 8 below it, over sqrt(F), is above e^-87
MOST_FACTORS = 16  # of Maclaurin's: of higher orders there is one feature in 2^17; its share goes to this order


class Quadratic(KernelMap):
    """The quadratic kernel K(x, y) = alpha (x . y)^2 + beta of Blanc and Rendle 2018 (arXiv:1712.00527).

    The paper uses alpha = 100 and beta = 1. K is never negative. Vectors of opposite directions count as similar, so
    the kernel suits the absolute softmax, which the authors train, better than the softmax. Each product x_i x_j is
    stored once: F = D (D + 1) / 2 + 1.

    Args:
        dim: D.
        alpha: weight of the square; for scores x . y / T, use alpha = 100 / T^2.
        beta: mass of every class, whatever its direction.
    """

    @checked
    def __init__(self, dim: int, alpha: Positive = 100.0, beta: Positive = 1.0) -> None:
        super().__init__(dim, dim * (dim + 1) // 2 + 1)
        self.alpha = alpha
        self.beta = beta
        rows, columns = torch.triu_indices(dim, dim)
        # (x . y)^2 contains every product of two different dimensions twice.
        self.factors = nn.Buffer(torch.where(rows == columns, 1.0, math.sqrt(2)) * math.sqrt(alpha))
        self.pairs = nn.Buffer(torch.stack([rows, columns]))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Return the scaled products of all pairs, and the constant."""
        rows, columns = self.pairs
        products = x[..., rows] * x[..., columns] * self.factors
        return torch.cat([products, torch.full_like(x[..., :1], math.sqrt(self.beta))], dim=-1)


class PositiveRandomFeatures(KernelMap):
    """K(x, y) = exp(nu x . y) in the mean: phi(x) = exp(w . x - nu |x|^2 / 2) / sqrt(F), rows w from N(0, nu I).

    Choromanski et al. 2021 (arXiv:2009.14794, Lemma 1). Never negative, so nothing is clamped. The variance relative
    to K^2 is (e^{nu |x + y|^2} - 1) / F for Gaussian rows, so nu beyond about 4 on the unit sphere needs more features
    than one has; orthogonal rows lower it. Embeddings need no unit length, but long ones are noise, and features of
    those with nu |x|^2 / 2 beyond 32 may underflow to zero: such ones are refused.

    Args:
        dim: D.
        num_features: F.
        nu: scale of the kernel; nu = 1 / temperature is the softmax's.
        projection: how the rows are drawn: orthogonal or gaussian.
        seed: of that draw.
    """

    directions: Tensor

    @checked
    def __init__(
        self, dim: int, num_features: int, nu: Positive = 2.0, projection: Projection = "orthogonal", seed: int = 0
    ) -> None:
        super().__init__(dim, num_features)
        self.nu = nu
        self.projection, self.seed = projection, seed
        self.register_buffer("directions", math.sqrt(nu) * random_projection(projection, num_features, dim, seed))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """No exponent exceeds |w|^2 / (2 nu), about D / 2, whatever x is."""
        return self._exponents(x).exp() / math.sqrt(self.num_features)

    def query_features(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Divided by the largest feature of each x: a long x would have underflowed in all of them."""
        exponents = self._exponents(x)
        return (exponents - exponents.amax(-1, keepdim=True)).exp()

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse what would underflow.

        Raises:
            ValueError: as `KernelMap.check`, or on vectors that are too long for this nu.
        """
        super().check(vectors, name)
        if vectors.numel():
            longest = 0.5 * self.nu * float((vectors.float() ** 2).sum(-1).max())
            if not longest <= LARGEST_EXPONENT:
                raise ValueError(
                    f"{name} have nu |x|^2 / 2 up to {longest:.3g}, beyond {LARGEST_EXPONENT:g} features underflow: "
                    "normalise classes and queries, or lower nu"
                )

    def _exponents(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        return x @ self.directions.T - 0.5 * self.nu * (x**2).sum(-1, keepdim=True)


class RandomMaclaurin(KernelMap):
    """K(x, y) = exp(nu x . y) in the mean, from its power series: Kar and Karnick 2012 (arXiv:1201.6530).

    Feature f draws an order k with probability 2^-(k+1) and k vectors w of random signs:
    phi_f(x) = sqrt(nu^k / k! 2^(k+1) / F) prod_j w_j . x. The variance grows with nu and |x| as that of a product does,
    and the estimate can be negative. RF-softmax's Table 1 has it; it does not sample well.

    The orders are cut off at 16: with nu x . y up to 11 the rest of the series is below 0.05 of the kernel.

    Args:
        dim: D.
        num_features: F.
        nu: scale of the kernel.
        seed: of the draw.
    """

    order: Tensor
    signs: Tensor
    scales: Tensor

    @checked
    def __init__(self, dim: int, num_features: int, nu: Positive = 1.0, seed: int = 0) -> None:
        super().__init__(dim, num_features)
        self.nu = nu
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        orders = torch.arange(MOST_FACTORS + 1)
        probabilities = 0.5 ** (orders + 1.0).clamp(max=MOST_FACTORS)
        order = torch.multinomial(probabilities, num_features, replacement=True, generator=generator)
        signs = torch.randint(2, (int(order.max()), dim, num_features), generator=generator) * 2.0 - 1
        coefficients = nu ** orders.double() / torch.exp(torch.lgamma(orders + 1.0).double()) / probabilities
        self.register_buffer("order", order)
        self.register_buffer("signs", signs)
        self.register_buffer("scales", (coefficients[order] / num_features).sqrt().float())

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """Products of `order` projections each."""
        features = self.scales.expand(*x.shape[:-1], -1)
        for factor, signs in enumerate(self.signs):
            features = features * torch.where(self.order > factor, x @ signs, 1.0)
        return features


class StructuredFourier(RandomFourier):
    """`RandomFourier` with rows in blocks of `structured_block`; the arguments are those of it."""

    def __init__(self, dim: int, num_frequencies: int, nu: float = 4.0, seed: int = 0) -> None:
        super().__init__(dim, num_frequencies, nu)
        generator = torch.Generator().manual_seed(seed)
        blocks = [structured_block(dim, generator) for _ in range(math.ceil(num_frequencies / dim))]
        frequencies = math.sqrt(nu) * torch.cat(blocks)[:num_frequencies]
        self.frequencies.copy_(repeat(frequencies, "f d -> (two f) d", two=2))


def structured_block(dim: int, generator: torch.Generator) -> Float[Tensor, "D D"]:
    """D rows sqrt(d) H D1 H D2 H D3, with H the normalised Hadamard matrix of the next power of two, D_i random signs.

    Yu et al. 2016 (arXiv:1610.09072, SORF). Lengths do not vary as a Gaussian's do, so the kernel is a little off in
    the mean too. Its product costs O(d log d); here W is written out.
    """
    padded = 2 ** math.ceil(math.log2(dim))
    matrix = torch.from_numpy(hadamard(padded, dtype=np.float32)) / math.sqrt(padded)
    rows = torch.eye(padded)
    for _ in range(3):
        signs = torch.randint(2, (padded,), generator=generator) * 2.0 - 1
        rows = rows @ matrix * signs
    # Entries of mean square 1 before and after the cut to D columns, as a Gaussian's have.
    kept = torch.randperm(padded, generator=generator)[:dim]
    return math.sqrt(padded) * rows[kept, :dim]
