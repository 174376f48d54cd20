"""The encoder g_enc for waveforms: strided convolutions give one latent every 10 ms of 16 kHz audio.

B batch, S samples, T latents, D latent dim.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Natural, Positive, checked
from cpc.encoders.convolution import (
    NORM_EPSILON,
    Norm,
    NormedConvolution,
    check_layers,
    hops,
    initialise_layers,
    receptive_field,
)
from cpc.encoders.encoder import Samples
from cpc.encoders.strided_conv import convolve_blocks, output_length, rectify_into_blocks
from cpc.encoders.waveforms import WaveformEncoder


class AudioEncoder(WaveformEncoder):
    """Five strided convolutions with ReLU: 20480 samples become 128 latents (section 3.1 of van den Oord et al. 2018).

    The paper states kernels and strides, but not padding and norm. The padding here gives exactly one latent per
    `hop_samples`. Input is standardised by statistics of the corpus, not of the window, so latents depend only on their
    receptive field and contexts stay causal.

    Args:
        dim: channels of every layer, the width of the latents.
        sample_rate_hz: sample rate of the waveforms; data are resampled to it.
        norm: `affine`, one scale and shift per channel, initialised from data by `initialise_from` and then
            trained; `layer`, layer norm over the channels of each frame (Riviere et al. 2020's
            "ChannelNorm"); `none`.
        kernels: kernel size of each layer, in samples of its input.
        strides: stride of each layer.
        paddings: number of zeros on each side of the input of each layer.
        norm_epsilon: number that norm `layer` adds to the variance.
    """

    @checked
    def __init__(
        self,
        dim: Count = 256,
        sample_rate_hz: Count = 16000,
        norm: Norm = "affine",
        kernels: tuple[Count, ...] = (10, 8, 4, 4, 4),
        strides: tuple[Count, ...] = (5, 4, 2, 2, 2),
        paddings: tuple[Natural, ...] = (3, 2, 1, 1, 1),
        norm_epsilon: Positive = NORM_EPSILON,
    ) -> None:
        super().__init__(sample_rate_hz)
        check_layers(kernels=kernels, strides=strides, paddings=paddings)
        self.dim = dim
        self.norm = norm
        self.kernels = tuple(kernels)
        self.strides = tuple(strides)
        self.paddings = tuple(paddings)
        self.norm_epsilon = norm_epsilon

        widths = [1] + [dim] * len(kernels)
        self.layers = nn.Sequential(
            *(
                ConvLayer(widths[i], dim, kernels[i], strides[i], paddings[i], norm, norm_epsilon, takes_frames=i == 0)
                for i in range(len(kernels))
            )
        )
        self.hop_samples = math.prod(strides)
        self.receptive_field_samples = receptive_field(kernels, strides)
        first_sample = -sum(padding * hop for padding, hop in zip(paddings, hops(strides), strict=True))
        self.first_centre_samples = first_sample + (self.receptive_field_samples - 1) / 2
        shortest = 1  # in outputs of the last layer; the loop converts to inputs of each layer
        for kernel, stride, padding in reversed(list(zip(kernels, strides, paddings, strict=True))):
            shortest = max((shortest - 1) * stride + kernel - 2 * padding, 1)
        self.shortest_samples = shortest  # then every layer has an input besides padding

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T D"]:
        """Encode waveforms into latents.

        Raises:
            ValueError: if `x` is too short for a single latent.
        """
        return self.layers(self._frames(x)).relu()

    def num_latents(self, num_samples: Samples) -> Samples:
        """Return the number of latents of `num_samples` samples; elementwise on tensors."""
        length = num_samples
        for kernel, stride, padding in zip(self.kernels, self.strides, self.paddings, strict=True):
            length = output_length(length, kernel, stride, padding)
        if isinstance(length, Tensor):
            return torch.where(num_samples < self.shortest_samples, 0, length)
        return 0 if num_samples < self.shortest_samples else length

    def initialise_from(self, x: Float[Tensor, "B S"]) -> None:
        """Set scale and bias to give every channel zero mean and unit deviation on this batch (norm `affine` only).

        Layers are set one after the other.

        Raises:
            ValueError: the errors of `forward`; also if the audio is constant or not finite.
        """
        initialise_layers(self.layers, self._frames(x))

    def _frames(self, x: Tensor) -> Float[Tensor, "B T kernel"]:
        """Return the standardised samples that the first layer's kernel reads at each position."""
        x = self._standardise(x)
        return F.pad(x, (self.paddings[0], self.paddings[0])).unfold(1, self.kernels[0], self.strides[0])


class ConvLayer(NormedConvolution):
    """ReLU, strided convolution and norm of `[B, S, C]`; the first layer takes frames of samples `[B, T, kernel]`."""

    def __init__(
        self,
        in_dim: int,
        dim: int,
        kernel: int,
        stride: int,
        padding: int,
        norm: Norm,
        norm_epsilon: float,
        takes_frames: bool,
    ) -> None:
        super().__init__(in_dim, dim, (kernel,), norm, norm_epsilon)
        self.takes_frames = takes_frames
        self.stride = stride
        self.padding = padding

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Float[Tensor, "B T D"]:
        if self.takes_frames:
            return F.linear(x, rearrange(weight, "d 1 kernel -> d kernel"), bias)
        blocks = rectify_into_blocks(x, weight.shape[2], self.stride, self.padding)
        return convolve_blocks(blocks, weight, bias, self.stride)
