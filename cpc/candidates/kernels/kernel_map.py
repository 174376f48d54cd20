"""What every feature map of a kernel promises.

D dims, F features.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.candidates.fixed_dtype import FixedDtype

NORM_TOLERANCE = 1e-3  # of what was normalised in bfloat16 this is the rounding


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

    needs_normalised = False  # K is a function of x . y on the unit sphere alone
    can_vanish = False  # phi(x) . phi(y) may be zero or below

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

    def of_queries(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
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
                    "classes and queries, or take RandomMaclaurin or Quadratic"
                )
