"""A trunk for patches of 8 to 32 pixels that trains on a CPU.

n patches, C colour channels, P pixels, D features, h w rows and columns of features, d channels of a layer.
"""

import math

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, checked
from cpc.encoders.convolution import (
    Norm,
    NormedConvolution,
    check_layers,
    check_side,
    initialise_layers,
    receptive_field,
)


class TinyTrunk(nn.Module):
    """A few convolutions with ReLU, most of them matrix products of blocks without overlap.

    A layer of stride s > 1 cuts its input into s x s blocks and projects each block; rows and columns that do not fill
    a block are dropped. A layer of stride 1 is a 3x3 convolution with zero padding. The last layer is a 1x1 convolution
    to `dim`. By default a patch of 16x16 pixels takes 1.8 million operations, a patch of 64x64 pixels 29 million.

    Args:
        dim: D, the width of the features.
        num_channels: C of the pixels.
        strides: strides of all layers except the last. Their product is the `stride` of the trunk and the side of the
            smallest patch.
        widths: channels of all layers except the last.
        norm: `affine`, one scale and shift per channel, initialised from data by `initialise_from` and then
            trained; `layer`, layer norm over the channels of each position; `none`.

    Attributes:
        receptive_field: side of the square of pixels that a feature depends on.
    """

    @checked
    def __init__(
        self,
        dim: Count = 256,
        num_channels: Count = 3,
        strides: tuple[Count, ...] = (4, 1, 2),
        widths: tuple[Count, ...] = (64, 64, 128),
        norm: Norm = "affine",
    ) -> None:
        super().__init__()
        check_layers(strides=strides, widths=widths)
        self.dim = dim
        self.num_channels = num_channels
        self.strides = tuple(strides)
        self.widths = tuple(widths)
        self.norm = norm

        kernels = [stride if stride > 1 else 3 for stride in strides] + [1]
        dims = [num_channels, *widths, dim]
        self.layers = nn.Sequential(
            *(
                TinyLayer(dims[i], dims[i + 1], kernel, stride, norm)
                for i, (kernel, stride) in enumerate(zip(kernels, [*strides, 1], strict=True))
            )
        )
        self.stride = math.prod(strides)
        self.receptive_field = receptive_field(kernels, [*strides, 1])

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D h w"]:
        """Encode patches, or images of any size from one stride on, with standardised pixels."""
        return rearrange(self.layers(self._positions(x)), "n h w d -> n d h w")

    def initialise_from(self, x: Float[Tensor, "n C P Q"]) -> None:
        """Set scale and bias of each layer to give zero mean and unit deviation on patches (norm `affine` only)."""
        initialise_layers(self.layers, self._positions(x))

    def _positions(self, x: Tensor) -> Float[Tensor, "n P Q C"]:
        """Return the pixels with channels last, as the layers need them."""
        check_side(x, self.stride)
        return rearrange(x, "n c p q -> n p q c")


class TinyLayer(NormedConvolution):
    """A layer of convolution, norm and ReLU.

    If kernel and stride are equal, the convolution is one matrix product of the blocks, which takes about half the time
    of the strided and 1x1 convolutions of torch (docs/decisions/encoders_and_contexts.md).
    """

    def __init__(self, in_dim: int, dim: int, kernel: int, stride: int, norm: Norm, padding: int = 1) -> None:
        super().__init__(in_dim, dim, (kernel, kernel), norm)
        self.stride = stride
        self.padding = padding  # not of blocks

    def forward(self, x: Float[Tensor, "n p q c"]) -> Float[Tensor, "n h w d"]:  # noqa: D102
        return super().forward(x).relu_()

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Float[Tensor, "n h w d"]:
        kernel, s = weight.shape[2], self.stride
        if kernel != s:
            y = F.conv2d(rearrange(x, "n p q c -> n c p q"), weight, bias, s, self.padding)
            return rearrange(y, "n d h w -> n h w d")
        x = x[:, : x.shape[1] // s * s, : x.shape[2] // s * s]
        blocks = rearrange(x, "n (h i) (w j) c -> n h w (i j c)", i=s, j=s)
        return F.linear(blocks, rearrange(weight, "d c i j -> d (i j c)"), bias)
