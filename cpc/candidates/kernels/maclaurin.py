"""Random Maclaurin features of the exponential kernel.

D dims, F features.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.candidates.kernels.kernel_map import KernelMap

MOST_FACTORS = 16  # of higher orders there is one feature in 2^17; its share goes to this order


class RandomMaclaurin(KernelMap):
    """K(x, y) = exp(nu x . y) in the mean, from its power series: Kar and Karnick 2012 (arXiv:1201.6530).

    Feature f draws an order k with probability 2^-(k+1) and k vectors w of random signs:
    phi_f(x) = sqrt(nu^k / k! 2^(k+1) / F) prod_j w_j . x. The variance grows with nu and |x| as that of a product does,
    and the estimate can be negative. It is here because RF-softmax's Table 1 has it, not because it samples well.

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
    can_vanish = True

    def __init__(self, dim: int, num_features: int, nu: float = 1.0, seed: int = 0) -> None:
        super().__init__(dim, num_features, nu=nu)
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
