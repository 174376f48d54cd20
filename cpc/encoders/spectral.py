"""Log-mel spectra and MFCCs as encoders without learned parameters. They are the baselines of all probes.

B batch, S samples, T frames, M mel bands, D latent dim.
"""

import math
import warnings

import torch
import torchaudio
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from cpc.config.argument_rules import Count, Natural, Range, checked
from cpc.encoders.encoder import Samples
from cpc.encoders.waveforms import WaveformEncoder

DELTA_REACH = 2  # number of frames on each side of a frame, to which a slope is fitted


class LogMel(WaveformEncoder):
    """An encoder that returns log energies of a mel filter bank: S // hop_samples frames for S samples.

    Frame i is the Hamming window centred at sample `i * hop_samples + (hop_samples - 1) / 2`, the middle of its hop
    (79.5 + 160 i by default; latent i of the default `AudioEncoder` is centred at 79 + 160 i). The waveform is padded
    with zeros. Each frame is a function of only its window: levels are not normalised over the utterance.

    Args:
        num_mels: number of bands, spaced evenly on the mel scale (HTK's formula) up to half the sample rate.
        sample_rate_hz: rate of the waveforms.
        hop_samples: distance of frames.
        window_samples: length of the window of a frame.

    Raises:
        ValueError: if a count is below 1, the window is shorter than the hop or differs from it by an odd number, or
            there are more bands than the window's frequency resolution can fill.
    """

    @checked
    def __init__(
        self, num_mels: Count = 40, sample_rate_hz: Count = 16000, hop_samples: Count = 160, window_samples: int = 400
    ) -> None:
        super().__init__(sample_rate_hz)
        if window_samples < hop_samples or (window_samples - hop_samples) % 2:
            raise ValueError(f"{window_samples=} must exceed {hop_samples=} by an even number, or equal it")
        self.num_mels = num_mels
        self.hop_samples = hop_samples
        self.window_samples = window_samples
        self.dim = num_mels
        self.receptive_field_samples, self.shortest_samples = window_samples, hop_samples
        self.first_centre_samples = (hop_samples - 1) / 2

        # The FFT length is a power of two, as in Kaldi, with the window in the middle.
        self.fft_samples = 2 ** math.ceil(math.log2(window_samples))
        self.spectrum = torchaudio.transforms.Spectrogram(
            n_fft=self.fft_samples,
            win_length=window_samples,
            hop_length=hop_samples,
            window_fn=torch.hamming_window,
            wkwargs={"periodic": False},  # because the centre of a periodic window is half a sample late
            center=False,
        )
        with warnings.catch_warnings(action="ignore"):  # the check below raises an error instead
            self.mel_scale = torchaudio.transforms.MelScale(num_mels, sample_rate_hz, n_stft=self.fft_samples // 2 + 1)
        if not self.mel_scale.fb.any(0).all():
            raise ValueError(f"{num_mels=}: bands are too narrow for {self.fft_samples} samples at {sample_rate_hz} Hz")

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T M"]:
        """Return log mel energies of waveforms of at least one hop, standardised by the statistics of the corpus."""
        return self.log_energies(x)

    def log_energies(self, x: Float[Tensor, "B S"], num_beyond: int = 0) -> Float[Tensor, "B T_beyond M"]:
        """Return log mel energies, with `num_beyond` more frames before and after the waveform."""
        before = (self.fft_samples - self.window_samples) // 2 + (self.window_samples - self.hop_samples) // 2
        after, beyond = self.fft_samples - self.hop_samples - before, num_beyond * self.hop_samples
        x = pad(self._standardise(x), (before + beyond, after + beyond))
        with torch.autocast(x.device.type, enabled=False):  # power spectra exceed the range of half precision
            energies = self.mel_scale(self.spectrum(x))
        # The floor is that of torchaudio, about 85 dB below a corpus of unit variance.
        return rearrange((energies + 1e-6).log(), "b m t -> b t m")

    def num_latents(self, num_samples: Samples) -> Samples:
        """Return the number of frames of `num_samples` samples; elementwise on tensors."""
        return num_samples // self.hop_samples


class MFCC(LogMel):
    """An encoder that returns mel-frequency cepstral coefficients and derivatives: 39 channels by default.

    Frames are those of `LogMel`. The coefficients are the orthonormal DCT-II over bands, including coefficient 0 (the
    level). Derivatives are slopes fitted to 5 frames (HTK's regression), with edge frames repeated at both ends. Each
    order of derivatives looks 2 frames ahead. The two default orders together look 4 frames (40 ms) ahead, so this
    baseline is not causal; MFCCs are commonly built in this way.

    Args:
        num_coefficients: cepstral coefficients.
        num_deltas: orders of derivatives: 0 for none, 1 for slopes, 2 for slopes of slopes too.
        num_mels: see `LogMel`, also for `sample_rate_hz`, `hop_samples` and `window_samples`.
    """

    @checked
    def __init__(
        self,
        num_coefficients: Count = 13,
        num_deltas: Natural = 2,
        num_mels: int = 40,
        sample_rate_hz: int = 16000,
        hop_samples: int = 160,
        window_samples: int = 400,
    ) -> None:
        super().__init__(num_mels, sample_rate_hz, hop_samples, window_samples)
        Range(1, num_mels).check("`num_coefficients`", num_coefficients)
        self.num_coefficients = num_coefficients
        self.num_deltas = num_deltas
        self.dct = nn.Buffer(torchaudio.functional.create_dct(num_coefficients, num_mels, norm="ortho"))
        self.dim = num_coefficients * (1 + num_deltas)
        self.receptive_field_samples = window_samples + 2 * DELTA_REACH * num_deltas * hop_samples

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T D"]:
        """Return coefficients, then slopes, then slopes of slopes."""
        with torch.autocast(x.device.type, enabled=False):
            coefficients = rearrange(super().forward(x) @ self.dct, "b t d -> b d t")
            orders = [coefficients]
            for _ in range(self.num_deltas):
                orders.append(torchaudio.functional.compute_deltas(orders[-1], win_length=2 * DELTA_REACH + 1))
        return rearrange(orders, "orders b d t -> b t (orders d)")
