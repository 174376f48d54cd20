"""The interface of encoders g_enc: observations x -> latents z."""

import warnings
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

Samples = TypeVar("Samples", int, Tensor)
_FARTHEST = 30.0  # mean or deviation: raw ECG reaches 22, shoulder exercises reach 14 by a model of daily activities
_SMALLEST = 0.01  # deviation of the liveliest channel: a phone on a lying person reaches 0.013
_UNSET = {"input_mean": 0, "input_std": 1, "pixel_mean": 0, "pixel_std": 1}


class Encoder(nn.Module):
    """An encoder with one latent per observed time step, unless a subclass says otherwise.

    Attributes:
        modality: the kind of observations.
        latents: shape of the latents, `sequences` `[B, T, D]` or `grids` `[B, H, W, D]`.
        dim: D.
        variable_axes: axes of observations that have variable length, and their names. An encoder that has them and a
            method `random_input` can be exported with `cpc export`.
        from_data: arguments that may be None until training takes them from its data.
        geometry_names: attributes that say where latents lie in an observation, for config.json.
    """

    modality: str
    latents = "sequences"
    variable_axes: ClassVar[dict[int, str]] = {}
    from_data: ClassVar[tuple[str, ...]] = ()
    geometry_names: ClassVar[tuple[str, ...]] = ()
    dim: int

    @property
    def geometry(self) -> dict[str, Any]:
        """The attributes `geometry_names` and their values."""
        values = {name: getattr(self, name) for name in self.geometry_names}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def num_latents(self, num_samples: Samples) -> Samples:
        """Return the number of latents of observations of `num_samples` steps; elementwise on tensors."""
        return num_samples

    def standardised(self, x: Tensor) -> Float[Tensor, "n C"] | None:
        """Return all numbers of observations as the first layer reads them, NaN where missing; by default None.

        Training standardises each of the C channels to mean 0 and deviation 1.
        """
        return None

    def initialise_from(self, x: Tensor) -> None:
        """Initialise parameters from data, before the model is wrapped, compiled or trained; by default, do nothing."""


def check_statistics(mean: float | Tensor, std: float | Tensor) -> None:
    """Raise ValueError unless observations can be standardised by this mean and deviation."""
    values = [torch.as_tensor(value) for value in (mean, std)]
    if not all(bool(value.isfinite().all()) for value in values) or bool((values[1] <= 0).any()):
        given = " and ".join(f"{name}={value.tolist()}" for name, value in zip(("mean", "std"), values, strict=True))
        raise ValueError(f"{given} cannot standardise observations: are they constant (silent, of one colour)?")


@torch.no_grad()
def check_scale(encoder: Any, x: Tensor) -> None:
    """Warn if the input of a trained encoder has another scale than its training data; only of the first batch.

    A batch that is constant, such as digital silence, decides nothing. Encoders whose statistics were never set have no
    scale.
    """
    standardised = getattr(encoder, "standardised", None)  # encoders of users may lack it
    if standardised is None or getattr(encoder, "is_scale_checked", False) or torch.compiler.is_compiling():
        return
    buffers = dict(encoder.named_buffers(recurse=False))
    if all((buffers[name] == value).all() for name, value in _UNSET.items() if name in buffers):
        return
    values = standardised(x)
    if values is None:
        return
    values = values.double()
    mean = values.nanmean(0).nan_to_num()
    std = (values - mean).square().nanmean(0).sqrt().nan_to_num()
    if not bool(std.any()):
        return
    encoder.is_scale_checked = True
    far = torch.maximum(mean.abs(), std)
    if bool(std.max() < _SMALLEST) or bool(far.max() > _FARTHEST):
        channel = int(far.argmax())
        names = getattr(encoder, "channel_names", None) or range(len(mean))
        where = f" in channel {names[channel]}" if len(mean) > 1 else ""
        found = f"the mean {mean[channel]:.3g} and the deviation {std[channel]:.3g}{where}, not about 0 and 1"
        text = f"the input, standardised as in training, has {found}: is its unit or scale another than in training?"
        warnings.warn(text, stacklevel=3)
