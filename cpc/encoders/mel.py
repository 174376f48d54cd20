"""The encoder g_enc on log-mel frames: two layers map log-mel spectra (from which MFCCs are computed too) to latents.

B batch, S samples, T latents, F frames per latent, M mel bands, D latent dim.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, Odd, checked
from cpc.encoders.spectral import LogMel


class MelEncoder(LogMel):
    """Two linear layers with a ReLU on log-mel frames that are standardised per band.

    Frames are those of `LogMel`: 25 ms every 10 ms by default. A latent depends on `num_frames` frames; the frame at
    the latent's time is in the middle. The targets of the first `num_frames + 1` steps share samples with the context;
    `skip_steps` of the loss skips some of these steps. `initialise_from` measures the statistics that standardise the
    bands. Every latent is a function of its own window, with zeros outside the waveform.

    Args:
        dim: width of the latents.
        hidden_dim: width of the hidden layer.
        num_frames: frames that a latent depends on, an odd number: a latent's own frame is in the middle.
        dropout: probability of dropping a hidden unit in training.
        num_mels: see `LogMel`, also for `sample_rate_hz`, `hop_samples` and `window_samples`.
    """

    @checked
    def __init__(
        self,
        dim: Count = 256,
        hidden_dim: Count = 512,
        num_frames: Odd = 1,
        dropout: Dropout = 0.0,
        num_mels: int = 80,
        sample_rate_hz: int = 16000,
        hop_samples: int = 160,
        window_samples: int = 400,
    ) -> None:
        super().__init__(num_mels, sample_rate_hz, hop_samples, window_samples)
        self.dim = dim
        self.hidden_dim = hidden_dim
        self.num_frames = num_frames
        self.dropout = dropout
        self.receptive_field_samples += (num_frames - 1) * hop_samples
        self.hidden = nn.Linear(num_frames * num_mels, hidden_dim)
        self.projection = nn.Linear(hidden_dim, dim)
        self.band_mean = nn.Buffer(torch.zeros(num_mels))
        self.band_std = nn.Buffer(torch.ones(num_mels))

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T D"]:
        """Encode waveforms of at least one hop."""
        frames = (self.log_energies(x, self.num_frames // 2) - self.band_mean) / self.band_std
        windows = rearrange(frames.unfold(1, self.num_frames, 1), "b t m f -> b t (f m)")
        return self.projection(F.dropout(self.hidden(windows).relu(), self.dropout, self.training))

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "B S"]) -> None:
        """Set the mean and deviation of every band from these waveforms."""
        std, mean = torch.std_mean(self.log_energies(x), (0, 1))
        self.band_mean.copy_(mean)
        self.band_std.copy_(std.clamp(min=1e-3))
