"""The base class of encoders of waveforms: sample rate, hop and statistics of the corpus.

B batch, S samples, T latents, D latent dim.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.encoders.encoder import Encoder, Samples, check_statistics


class WaveformEncoder(Encoder):
    """An encoder from waveforms `[B, S]` to latents `[B, T, D]`; a subclass defines `forward` and `num_latents`."""

    modality = "audio"
    geometry_names: ClassVar[tuple[str, ...]] = ("sample_rate_hz", "hop_samples")
    variable_axes: ClassVar[dict[int, str]] = {0: "batch", 1: "samples"}

    hop_samples: int  # distance of latents
    receptive_field_samples: int  # number of samples that a latent depends on
    first_centre_samples: float  # centre of the receptive field of latent 0, from the first sample
    shortest_samples: int  # the smallest number of samples for one latent

    def __init__(self, sample_rate_hz: int) -> None:
        super().__init__()
        self.sample_rate_hz = sample_rate_hz
        self.input_mean = nn.Buffer(torch.zeros(()))
        self.input_std = nn.Buffer(torch.ones(()))

    @abstractmethod
    def num_latents(self, num_samples: Samples) -> Samples:
        """Return the number of latents of `num_samples` samples; elementwise on tensors."""

    def random_input(self, generator: torch.Generator) -> Float[Tensor, "B S"]:
        """Return noise of a random length, at least the shortest; `cpc export` compares graphs on such inputs."""
        batch, num_hops = (int(torch.randint(most, (), generator=generator)) for most in (4, 40))
        return torch.rand(batch + 1, self.shortest_samples + num_hops * self.hop_samples, generator=generator)

    def set_statistics(self, mean: float, std: float) -> None:
        """Set the mean and standard deviation of the corpus, which standardise the samples."""
        check_statistics(mean, std)
        self.input_mean.fill_(mean)
        self.input_std.fill_(std)

    def standardised(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "n 1"]:
        """Return the standardised samples."""
        return rearrange(self._standardise(x), "... -> (...) 1")

    def _standardise(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """Return the standardised waveforms; raise ValueError if they are too short for one latent."""
        if self.num_latents(x.shape[1]) < 1:
            raise ValueError(f"{x.shape[1]} samples are too few for one latent, which needs {self.shortest_samples}")
        return (x - self.input_mean) / self.input_std
