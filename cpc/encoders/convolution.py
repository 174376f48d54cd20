"""Common parts of convolutional encoders: norms without batch statistics, data initialisation, and geometry.

D output channels of a layer.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Batch norm is no choice: it would leak information between the sequences or patches of a batch, with which the
# contrastive task could be solved.
Norm = Literal["affine", "layer", "none"]
NORM_EPSILON = 1e-5  # the default of torch's layer norm


def hops(strides: Sequence[int]) -> list[int]:
    """Return, for each layer, the distance of its neighbouring inputs, in inputs of the network."""
    return [math.prod(strides[:i]) for i in range(len(strides))]


def receptive_field(kernels: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of inputs that an output of these layers depends on."""
    return 1 + sum((kernel - 1) * hop for kernel, hop in zip(kernels, hops(strides), strict=True))


def check_layers(**sizes: Sequence[int]) -> None:
    """Raise ValueError unless every argument has one entry per layer, of at least one layer."""
    lengths = {*map(len, sizes.values())}
    if len(lengths) > 1 or lengths == {0}:
        given = ", ".join(f"{name}={tuple(values)}" for name, values in sizes.items())
        raise ValueError(f"{given} need one entry per layer")


def check_side(x: Tensor, least: int) -> None:
    """Raise ValueError if an image or patch `[..., P, Q]` has fewer than `least` pixels along a side."""
    if min(x.shape[-2:]) < least:
        raise ValueError(f"{tuple(x.shape[-2:])} pixels are too few: a side needs at least {least}")


def std_and_mean(x: Tensor, axes: Sequence[int]) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Return deviation and mean over `axes`; raise ValueError if they cannot initialise a layer."""
    std, mean = torch.std_mean(x, tuple(axes))
    if not torch.isfinite(std).all() or (std <= 1e-12).all():
        raise ValueError("data initialisation needs a batch that is finite and not constant")
    return std, mean


def standardising_affine(x: Tensor, axes: Sequence[int]) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Return the scale and shift that give every channel of `x` zero mean and unit deviation over `axes`.

    This is the data-dependent initialisation of Salimans and Kingma 2016 (arXiv:1602.07868), called ActNorm by Kingma
    and Dhariwal 2018 (arXiv:1807.03039).
    """
    std, mean = std_and_mean(x, axes)
    scale = 1 / std.clamp(min=1e-6)
    return scale, -mean * scale


@torch.no_grad()
def initialise_layers(layers: nn.Sequential, x: Tensor) -> None:
    """Initialise layers from this input, one after the other: each layer from the output of the previous layer."""
    for layer in layers:
        layer.initialise_from(x)  # type: ignore[operator]
        x = layer(x)


class NormedConvolution(nn.Module):
    """A convolution with a norm, channels last; weights have the shape of `nn.Conv1d` or `nn.Conv2d`.

    A subclass defines `_convolve`. Kaiming's initialisation keeps the scale of the signal through ReLUs. The default of
    torch shrinks the signal, and the differences between latents, sixfold over five layers.
    """

    def __init__(
        self, in_dim: int, dim: int, kernel: Sequence[int], norm: Norm, norm_epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.empty(dim, in_dim, *kernel))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.bias = nn.Parameter(torch.zeros(dim))
        if norm == "affine":
            self.scale = nn.Parameter(torch.ones(dim))
        elif norm == "layer":
            self.layer_norm = nn.LayerNorm(dim, norm_epsilon)

    def forward(self, x: Tensor) -> Float[Tensor, "B ... D"]:  # noqa: D102
        if self.norm == "affine":
            # scale * (W x) = (scale * W) x: folding the scale into the weights saves a pass over the output.
            scale = self.scale.reshape(-1, *[1] * (self.weight.ndim - 1))
            return self._convolve(x, self.weight * scale, self.bias)
        x = self._convolve(x, self.weight, self.bias)
        return self.layer_norm(x) if self.norm == "layer" else x

    def initialise_from(self, x: Tensor) -> None:
        """Set scale and bias so that the pre-activations of this batch are standardised (norm `affine` only)."""
        if self.norm == "affine":
            pre_activations = self._convolve(x, self.weight, None)
            scale, bias = standardising_affine(pre_activations, range(pre_activations.ndim - 1))
            self.scale.copy_(scale)
            self.bias.copy_(bias)

    @abstractmethod
    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Float[Tensor, "B ... D"]: ...
