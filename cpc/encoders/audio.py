"""g_enc for waveforms: strided convolutions, one latent every 10 ms of 16 kHz audio.

B batch, S samples, T latents, D latent dim.
"""

import math
import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.encoders.strided_conv import ConvolveBlocks, Count, RectifyIntoBlocks, output_length

Norm = Literal["affine", "layer", "none", "batch"]


class AudioEncoder(nn.Module):
    """Five strided convolutions with ReLU: 20480 samples become 128 latents (section 3.1 of van den Oord et al. 2018).

    The paper states kernels and strides; it is silent on padding and norm. The padding gives exactly one latent per
    `hop_samples`. Everything here sees one frame at a time but for batch norm, so contexts stay causal.

    Args:
        dim: channels of every layer, the width of the latents.
        sample_rate_hz: rate of the waveforms that the encoder is meant for; data are resampled to it.
        norm: `affine`, one scale and shift per channel, set once from data by `initialise_from` and ordinary
            parameters from then on; `layer`, layer norm over the channels of each frame (Riviere et al. 2020's
            "ChannelNorm"); `none`; `batch`, which lets sequences of a batch see each other and warns about it.
        kernels: kernel size of each layer, in its own input's samples.
        strides: stride of each layer.
        paddings: zeros on both sides of each layer's input.
        standardise: `corpus` subtracts and divides by the statistics given to `set_statistics`; `window` by each
            window's own, which lets every latent see the whole window (not causal: for comparisons only); `none`.

    Raises:
        ValueError: on unequal numbers of layers, a size below 1, or an unknown norm or standardisation.
    """

    modality = "audio"
    latents = "sequences"

    def __init__(
        self,
        dim: int = 256,
        sample_rate_hz: int = 16000,
        norm: Norm = "affine",
        kernels: tuple[int, ...] = (10, 8, 4, 4, 4),
        strides: tuple[int, ...] = (5, 4, 2, 2, 2),
        paddings: tuple[int, ...] = (3, 2, 1, 1, 1),
        standardise: Literal["corpus", "window", "none"] = "corpus",
    ) -> None:
        super().__init__()
        if not len(kernels) == len(strides) == len(paddings):
            raise ValueError(
                f"kernels, strides and paddings describe one layer each, got {len(kernels)}, {len(strides)} and "
                f"{len(paddings)} of them"
            )
        if min((dim, sample_rate_hz, *kernels, *strides)) < 1 or min(paddings, default=0) < 0:
            raise ValueError(
                f"dim={dim}, sample_rate_hz={sample_rate_hz}, kernels={tuple(kernels)} and strides={tuple(strides)} "
                f"must all be at least 1, paddings={tuple(paddings)} at least 0"
            )
        if norm not in ("affine", "layer", "none", "batch"):
            raise ValueError(f"norm={norm!r} is not one of 'affine', 'layer', 'none', 'batch'")
        if standardise not in ("corpus", "window", "none"):
            raise ValueError(f"standardise={standardise!r} is not one of 'corpus', 'window', 'none'")
        if norm == "batch":
            warnings.warn(
                "norm='batch' shares statistics between the sequences and time steps of a batch: latents leak to "
                "each other and the contrastive task can be solved through the leak; norm='affine' does not",
                stacklevel=2,
            )
        self.dim = dim
        self.sample_rate_hz = sample_rate_hz
        self.norm = norm
        self.kernels = tuple(kernels)
        self.strides = tuple(strides)
        self.paddings = tuple(paddings)
        self.standardise = standardise

        widths = [1] + [dim] * len(kernels)
        self.layers = nn.ModuleList(
            ConvLayer(widths[i], dim, kernels[i], strides[i], paddings[i], norm, takes_frames=i == 0)
            for i in range(len(kernels))
        )
        self.input_mean: Tensor
        self.input_std: Tensor
        self.register_buffer("input_mean", torch.zeros(()))
        self.register_buffer("input_std", torch.ones(()))

        self.hop_samples = math.prod(strides)
        hops = [math.prod(strides[:i]) for i in range(len(strides))]
        self.receptive_field_samples = 1 + sum((k - 1) * hop for k, hop in zip(kernels, hops, strict=True))
        first_sample = -sum(padding * hop for padding, hop in zip(paddings, hops, strict=True))
        self.first_centre_samples = first_sample + (self.receptive_field_samples - 1) / 2

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T D"]:
        """Encode waveforms into latents.

        Raises:
            ValueError: if `x` is too short for a single latent.
        """
        if self.num_latents(x.shape[1]) < 1:
            raise ValueError(
                f"{x.shape[1]} samples are too few for one latent of this encoder, whose receptive field is "
                f"{self.receptive_field_samples} samples; pad the waveform or leave the file out"
            )
        hidden = self._frames(x)
        for layer in self.layers:
            hidden = layer(layer.blocks(hidden))  # type: ignore[operator]
        return hidden.relu()

    @property
    def geometry(self) -> dict[str, int]:
        """Where latents lie, for readers of config.json."""
        return {"sample_rate_hz": self.sample_rate_hz, "hop_samples": self.hop_samples}

    def num_latents(self, num_samples: Count) -> Count:
        """How many latents `num_samples` samples give; elementwise on tensors."""
        for kernel, stride, padding in zip(self.kernels, self.strides, self.paddings, strict=True):
            num_samples = output_length(num_samples, kernel, stride, padding)
        return max(num_samples, 0) if isinstance(num_samples, int) else num_samples.clamp(min=0)

    def set_statistics(self, mean: float, std: float) -> None:
        """Keep the corpus mean and standard deviation of the samples, by which inputs are standardised."""
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise ValueError(f"mean={mean} and std={std} cannot standardise audio: silent or non-finite corpus?")
        self.input_mean.fill_(mean)
        self.input_std.fill_(std)

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "B S"]) -> None:
        """Give every channel zero mean and unit deviation on this batch, layer by layer (norm `affine` only).

        Data-dependent initialisation after Salimans and Kingma 2016 (arXiv:1602.07868) and the ActNorm of Kingma and
        Dhariwal 2018 (arXiv:1807.03039). Call it before the model is wrapped or compiled.
        """
        hidden = self._frames(x)
        for layer in self.layers:
            blocks = layer.blocks(hidden)  # type: ignore[operator]
            layer.initialise_from(blocks)  # type: ignore[operator]
            hidden = layer(blocks)

    def _frames(self, x: Tensor) -> Float[Tensor, "B T kernel"]:
        """The standardised samples under each position of the first layer's kernel."""
        if self.standardise == "corpus":
            x = (x - self.input_mean) / self.input_std
        elif self.standardise == "window":
            x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True).clamp(min=1e-5)
        return F.pad(x, (self.paddings[0], self.paddings[0])).unfold(1, self.kernels[0], self.strides[0])


class ConvLayer(nn.Module):
    """Strided convolution and norm, channels last; the weights keep the shape of `nn.Conv1d`'s.

    The ReLU behind it belongs to the next layer, which rectifies into the blocks that it reads. The first layer takes
    frames of samples, as many as its kernel is long.

    Kaiming's initialisation keeps the signal's scale through the ReLUs; torch's default shrinks it sixfold over five
    layers, and the contrast of latents with it.
    """

    def __init__(
        self, in_dim: int, dim: int, kernel: int, stride: int, padding: int, norm: Norm, takes_frames: bool
    ) -> None:
        super().__init__()
        self.takes_frames = takes_frames
        self.stride = stride
        self.padding = padding
        self.norm = norm
        self.weight = nn.Parameter(torch.empty(dim, in_dim, kernel))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.bias = nn.Parameter(torch.zeros(dim))
        if norm == "affine":
            self.scale = nn.Parameter(torch.ones(dim))
        elif norm == "layer":
            self.layer_norm = nn.LayerNorm(dim)
        elif norm == "batch":
            self.batch_norm = nn.BatchNorm1d(dim)

    def blocks(self, x: Tensor) -> Tensor:
        """What `forward` reads: frames as they are, or the ReLU of the former layer's output, padded for this one."""
        if self.takes_frames:
            return x
        return RectifyIntoBlocks.apply(x, self.weight.shape[2], self.stride, self.padding)

    def forward(self, x: Float[Tensor, "B L C"]) -> Float[Tensor, "B T D"]:
        """Convolve and normalise; `[B, T, kernel]` comes in at the first layer."""
        if self.norm == "affine":
            # scale * (W x) = (scale * W) x: the affine costs nothing when it is folded into the weights.
            return self._convolve(x, self.weight * rearrange(self.scale, "d -> d 1 1"), self.bias)
        x = self._convolve(x, self.weight, self.bias)
        if self.norm == "layer":
            x = self.layer_norm(x)
        elif self.norm == "batch":
            x = rearrange(self.batch_norm(rearrange(x, "b t d -> (b t) d")), "(b t) d -> b t d", b=len(x))
        return x

    def initialise_from(self, x: Float[Tensor, "B L C"]) -> None:
        """Set scale and bias so that the pre-activations of this batch are standardised per channel."""
        if self.norm != "affine":
            return
        pre_activations = self._convolve(x, self.weight, None)
        std, mean = torch.std_mean(pre_activations, (0, 1))
        if not torch.isfinite(std).all() or (std <= 1e-12).all():
            raise ValueError("data initialisation needs a batch of finite audio that is not constant")
        self.scale.copy_(1 / std.clamp(min=1e-6))
        self.bias.copy_(-mean * self.scale)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Float[Tensor, "B T D"]:
        if self.takes_frames:
            return F.linear(x, rearrange(weight, "d 1 kernel -> d kernel"), bias)
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        bias = None if bias is None else bias.to(dtype)
        return ConvolveBlocks.apply(x.to(dtype), weight.to(dtype), bias, self.stride)
