"""Which changes of waveforms training makes, and how each window draws them.

S samples.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cpc.data.audio.waveform_changes import (
    COLOURS,
    Waveform,
    add_noise,
    drop_band,
    drop_time,
    keep_band,
    made_noise,
    reverberate,
    room_response,
    shift_pitch,
)

_DIRECT_DB = (0.0, 12.0)  # direct sound against reverberation: from the far end of a room to beside the speaker
_NARROWEST_HZ = 10.0  # ten of the frequencies that a second of noise is made of


@dataclass(kw_only=True)
class WaveformAugmentation:
    """Changes of training windows, in this order (after Kharitonov et al. 2020, arXiv:2007.00991); null: not that one.

    Every window draws its own. Two numbers are a range, one is the largest amount; draws from both are uniform.

    Args:
        applied_to: `past`: contexts come from changed waveforms, the latents they are to find from unchanged ones, at
            the cost of encoding both; `both`: all come from changed ones.
        pitch_cents: pitch is raised or lowered by at most this.
        noise_snr_db: range of the ratio of signal to added noise.
        noise: `white`, `pink` or `brown`; or recordings: a manifest, or a folder that holds `manifest.csv`.
        noise_band_hz: only this band of the noise is added; the paper's is 80 to 240.
        reverb_ms: range of reverberation times (RT60) of synthetic rooms.
        band_drop_hz: a band at most this wide is filtered out, anywhere.
        time_drop_ms: zeros for at most this long, anywhere.
    """

    applied_to: Literal["past", "both"] = "past"
    pitch_cents: float | None = None
    noise_snr_db: tuple[float, float] | None = None
    noise: str = "white"
    noise_band_hz: tuple[float, float] | None = None
    reverb_ms: tuple[float, float] | None = None
    band_drop_hz: float | None = None
    time_drop_ms: float | None = None

    @property
    def recordings(self) -> str | None:
        """Where noise was recorded; None: it is made, or there is none."""
        return None if self.noise in COLOURS else self.noise

    def check(self, sample_rate_hz: int, window_samples: int) -> None:
        """Refuse what is out of range, or has no effect.

        Args:
            sample_rate_hz: of the windows.
            window_samples: how long these are.

        Raises:
            ValueError: naming the option.
        """
        if self.applied_to not in ("past", "both"):
            raise ValueError(f"data.augmentation.applied_to={self.applied_to!r} is not one of 'past', 'both'")
        highest_hz = sample_rate_hz / 2
        for name, least, most in (
            ("pitch_cents", 0, 1200),
            ("noise_snr_db", -100, 100),
            ("noise_band_hz", 0, highest_hz),
            ("reverb_ms", 1, 10_000),
            ("band_drop_hz", 0, highest_hz),
            ("time_drop_ms", 0, 1000 * window_samples / sample_rate_hz),
        ):
            given: Any = getattr(self, name)
            if isinstance(given, tuple | list) and not (len(given) == 2 and least <= given[0] <= given[1] <= most):
                raise ValueError(
                    f"data.augmentation.{name}={list(given)} must be two numbers from {least:g} to {most:g}, the lower "
                    "one first"
                )
            if isinstance(given, int | float) and not least < given <= most:
                raise ValueError(f"data.augmentation.{name}={given:g} must be above {least:g}, at most {most:g}")
        if self.noise_band_hz is not None and self.noise_band_hz[1] - self.noise_band_hz[0] < _NARROWEST_HZ:
            raise ValueError(
                f"data.augmentation.noise_band_hz={list(self.noise_band_hz)} must be at least {_NARROWEST_HZ:g} Hz wide"
            )
        if self.noise_snr_db is None and (self.noise != "white" or self.noise_band_hz is not None):
            raise ValueError(
                "data.augmentation.noise and data.augmentation.noise_band_hz have no effect without "
                "data.augmentation.noise_snr_db: give a range such as [5, 15]"
            )
        changes = (self.pitch_cents, self.noise_snr_db, self.reverb_ms, self.band_drop_hz, self.time_drop_ms)
        if all(change is None for change in changes):
            raise ValueError(
                "data.augmentation changes nothing: give pitch_cents, noise_snr_db, reverb_ms, band_drop_hz or "
                "time_drop_ms, or leave it out"
            )


class Augmenter:
    """Changes a waveform as a key decides, and nothing else: not the order of windows, the process or the rank.

    Args:
        options: which changes.
        sample_rate_hz: of waveforms and noise.
        recordings: `PackedAudio` of noise, if the options name some.
    """

    def __init__(self, options: WaveformAugmentation, sample_rate_hz: int, recordings: Any = None) -> None:
        self.options = options
        self.sample_rate_hz = sample_rate_hz
        self.recordings = recordings
        if recordings is not None and not recordings.num_samples.any():
            raise ValueError(f"data.augmentation.noise={options.noise!r} holds no audio that can be read")

    def __call__(self, x: Waveform, key: int) -> Waveform:
        """The waveform changed; each change has draws of its own, so that one more leaves the others as they were."""
        options, rate = self.options, self.sample_rate_hz
        of_pitch, of_noise, of_reverb, of_band, of_time = (np.random.default_rng((key, change)) for change in range(5))
        if options.pitch_cents is not None:
            x = shift_pitch(x, of_pitch.uniform(-options.pitch_cents, options.pitch_cents), rate)
        if options.noise_snr_db is not None:
            snr_db = of_noise.uniform(*options.noise_snr_db)
            x = add_noise(x, self._noise(len(x), of_noise), snr_db)
        if options.reverb_ms is not None:
            rt60_ms, direct_db = of_reverb.uniform(*options.reverb_ms), of_reverb.uniform(*_DIRECT_DB)
            x = reverberate(x, room_response(rt60_ms, direct_db, rate, of_reverb))
        if options.band_drop_hz is not None:
            width = of_band.uniform(0, options.band_drop_hz)
            low = of_band.uniform(0, rate / 2 - width)
            x = drop_band(x, low, low + width, rate)
        if options.time_drop_ms is not None:
            num_samples = min(len(x), round(of_time.uniform(0, options.time_drop_ms) / 1000 * rate))
            x = drop_time(x, int(of_time.integers(0, len(x) - num_samples + 1)), num_samples)
        return x

    def _noise(self, num_samples: int, rng: np.random.Generator) -> Waveform:
        """Made or recorded; of a recording that is too short, again and again."""
        rate, band = self.sample_rate_hz, self.options.noise_band_hz
        size = max(num_samples, rate)  # a second, so that the narrowest band holds some of it
        if self.recordings is None:
            noise = made_noise(size, self.options.noise, rate, rng)
        else:
            lengths = self.recordings.num_samples
            file = int(rng.choice(np.flatnonzero(lengths)))
            start = int(rng.integers(0, max(lengths[file] - size, 0) + 1))
            noise = np.resize(self.recordings.read(file, start, size), size)
        return (noise if band is None else keep_band(noise, *band, rate))[:num_samples]
