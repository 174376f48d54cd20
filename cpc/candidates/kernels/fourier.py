"""Random Fourier features of the Gaussian kernel.

D dims, F features.
"""

import math

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float
from torch import Tensor

from cpc.candidates.kernels.kernel_map import KernelMap
from cpc.candidates.kernels.projections import random_projection


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
        projection: how W is drawn: gaussian, orthogonal, or structured (SORF).
        seed: of that draw.
    """

    frequencies: Tensor  # [F, D], each row twice: for the cosines and for the sines
    phases: Tensor  # [F]
    needs_normalised = True
    can_vanish = True

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
        return self.of_queries(x) / math.sqrt(self.num_frequencies)

    def of_queries(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """The same times sqrt(D)."""
        return F.linear(x, self.frequencies, self.phases).cos()
