"""The encoder g_enc for signals of several channels: strided convolutions over time.

B batch, S samples, I input channels, T latents, D latent dim.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Positive, checked
from cpc.data.tensors import check_finite, check_tensor
from cpc.encoders.convolution import NORM_EPSILON, Norm, NormedConvolution, check_layers, hops, receptive_field
from cpc.encoders.encoder import Encoder, Samples
from cpc.encoders.strided_conv import convolve_blocks

Front = Literal["raw", "level", "compand"]


class SignalEncoder(Encoder):
    """Strided convolutions with ReLU over time, for sensors: `[B, S, I]` becomes one latent per `hop_samples`.

    S samples give S // hop latents, or one if they are fewer than a hop. Missing samples and padding are NaN. They are
    zero after standardisation and in every layer, so latents do not depend on the width of padding. Input is
    standardised channel by channel, by statistics of the training split.

    `front` decides what the first convolution reads. `raw` is the standardised signal. The other two add I channels
    computed from the signal x and its causal moving average m over `level_seconds`; the floor of a channel is a low
    quantile of its local deviations in the training split:

    - `compand` adds asinh((x - m) / floor). Standing still and walking differ a hundredfold in deviation; after
      standardisation the smaller one is invisible.
    - `level` adds log(1 + s / floor), with s the local deviation: the root of the moving average of (x - m)^2.

    `baseline_seconds` adds I channels more: x minus its moving average over this longer time. Where a sensor sits and
    how it lies changes its average, which differs between people; the difference from the usual value does not. A
    stream knows the average of all this time, a window that is encoded by itself only its own.

    Args:
        channels: I.
        dim: width of the latents and of every layer.
        sample_rate_hz: rate of the signals; data of another rate are refused.
        kernels: kernel size of each layer, in samples of its input; at least the stride.
        strides: stride of each layer.
        causal: pad only before the signal, so that a latent depends on no sample after its hop. Otherwise kernels that
            exceed their stride look ahead, and the first steps are easy to predict; see `overlapping_steps`.
        front: `raw`, `level` or `compand`.
        level_seconds: length of the moving average of `front`; None: eight hops.
        baseline_seconds: length of the moving average that is subtracted in further channels; None: no such channels.
        norm: see `AudioEncoder`.
        norm_epsilon: number that norm `layer` adds to the variance.
        channel_names: names of the channels, in order; None: training takes those of the recordings. Recordings whose
            channels have names are read by these names, and others by position.
        units: unit of each channel, "" if unknown; None: training takes those of the recordings. Recordings in other
            units are converted (see `cpc.data.signals.channels.conversion`).

    Attributes:
        hop_samples: distance of latents.
        receptive_field_samples: number of samples that the convolutions of a latent read.
        first_centre_samples: centre of the receptive field of latent 0, from the first sample.
        past_samples: number of samples before its hop on which a latent depends, including the moving averages.
        overlapping_steps: number of following latents whose convolutions read a sample that a latent reads as well.
    """

    modality = "signals"
    geometry_names: ClassVar[tuple[str, ...]] = ("sample_rate_hz", "hop_samples")
    shortest_samples = 1  # for one latent
    from_data: ClassVar[tuple[str, ...]] = ("channel_names", "units")
    variable_axes: ClassVar[dict[int, str]] = {0: "batch", 1: "samples"}

    @checked
    def __init__(
        self,
        channels: Count,
        dim: Count = 64,
        sample_rate_hz: int | Positive = 1.0,
        kernels: tuple[Count, ...] = (8, 4),
        strides: tuple[Count, ...] = (4, 2),
        causal: bool = True,
        front: Front = "compand",
        level_seconds: int | Positive | None = None,
        norm: Norm = "affine",
        norm_epsilon: Positive = NORM_EPSILON,
        baseline_seconds: int | Positive | None = None,
        channel_names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        check_layers(kernels=kernels, strides=strides)
        if any(kernel < stride for kernel, stride in zip(kernels, strides, strict=True)):
            raise ValueError(f"kernels={tuple(kernels)} are shorter than strides={tuple(strides)}")
        self.channels = channels
        self.dim = dim
        self.sample_rate_hz = float(sample_rate_hz)  # configs write 50
        self.kernels = tuple(kernels)
        self.strides = tuple(strides)
        self.causal = causal
        self.front: Front = front
        self.level_seconds = level_seconds
        self.norm = norm
        self.norm_epsilon = norm_epsilon
        self.baseline_seconds = baseline_seconds
        self.channel_names: Sequence[str] | None = None
        self.units: Sequence[str] | None = None
        self.set_channels(channel_names, units)

        num_views = 1 + (front != "raw") + (baseline_seconds is not None)
        widths = [channels * num_views] + [dim] * len(kernels)
        self.layers = nn.ModuleList(
            SignalLayer(widths[i], dim, kernels[i], strides[i], causal, norm, norm_epsilon) for i in range(len(kernels))
        )
        self.input_mean = nn.Buffer(torch.zeros(channels))
        self.input_std = nn.Buffer(torch.ones(channels))
        self.input_floor = nn.Buffer(torch.ones(channels))

        self.hop_samples = math.prod(strides)
        self.receptive_field_samples = receptive_field(kernels, strides)
        paddings: list[int] = [layer.padding for layer in self.layers]
        past = sum(padding * hop for padding, hop in zip(paddings, hops(strides), strict=True))
        self.first_centre_samples = (self.receptive_field_samples - 1) / 2 - past
        self.average_samples = (
            8 * self.hop_samples if level_seconds is None else max(1, round(level_seconds * sample_rate_hz))
        )
        self.baseline_samples = 1 if baseline_seconds is None else max(1, round(baseline_seconds * sample_rate_hz))
        averages = {"raw": 0, "compand": 1, "level": 2}[front]  # `level` averages twice
        self.past_samples = past + max(averages * (self.average_samples - 1), self.baseline_samples - 1)

    @property
    def overlapping_steps(self) -> int:
        """The number of following latents whose convolutions share a sample with those of a latent."""
        return -(-self.receptive_field_samples // self.hop_samples) - 1

    def forward(self, x: Float[Tensor, "B S I"]) -> Float[Tensor, "B T D"]:
        """Encode signals of I channels and at least one sample."""
        num_latents = self.num_latents(x.shape[1])
        hidden, is_known = self._front(x)
        for layer in self.layers:
            hidden, is_known = layer.rectified(layer(hidden), is_known)  # type: ignore[operator]
        return hidden[:, :num_latents]

    def num_latents(self, num_samples: Samples) -> Samples:
        """Return num_samples // hop, or 1 for fewer samples than a hop; elementwise on tensors."""
        if isinstance(num_samples, Tensor):
            return torch.maximum(num_samples // self.hop_samples, (num_samples > 0).to(num_samples.dtype))
        return max(num_samples // self.hop_samples, int(num_samples > 0))

    def known_latents(self, is_known: Bool[Tensor, "B S"]) -> Bool[Tensor, "B T"]:
        """Return which latents have a known sample, of at least one channel, in their hop; all others are zero."""
        hops_known = F.pad(is_known, (0, -is_known.shape[1] % self.hop_samples))
        return reduce(hops_known, "b (t s) -> b t", "any", s=self.hop_samples)[:, : self.num_latents(is_known.shape[1])]

    def random_input(self, generator: torch.Generator) -> Float[Tensor, "B S I"]:
        """Return noise of a random length in which samples are missing, for `cpc export`."""
        batch, num_samples = (int(torch.randint(most, (), generator=generator)) for most in (4, 40 * self.hop_samples))
        x = torch.rand(batch + 1, num_samples + 1, self.channels, generator=generator)
        return torch.where(torch.rand(x.shape, generator=generator) < 0.1, math.nan, x)

    def set_channels(self, names: Sequence[str] | None, units: Sequence[str] | None) -> None:
        """Set names, each once, and units of the channels; None if they are unknown.

        Raises:
            ValueError: if they are not one string for each channel, or two channels have one name.
        """
        for argument, values in (("channel_names", names), ("units", units)):
            is_list = isinstance(values, Sequence) and not isinstance(values, str)
            if values is not None and not (
                is_list
                and all(isinstance(value, str) for value in values)
                and len(values) == self.channels
                and (values is units or len(set(values)) == len(values))
            ):
                once = ", no name twice" if values is names else ""
                raise ValueError(f"{argument}={values!r} must be {self.channels} strings in a list{once}")
        self.channel_names = None if names is None else tuple(names)
        self.units = None if units is None else tuple(units)

    def set_statistics(self, mean: object, std: object, floor: object = 1.0) -> None:
        """Set the statistics of each channel: mean, deviation, and floor of local deviations, in signal units.

        A channel that is constant in the training split keeps deviation and floor 1.

        Raises:
            ValueError: if a number is not finite, or a deviation is negative.
        """
        values = [torch.as_tensor(value, dtype=torch.float64) for value in (mean, std, floor)]
        for name, value, least in zip(("mean", "std", "floor"), values, (-math.inf, 0, 0), strict=True):
            check_finite(name, value, least)
        mean_values, std_values, floor_values = values
        std_values = torch.where(std_values > 0, std_values, 1.0)
        self.input_mean.copy_(mean_values)
        self.input_std.copy_(std_values)
        # The front reads standardised signals, so the floor is in deviations.
        floor_values = torch.where(floor_values > 0, floor_values / std_values, 1.0)
        self.input_floor.copy_(floor_values)

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "B S I"]) -> None:
        """Set scale and bias to give every channel zero mean and unit deviation on this batch (norm `affine` only).

        Raises:
            ValueError: the errors of `forward`; also if the signals are constant.
        """
        hidden, is_known = self._front(x)
        for layer in self.layers:
            layer.initialise_from(hidden)  # type: ignore[operator]
            hidden, is_known = layer.rectified(layer(hidden), is_known)  # type: ignore[operator]

    def standardised(self, x: Float[Tensor, "B S I"]) -> Float[Tensor, "n I"]:
        """Return the standardised samples; NaN where missing."""
        return rearrange(self._standardise(x), "b s i -> (b s) i")

    def _standardise(self, x: Tensor) -> Float[Tensor, "B S I"]:
        check_tensor("signals", x, "numbers", ("batch", "samples", self.channels))
        if x.shape[1] < 1:
            raise ValueError(f"signals of shape {list(x.shape)} have no sample")
        return (x - self.input_mean) / self.input_std

    def _front(self, x: Tensor) -> tuple[Float[Tensor, "B S I"], Float[Tensor, "B S 1"]]:
        """Return the input of the first convolution, and a mask (1 or 0) of samples that are known in some channel."""
        x = self._standardise(x)
        is_known = ~x.isnan()
        x = torch.where(is_known, x, 0)
        is_any_known = is_known.any(2, keepdim=True).to(x.dtype)
        views = [x]
        if self.front != "raw":
            from_average, known = self._from_average(x, is_known, self.average_samples)
        if self.front == "compand":
            views.append(torch.asinh((from_average / self.input_floor).to(x.dtype)))
        elif self.front == "level":
            deviation = (_moving_sum(from_average.square(), self.average_samples) / known).clamp(min=0).sqrt()
            level = torch.log1p(deviation / self.input_floor).to(x.dtype)
            views.append(torch.where(is_known, level, 0))
        if self.baseline_seconds is not None:
            views.append(self._from_average(x, is_known, self.baseline_samples)[0].to(x.dtype))
        return torch.cat(views, 2), is_any_known

    @staticmethod
    def _from_average(x: Tensor, is_known: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
        """Return the difference from the moving average over the known of the last samples, and their number."""
        known = _moving_sum(is_known.double(), num_samples).clamp(min=1)
        return torch.where(is_known, x - _moving_sum(x.double(), num_samples) / known, 0), known


def _moving_sum(x: Tensor, num_samples: int) -> Tensor:
    """Return the sum over the last `num_samples` samples, from differences of running sums.

    Rounding does not add up if they are in float64.
    """
    total = x.cumsum(1)
    return total - F.pad(total, (0, 0, num_samples, 0))[:, : total.shape[1]]


class SignalLayer(NormedConvolution):
    """A strided convolution and norm of `[B, L, C]` with one output per stride; the last may read padding."""

    def __init__(
        self, in_dim: int, dim: int, kernel: int, stride: int, causal: bool, norm: Norm, norm_epsilon: float
    ) -> None:
        super().__init__(in_dim, dim, (kernel,), norm, norm_epsilon)
        self.stride = stride
        self.padding = kernel - stride if causal else (kernel - stride) // 2

    def rectified(self, x: Tensor, is_known: Tensor) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T 1"]]:
        """Return the ReLU, zero where the stride of an output has no known input, and which outputs are known."""
        num_samples = x.shape[1] * self.stride
        is_known = F.pad(is_known, (0, 0, 0, num_samples - is_known.shape[1]))
        is_known = rearrange(is_known, "b (t s) 1 -> b t s", s=self.stride).amax(2, keepdim=True)
        return x.relu() * is_known, is_known

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Float[Tensor, "B T D"]:
        num_outputs = (x.shape[1] + self.stride - 1) // self.stride  # ONNX rounds negative quotients towards zero
        length = (num_outputs - 1 + -(-weight.shape[2] // self.stride)) * self.stride
        blocks = F.pad(x, (0, 0, self.padding, length - self.padding - x.shape[1]))
        return convolve_blocks(blocks, weight, bias, self.stride)
