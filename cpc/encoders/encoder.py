"""The interface of encoders g_enc: observations x -> latents z."""

from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

Count = TypeVar("Count", int, Tensor)


class Encoder(nn.Module):
    """An encoder with one latent per observed time step, unless a subclass says otherwise.

    Attributes:
        modality: the kind of observations.
        latents: shape of the latents, `sequences` `[B, T, D]` or `grids` `[B, H, W, D]`.
        dim: D.
        variable_axes: axes of observations that have variable length, and their names. An encoder that has them and a
            method `random_input` can be exported with `cpc export`.
        from_data: arguments that may be None until training takes them from its data.
    """

    modality: str
    latents = "sequences"
    variable_axes: ClassVar[dict[int, str]] = {}
    from_data: ClassVar[tuple[str, ...]] = ()
    dim: int

    @property
    def geometry(self) -> dict[str, Any]:
        """Positions of latents in the observation, for config.json."""
        return {}

    def num_latents(self, num_samples: Count) -> Count:
        """Return the number of latents of observations of `num_samples` steps; elementwise on tensors."""
        return num_samples

    def initialise_from(self, x: Tensor) -> None:
        """Initialise parameters from data, before the model is wrapped, compiled or trained; by default, do nothing."""
