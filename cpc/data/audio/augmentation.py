"""Augmentation of training windows: its options, and the random changes of each window. S samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy import fft, signal

from cpc.config.argument_rules import Range, check_fields

COLOURS = {"white": 0.0, "pink": 0.5, "brown": 1.0}  # by colour, the power of frequency with which amplitude falls
_BAND_EDGE_HZ = 25.0  # beside a dropped band the gain rises from 0 to 1 within this width
# Segments of the time stretch, in seconds: distance, overlap, and the largest shift that aligns a segment.
_SEGMENT, _OVERLAP, _REACH = 0.03, 0.01, 0.0075

Waveform = Float[np.ndarray, " S"]


def shift_pitch(x: Waveform, cents: float, sample_rate_hz: int) -> Waveform:
    """Raise pitch and formants by `cents` (1200 are an octave), as SoX does: resample, then stretch back.

    At 300 cents sounds move by at most 12 ms: the stretch shifts segments, and sounds drift within a segment.
    """
    ratio = 2 ** (-cents / 1200)
    apart = np.pad(x, (0, sample_rate_hz // 20))  # padded, so that the end does not sound at the beginning
    resampled = signal.resample(apart, max(1, round(len(apart) * ratio)))[: max(1, round(len(x) * ratio))]
    return _stretched(resampled, len(x), sample_rate_hz)


def add_noise(x: Waveform, noise: Waveform, snr_db: float) -> Waveform:
    """Add noise at a ratio of the two energies; if `x` or the noise is zero throughout, return `x` unchanged."""
    energy, noise_energy = (float(np.square(each, dtype=np.float64).sum()) for each in (x, noise))
    if energy == 0 or noise_energy == 0:
        return x
    return x + noise * np.float32(np.sqrt(energy / noise_energy) * 10 ** (-snr_db / 20))


def coloured_noise(num_samples: int, colour: str, sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """Return Gaussian noise of one of `COLOURS`, above 20 Hz: pink falls by 3 dB an octave, brown by 6."""
    white = rng.standard_normal(num_samples, np.float32)
    if not COLOURS[colour]:
        return white
    return _filtered(white, lambda hz: (hz >= 20) * np.maximum(hz, 20) ** -COLOURS[colour], sample_rate_hz)


def drop_band(x: Waveform, low_hz: float, high_hz: float, sample_rate_hz: int) -> Waveform:
    """Remove the frequencies within a band. Frequencies more than 25 Hz from the band do not change."""

    def gain(hz: np.ndarray) -> np.ndarray:
        distance = np.maximum(low_hz - hz, hz - high_hz).clip(0, _BAND_EDGE_HZ)
        return 0.5 - 0.5 * np.cos(np.pi * distance / _BAND_EDGE_HZ)

    return _filtered(x, gain, sample_rate_hz)


def room_response(
    rt60_ms: float, direct_db: float, sample_rate_hz: int, rng: np.random.Generator
) -> Float[np.ndarray, " n"]:
    """Return a room's impulse response (Polack 1988), of energy 1: the direct sound, then noise.

    The noise has decayed by 60 dB after `rt60_ms`; `direct_db` is the ratio of the direct sound's energy to its energy.
    """
    num_samples = max(2, round(rt60_ms / 1000 * sample_rate_hz))
    response = rng.standard_normal(num_samples, np.float32)
    response *= np.logspace(0, -3, num_samples, dtype=np.float32)
    response[0] = 0
    response *= np.float32(10 ** (-direct_db / 20) / np.linalg.norm(response))
    response[0] = 1
    return response / np.linalg.norm(response)


def reverberate(x: Waveform, response: Float[np.ndarray, " n"]) -> Waveform:
    """Convolve with a room's response, and cut off the sound after the end."""
    size = fft.next_fast_len(len(x) + len(response) - 1, real=True)
    return fft.irfft(fft.rfft(x, size) * fft.rfft(response, size), size)[: len(x)]


def _filtered(x: Waveform, gain: Callable[[np.ndarray], np.ndarray], sample_rate_hz: int) -> Waveform:
    size = fft.next_fast_len(len(x) + sample_rate_hz // 20, real=True)  # zeros between end and beginning
    gains = np.asarray(gain(fft.rfftfreq(size, 1 / sample_rate_hz)), np.float32)
    return fft.irfft(fft.rfft(x, size) * gains, size)[: len(x)]


def _stretched(x: Waveform, num_samples: int, sample_rate_hz: int) -> Float[np.ndarray, " {num_samples}"]:
    """Change the duration but not the pitch: WSOLA (Verhelst and Roelands 1993).

    Segments last 40 ms. Each overlaps the previous one, and is shifted by at most 7.5 ms to where it correlates best.
    """
    hop, overlap, reach = (max(1, round(each * sample_rate_hz)) for each in (_SEGMENT, _OVERLAP, _REACH))
    speed, size = len(x) / num_samples, hop + overlap
    padded = np.pad(x, (reach + size, reach + 2 * size))  # enough for changes down to an octave
    energy = np.concatenate([[0], np.square(padded, dtype=np.float64).cumsum()])
    # This term prefers small shifts. Without it the continuation in `x` always wins, and sounds drift to the largest.
    nearness = 1 - 0.2 * np.linspace(-1, 1, 2 * reach + 1) ** 2
    fade = np.linspace(0, 1, overlap, dtype=np.float32)
    # A segment is centred: it is early at its beginning by as much as it is late at its end.
    firsts = np.arange(0, num_samples, hop)
    begins = np.rint((firsts + size / 2) * speed - size / 2).astype(int) + size
    out = np.empty(num_samples + size, np.float32)
    end = padded[begins[0] + reach :][:overlap]
    for first, begin in zip(firsts, begins, strict=True):
        fit = np.correlate(padded[begin : begin + 2 * reach + overlap], end, "valid")
        shift_energy = energy[begin + overlap :][: len(fit)] - energy[begin:][: len(fit)]
        start = begin + int(np.argmax(nearness * fit / np.sqrt(shift_energy + 1e-9)))
        segment = padded[start : start + size].copy()
        segment[:overlap] = segment[:overlap] * fade + end * (1 - fade)
        out[first : first + size] = segment
        end = segment[hop:]
    return out[:num_samples]


_DIRECT_DB = (0.0, 12.0)  # direct sound against reverberation: 0 dB at the far end of a room, 12 dB beside the speaker
_NARROWEST_HZ = 10.0  # width of ten frequency bins of a second of noise


@dataclass(kw_only=True)
class WaveformAugmentation:
    """Changes of training windows (Kharitonov et al. 2020, arXiv:2007.00991) in the order of the arguments; null: none.

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

    def check(self, sample_rate_hz: int, window_samples: int) -> None:
        """Raise a ValueError if an option is out of range for these windows, or has no effect; the message names it."""
        check_fields(self, "augmentation.")
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
            if isinstance(value, int | float):
                Range(least, most, is_open=True).check(f"`augmentation.{name}`", value)
        if (band := self.noise_band_hz) is not None and band[1] - band[0] < _NARROWEST_HZ:
            raise ValueError(f"`augmentation.noise_band_hz`={list(band)} must be at least {_NARROWEST_HZ:g} Hz wide")
        if self.noise_snr_db is None and (self.noise != "white" or band is not None):
            unread = "`augmentation.noise` and `augmentation.noise_band_hz` have no effect"
            raise ValueError(f"{unread} without `augmentation.noise_snr_db`: give a range such as [5, 15]")
        changes = ("pitch_cents", "noise_snr_db", "reverb_ms", "band_drop_hz", "time_drop_ms", "gain_db")
        if all(getattr(self, change) is None for change in changes):
            raise ValueError(f"`augmentation` has no effect: give {', '.join(changes)}, or leave it out")


class Augmenter:
    """Changes a waveform by a key. The result does not depend on the order of windows, the process or the rank."""

    def __init__(self, options: WaveformAugmentation, sample_rate_hz: int, recordings: Any = None) -> None:
        self.options, self.applied_to = options, options.applied_to
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
            start = int(time_rng.integers(0, len(x) - num_samples + 1))
            x = np.concatenate([x[:start], np.zeros(num_samples, x.dtype), x[start + num_samples :]])
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
        if band is not None:
            noise = _filtered(noise, lambda hz: (hz >= band[0]) & (hz <= band[1]), rate)
        return noise[:num_samples]
