"""Log-mel spectra and MFCCs as encoders: the baselines that every probe is compared with. Nothing here is learned.

B batch, S samples, T frames, M mel bands, D latent dim.
"""

import math
import warnings

import torch
import torchaudio
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from cpc.encoders.waveforms import Count, WaveformEncoder

DELTA_REACH = 2  # frames on either side that a slope is fitted to


class LogMel(WaveformEncoder):
    """Log energies of a mel filter bank, one frame per hop: S samples give S // hop_samples frames.

    Frame i is the Hamming window centred at sample `i * hop_samples + (hop_samples - 1) / 2`, the middle of its hop
    (79.5 + 160 i by default; latent i of the default `AudioEncoder` is centred at 79 + 160 i). Outside the
    waveform there are zeros. Each frame is a function of its own window alone: no level is taken over the utterance.

    Args:
        num_mels: bands, spaced evenly on the mel scale (HTK's formula) up to half the sample rate.
        sample_rate_hz: rate of the waveforms.
        hop_samples: distance of frames.
        window_samples: length of a frame's window.

    Raises:
        ValueError: if a count is below 1, the window is shorter than the hop or differs from it by an odd number, or
            there are more bands than the window's frequency resolution can fill.
    """

    def __init__(
        self, num_mels: int = 40, sample_rate_hz: int = 16000, hop_samples: int = 160, window_samples: int = 400
    ) -> None:
        super().__init__(sample_rate_hz)
        if min(num_mels, sample_rate_hz, hop_samples) < 1:
            raise ValueError(
                f"num_mels={num_mels}, sample_rate_hz={sample_rate_hz} and hop_samples={hop_samples} must be at least 1"
            )
        if window_samples < hop_samples or (window_samples - hop_samples) % 2:
            raise ValueError(
                f"window_samples={window_samples} cannot be centred on hops of hop_samples={hop_samples}: it must be "
                "at least as long, and differ by an even number"
            )
        self.num_mels = num_mels
        self.hop_samples = hop_samples
        self.window_samples = window_samples
        self.dim = num_mels
        self.receptive_field_samples = window_samples
        self.first_centre_samples = (hop_samples - 1) / 2

        # FFTs of a power of two, as Kaldi's, with the window in their middle
        self.fft_samples = 2 ** math.ceil(math.log2(window_samples))
        self.spectrum = torchaudio.transforms.Spectrogram(
            n_fft=self.fft_samples,
            win_length=window_samples,
            hop_length=hop_samples,
            window_fn=torch.hamming_window,
            wkwargs={"periodic": False},  # periodic windows are centred half a sample late
            center=False,
        )
        with warnings.catch_warnings(action="ignore"):  # it warns of what is refused here
            self.mel_scale = torchaudio.transforms.MelScale(num_mels, sample_rate_hz, n_stft=self.fft_samples // 2 + 1)
        if not self.mel_scale.fb.any(0).all():
            raise ValueError(
                f"num_mels={num_mels} bands are too narrow for a window of {self.fft_samples} samples at "
                f"{sample_rate_hz} Hz, no frequency of which falls into some of them: lower num_mels or raise "
                "window_samples"
            )

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T M"]:
        """Log mel energies of waveforms standardised by the corpus statistics.

        Raises:
            ValueError: if `x` is shorter than one hop.
        """
        return self.log_energies(x)

    def log_energies(self, x: Float[Tensor, "B S"], num_beyond: int = 0) -> Float[Tensor, "B T_beyond M"]:
        """The same, with frames before the waveform and after it."""
        before = (self.fft_samples - self.window_samples) // 2 + (self.window_samples - self.hop_samples) // 2
        after, beyond = self.fft_samples - self.hop_samples - before, num_beyond * self.hop_samples
        x = pad(self._standardise(x), (before + beyond, after + beyond))
        with torch.autocast(x.device.type, enabled=False):  # power spectra span more than half precision resolves
            energies = self.mel_scale(self.spectrum(x))
        # The floor, torchaudio's, lies about 85 dB below a corpus of unit variance.
        return rearrange((energies + 1e-6).log(), "b m t -> b t m")

    def num_latents(self, num_samples: Count) -> Count:
        """How many frames `num_samples` samples give; elementwise on tensors."""
        return num_samples // self.hop_samples


class MFCC(LogMel):
    """Mel-frequency cepstral coefficients with their time derivatives: 13 + 13 + 13 = 39 channels by default.

    Frames are `LogMel`'s; coefficients its orthonormal DCT-II over bands, the 0th (level) included. Derivatives are
    slopes fitted to 5 frames (HTK's regression), edge frames repeated beyond both ends: each order looks 2 frames
    ahead, the default 4 frames or 40 ms. That is how this baseline is commonly built, and why it is not a causal one.

    Args:
        num_coefficients: cepstral coefficients.
        num_deltas: orders of derivatives: 0 for none, 1 for slopes, 2 for slopes of slopes too.
        num_mels: bands beneath.
        sample_rate_hz: rate of the waveforms.
        hop_samples: distance of frames.
        window_samples: length of a frame's window.

    Raises:
        ValueError: if there are more coefficients than bands, or none; if `num_deltas` is negative; as `LogMel`.
    """

    def __init__(
        self,
        num_coefficients: int = 13,
        num_deltas: int = 2,
        num_mels: int = 40,
        sample_rate_hz: int = 16000,
        hop_samples: int = 160,
        window_samples: int = 400,
    ) -> None:
        super().__init__(num_mels, sample_rate_hz, hop_samples, window_samples)
        if not 1 <= num_coefficients <= num_mels:
            raise ValueError(f"num_coefficients={num_coefficients} must lie between 1 and num_mels={num_mels}")
        if num_deltas < 0:
            raise ValueError(f"num_deltas={num_deltas} must be 0 (none) or a number of orders")
        self.num_coefficients = num_coefficients
        self.num_deltas = num_deltas
        self.dct: Tensor
        self.register_buffer("dct", torchaudio.functional.create_dct(num_coefficients, num_mels, norm="ortho"))
        self.dim = num_coefficients * (1 + num_deltas)
        self.receptive_field_samples = window_samples + 2 * DELTA_REACH * num_deltas * hop_samples

    def forward(self, x: Float[Tensor, "B S"]) -> Float[Tensor, "B T D"]:
        """Coefficients, then slopes, then slopes of slopes.

        Raises:
            ValueError: if `x` is shorter than one hop.
        """
        with torch.autocast(x.device.type, enabled=False):
            coefficients = rearrange(super().forward(x) @ self.dct, "b t d -> b d t")
            orders = [coefficients]
            for _ in range(self.num_deltas):
                orders.append(torchaudio.functional.compute_deltas(orders[-1], win_length=2 * DELTA_REACH + 1))
        return rearrange(orders, "orders b d t -> b t (orders d)")
