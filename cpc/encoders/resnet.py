"""Residual trunks with pre-activation, up to their third stage, without batch norm.

n patches, C colour channels, P pixels, D features, h w rows and columns of features, d channels of a layer.
"""

import math
from collections import OrderedDict
from typing import Literal

import torch
from einops import rearrange
from einops.layers.torch import Rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, checked
from cpc.encoders.convolution import Norm, receptive_field, standardising_affine

# The number of blocks, width and bottleneck (None: basic blocks) of each stage; widths are multiples of the trunk's.
STAGES: dict[int, tuple[tuple[int, int, int | None], ...]] = {
    18: ((2, 1, None), (2, 2, None), (2, 4, None)),
    34: ((3, 1, None), (4, 2, None), (6, 4, None)),
    50: ((3, 4, 1), (4, 8, 2), (6, 16, 4)),
    101: ((3, 4, 1), (4, 8, 2), (23, 16, 4)),
    161: ((3, 4, 1), (4, 8, 2), (46, 64, 8)),
}


class ResNetTrunk(nn.Module):
    """A residual network "v2" (He et al. 2016, arXiv:1603.05027): x + W relu(norm(.. W relu(norm(x)))).

    Section 3.2 of CPC uses the third of four stages of ResNet-v2-101 with 1024 features, without batch norm; this is
    `depth=101`. `depth=161` is the network of CPC v2 (Henaff et al. 2019, arXiv:1905.09272). That paper states that the
    third stage of ResNet-101 grows from 23 to 46 blocks, from 1024 to 4096 features and from bottlenecks of 256 to 512,
    and that layer norm replaces batch norm. It does not state the stem and stages one and two, which are taken from
    ResNet-101. It does not state whether another stage follows. The name says that no stage does: 3 * (3 + 4 + 46)
    convolutions and two layers at the ends are 161.

    If a block changes the shape, its activated input is projected onto the residual stream, and its (first) 3x3
    convolution has the stride. The stem has neither norm nor ReLU, because the first block begins with both. The trunk
    ends with norm and ReLU after the last addition, as in He et al. All convolutions pad with zeros to keep the size of
    their input, so features near the border of a patch contain their position in the patch.

    No norm mixes information between patches. `layer` normalises the channels of each position separately. With
    statistics over positions, every feature of a fully convolutional trunk would depend on all rows of an image.

    With norms that do not divide by the scale of the signal (`none`, `affine`), residual branches are multiplied by 1 /
    sqrt(number of blocks) (Hayou et al. 2021, arXiv:2010.12859). With He's initialisation the variance of the stream
    then grows by a factor of (1 + 1/L)^L < e over L blocks instead of 2^L.

    Args:
        depth: 18 or 34 (basic blocks), 50, 101 or 161 (bottlenecks).
        norm: see `TinyTrunk`; with `none`, convolutions have biases.
        num_channels: C of the pixels.
        stem: `imagenet`, a 7x7 convolution and a 3x3 max pool, both of stride 2; `small`, a 3x3 convolution of stride
            1, for patches of 8 to 32 pixels.
        width: channels of the stem; all other widths are multiples of it.

    Attributes:
        dim: D; with width=64 it is 256 (depth 18, 34), 1024 (50, 101) or 4096 (161).
        stride: distance of neighbouring features in pixels, 16 with the `imagenet` stem, 4 with `small`.
        receptive_field: side of the square of pixels that a feature depends on.
    """

    @checked
    def __init__(
        self,
        depth: Literal[18, 34, 50, 101, 161] = 50,
        norm: Norm = "affine",
        num_channels: Count = 3,
        stem: Literal["imagenet", "small"] = "imagenet",
        width: Count = 64,
    ) -> None:
        super().__init__()
        self.depth = depth
        self.norm = norm
        self.num_channels = num_channels
        self.stem = stem
        self.width = width

        stages = STAGES[depth]
        branch_scale = 1.0 if norm == "layer" else 1 / math.sqrt(sum(num_blocks for num_blocks, *_ in stages))
        windows = [(7, 2), (3, 2)] if stem == "imagenet" else [(3, 1)]  # (kernel, stride), layer by layer
        self.first = convolution(num_channels, width, *windows[0], bias=norm == "none", gain="linear")
        self.pool = nn.MaxPool2d(3, 2, padding=1) if stem == "imagenet" else nn.Identity()
        self.blocks = nn.Sequential()
        dim = width
        for index, (num_blocks, stage_width, bottleneck) in enumerate(stages):
            inner = None if bottleneck is None else bottleneck * width
            for block in range(num_blocks):
                block_stride = 2 if index > 0 and block == 0 else 1
                self.blocks.append(ResidualBlock(dim, stage_width * width, inner, block_stride, norm, branch_scale))
                windows += [(3, block_stride), (3, 1)] if inner is None else [(3, block_stride)]
                dim = stage_width * width
        self.closing_norm = normalisation(norm, dim)
        self.dim = dim
        kernels, strides = zip(*windows, strict=True)
        self.stride = math.prod(strides)
        self.receptive_field = receptive_field(kernels, strides)

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D h w"]:
        """Encode patches, or images of any size, with standardised pixels."""
        x = x.contiguous(memory_format=torch.channels_last)
        return self.closing_norm(self.blocks(self.pool(self.first(x)))).relu()

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "n C P Q"]) -> None:
        """Set norms to give the input of every ReLU zero mean and unit deviation on patches (norm `affine` only)."""
        affines = [module for module in self.modules() if isinstance(module, ChannelAffine)]
        hooks = [module.register_forward_pre_hook(lambda affine, x: affine.initialise_from(*x)) for module in affines]
        try:
            if affines:
                self(x)
        finally:
            for hook in hooks:
                hook.remove()


class ResidualBlock(nn.Module):
    """A block of two 3x3 convolutions, or 1x1, 3x3, 1x1 with a bottleneck, each after norm and ReLU."""

    def __init__(
        self, in_dim: int, dim: int, bottleneck_dim: int | None, stride: int, norm: Norm, branch_scale: float
    ) -> None:
        super().__init__()
        self.branch_scale = branch_scale
        if bottleneck_dim is None:
            dims, kernels, strides = [in_dim, dim, dim], [3, 3], [stride, 1]
        else:
            dims, kernels, strides = [in_dim, bottleneck_dim, bottleneck_dim, dim], [1, 3, 1], [1, stride, 1]
        self.norms = nn.ModuleList(normalisation(norm, width) for width in dims[:-1])
        self.convs = nn.ModuleList(
            convolution(dims[i], dims[i + 1], kernel, strides[i], bias=norm == "none")
            for i, kernel in enumerate(kernels)
        )
        changes_shape = in_dim != dim or stride > 1
        self.stride = stride
        self.shortcut = convolution(in_dim, dim, 1, 1, bias=False) if changes_shape else None

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D h w"]:
        """Return the stream after this block."""
        hidden = self.norms[0](x).relu()
        # Pixels are dropped before the product, because a strided 1x1 convolution of 4 channels makes oneDNN write out
        # of bounds on processors with AVX2 only (torch 2.14.1).
        strided = hidden[:, :, :: self.stride, :: self.stride].contiguous(memory_format=torch.channels_last)
        stream = x if self.shortcut is None else self.shortcut(strided)
        hidden = self.convs[0](hidden)
        for norm, conv in zip(self.norms[1:], self.convs[1:], strict=True):
            hidden = conv(norm(hidden).relu())
        return torch.add(stream, hidden, alpha=self.branch_scale)


class ChannelAffine(nn.Module):
    """A scale and a shift per channel, set once from data (ActNorm: Kingma and Dhariwal 2018, arXiv:1807.03039)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:  # noqa: D102
        return torch.addcmul(rearrange(self.bias, "d -> d 1 1"), x, rearrange(self.scale, "d -> d 1 1"))

    def initialise_from(self, x: Float[Tensor, "n d h w"]) -> None:
        """Set scale and shift so that every channel of the output for `x` has mean 0 and deviation 1."""
        scale, bias = standardising_affine(x, (0, 2, 3))
        self.scale.copy_(scale)
        self.bias.copy_(bias)


def normalisation(norm: Norm, dim: int) -> nn.Module:
    """Return the layer that normalises the input of a ReLU. `layer` does so over the channels of each position."""
    if norm == "affine":
        return ChannelAffine(dim)
    if norm == "none":
        return nn.Identity()
    # Nothing is copied if channels are last in memory.
    before, after = Rearrange("n d h w -> n h w d"), Rearrange("n h w d -> n d h w")
    return nn.Sequential(OrderedDict(before=before, layer_norm=nn.LayerNorm(dim), after=after))


def convolution(
    in_dim: int, dim: int, kernel: int, stride: int, bias: bool, gain: Literal["relu", "linear"] = "relu"
) -> nn.Conv2d:
    """Return a convolution with same padding, initialised to keep the scale of the signal."""
    conv = nn.Conv2d(in_dim, dim, kernel, stride, padding=kernel // 2, bias=bias)
    nn.init.kaiming_normal_(conv.weight, nonlinearity=gain)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv
