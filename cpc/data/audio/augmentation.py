"""Augmentation of training windows: its options, and the random changes of each window.

S samples.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cpc.data.audio.waveform_changes import (
    COLOURS,
    Waveform,
    add_noise,
    coloured_noise,
    drop_band,
    drop_time,
    keep_band,
    reverberate,
    room_response,
    shift_pitch,
)

_DIRECT_DB = (0.0, 12.0)  # direct sound against reverberation: 0 dB at the far end of a room, 12 dB beside the speaker
_NARROWEST_HZ = 10.0  # width of ten frequency bins of a second of noise


@dataclass(kw_only=True)
class WaveformAugmentation:
    """Changes of training windows, made in the order of the arguments; null omits a change.

    The changes follow Kharitonov et al. 2020 (arXiv:2007.00991).

    Amounts are drawn uniformly for each window. Two numbers are a range; one number is the largest amount.

    Args:
        applied_to: `past`: contexts come from changed waveforms, positives and negatives from unchanged waveforms, and
            both are encoded; `both`: contexts, positives and negatives come from changed waveforms.
        pitch_cents: largest change of pitch, up or down.
        noise_snr_db: range of the ratio of signal to added noise.
        noise: `white`, `pink` or `brown`; or recordings: a manifest, or a folder that holds `manifest.csv`.
        noise_band_hz: only this band of the noise is added; the paper uses 80 to 240.
        reverb_ms: range of reverberation times (RT60) of synthetic rooms.
        band_drop_hz: largest width of a band that is filtered out, at any frequency.
        time_drop_ms: largest duration of a part that is set to zero, at any time.
        gain_db: largest change of level, up or down.
    """

    applied_to: Literal["past", "both"] = "past"
    pitch_cents: float | None = None
    noise_snr_db: tuple[float, float] | None = None
    noise: str = "white"
    noise_band_hz: tuple[float, float] | None = None
    reverb_ms: tuple[float, float] | None = None
    band_drop_hz: float | None = None
    time_drop_ms: float | None = None
    gain_db: float | None = None

    @property
    def recordings(self) -> str | None:
        """Manifest of the noise recordings; None if noise is generated, or if there is no noise."""
        return None if self.noise in COLOURS else self.noise

    def check(self, sample_rate_hz: int, window_samples: int) -> None:
        """Raise a ValueError if an option is out of range for these windows, or has no effect; the message names it."""
        if self.applied_to not in ("past", "both"):
            raise ValueError(f"`augmentation.applied_to`={self.applied_to!r} is not one of 'past', 'both'")
        highest_hz = sample_rate_hz / 2
        for name, least, most in (
            ("pitch_cents", 0, 1200),
            ("noise_snr_db", -100, 100),
            ("noise_band_hz", 0, highest_hz),
            ("reverb_ms", 1, 10_000),
            ("band_drop_hz", 0, highest_hz),
            ("time_drop_ms", 0, 1000 * window_samples / sample_rate_hz),
            ("gain_db", 0, 60),
        ):
            value: Any = getattr(self, name)
            if isinstance(value, tuple | list) and not (len(value) == 2 and least <= value[0] <= value[1] <= most):
                allowed = f"two numbers from {least:g} to {most:g}, the lower one first"
                raise ValueError(f"`augmentation.{name}`={list(value)} must be {allowed}")
            if isinstance(value, int | float) and not least < value <= most:
                raise ValueError(f"`augmentation.{name}`={value:g} must be above {least:g}, at most {most:g}")
        if self.noise_band_hz is not None and self.noise_band_hz[1] - self.noise_band_hz[0] < _NARROWEST_HZ:
            raise ValueError(
                f"`augmentation.noise_band_hz`={list(self.noise_band_hz)} must be at least {_NARROWEST_HZ:g} Hz wide"
            )
        if self.noise_snr_db is None and (self.noise != "white" or self.noise_band_hz is not None):
            raise ValueError(
                "`augmentation.noise` and `augmentation.noise_band_hz` have no effect without "
                "`augmentation.noise_snr_db`: give a range such as [5, 15]"
            )
        changes = ("pitch_cents", "noise_snr_db", "reverb_ms", "band_drop_hz", "time_drop_ms", "gain_db")
        if all(getattr(self, change) is None for change in changes):
            raise ValueError(f"`augmentation` has no effect: give {', '.join(changes)}, or leave it out")


class Augmenter:
    """Changes a waveform by a key. The result does not depend on the order of windows, the process or the rank.

    Args:
        options: the changes.
        sample_rate_hz: rate of waveforms and noise.
        recordings: `PackedAudio` of noise, if the options name some.
    """

    def __init__(self, options: WaveformAugmentation, sample_rate_hz: int, recordings: Any = None) -> None:
        self.options = options
        self.sample_rate_hz = sample_rate_hz
        self.recordings = recordings
        if recordings is not None and not recordings.num_samples.any():
            raise ValueError(f"`augmentation.noise`={options.noise!r} holds no audio that can be read")

    def __call__(self, x: Waveform, key: int) -> Waveform:
        """Return the changed waveform. Each change has its own generator: adding a change does not alter the others."""
        options, rate = self.options, self.sample_rate_hz
        pitch_rng, noise_rng, reverb_rng, band_rng, time_rng, gain_rng = (
            np.random.default_rng((key, i)) for i in range(6)
        )
        if options.pitch_cents is not None:
            x = shift_pitch(x, pitch_rng.uniform(-options.pitch_cents, options.pitch_cents), rate)
        if options.noise_snr_db is not None:
            snr_db = noise_rng.uniform(*options.noise_snr_db)
            x = add_noise(x, self._noise(len(x), noise_rng), snr_db)
        if options.reverb_ms is not None:
            rt60_ms, direct_db = reverb_rng.uniform(*options.reverb_ms), reverb_rng.uniform(*_DIRECT_DB)
            x = reverberate(x, room_response(rt60_ms, direct_db, rate, reverb_rng))
        if options.band_drop_hz is not None:
            width = band_rng.uniform(0, options.band_drop_hz)
            low = band_rng.uniform(0, rate / 2 - width)
            x = drop_band(x, low, low + width, rate)
        if options.time_drop_ms is not None:
            num_samples = min(len(x), round(time_rng.uniform(0, options.time_drop_ms) / 1000 * rate))
            x = drop_time(x, int(time_rng.integers(0, len(x) - num_samples + 1)), num_samples)
        if options.gain_db is not None:
            x = x * np.float32(10 ** (gain_rng.uniform(-options.gain_db, options.gain_db) / 20))
        return x

    def _noise(self, num_samples: int, rng: np.random.Generator) -> Waveform:
        """Return generated or recorded noise; a recording that is too short is repeated."""
        rate, band = self.sample_rate_hz, self.options.noise_band_hz
        size = max(num_samples, rate)  # at least a second, so that the narrowest band is not empty
        if self.recordings is None:
            noise = coloured_noise(size, self.options.noise, rate, rng)
        else:
            lengths = self.recordings.num_samples
            file = int(rng.choice(np.flatnonzero(lengths)))
            start = int(rng.integers(0, max(lengths[file] - size, 0) + 1))
            noise = np.resize(self.recordings.read(file, start, size), size)
        return (noise if band is None else keep_band(noise, *band, rate))[:num_samples]
