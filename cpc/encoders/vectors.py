"""The encoder g_enc for sequences of vectors: the same small network for every time step."""

from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, checked
from cpc.encoders.convolution import standardising_affine
from cpc.encoders.encoder import Encoder


class VectorEncoder(Encoder):
    """A two-layer network per time step, for vectors such as sensor data or features of another model.

    Args:
        input_dim: width of each observed vector.
        dim: width of the latents.
        hidden_dim: width of the hidden layer.
        sample_rate_hz: rate of the vectors.
    """

    modality = "vectors"
    hop_samples = 1
    geometry_names: ClassVar[tuple[str, ...]] = ("sample_rate_hz", "hop_samples")

    @checked
    def __init__(self, input_dim: Count, dim: Count = 64, hidden_dim: Count = 128, sample_rate_hz: Count = 1) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.dim = dim
        self.hidden_dim = hidden_dim
        self.sample_rate_hz = sample_rate_hz
        self.layers = nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, dim))

    def forward(self, x: Float[Tensor, "B T I"]) -> Float[Tensor, "B T D"]:
        """Encode every vector separately."""
        return self.layers(x)

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "B T I"]) -> None:
        """Set the first layer to standardise the hidden units on this batch."""
        linear: nn.Linear = self.layers[0]  # type: ignore[assignment]
        scale, bias = standardising_affine(linear(x), (0, 1))
        linear.weight.mul_(rearrange(scale, "h -> h 1"))
        linear.bias.mul_(scale).add_(bias)

    def set_statistics(self, mean: float, std: float) -> None:
        """Do nothing: vectors are not standardised."""
