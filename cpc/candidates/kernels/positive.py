"""Positive random features of the exponential kernel.

D dims, F features.
"""

import math

from jaxtyping import Float
from torch import Tensor

from cpc.candidates.kernels.kernel_map import KernelMap
from cpc.candidates.kernels.projections import random_projection

LARGEST_EXPONENT = 32.0  # five standard deviations of 8 below it, over sqrt(F): above the -87 of float32


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
        projection: how the rows are drawn: orthogonal, gaussian, or structured.
        seed: of that draw.
    """

    directions: Tensor
    can_vanish = True  # no feature is zero, but products of small ones underflow

    def __init__(
        self, dim: int, num_features: int, nu: float = 2.0, projection: str = "orthogonal", seed: int = 0
    ) -> None:
        super().__init__(dim, num_features, nu=nu)
        self.nu = nu
        self.projection, self.seed = projection, seed
        self.register_buffer("directions", math.sqrt(nu) * random_projection(projection, num_features, dim, seed))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """No exponent exceeds |w|^2 / (2 nu), about D / 2, whatever x is."""
        return self._exponents(x).exp() / math.sqrt(self.num_features)

    def of_queries(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
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
