"""Changes of waveforms: pitch, noise, reverberation, dropped bands and dropped time. All keep length and timing.

S samples of a waveform, n samples of a room's response.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import fft, signal

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


def keep_band(x: Waveform, low_hz: float, high_hz: float, sample_rate_hz: int) -> Waveform:
    """Keep only the frequencies within a band."""
    return _filtered(x, lambda hz: (hz >= low_hz) & (hz <= high_hz), sample_rate_hz)


def drop_band(x: Waveform, low_hz: float, high_hz: float, sample_rate_hz: int) -> Waveform:
    """Remove the frequencies within a band. Frequencies more than 25 Hz from the band do not change."""

    def gain(hz: np.ndarray) -> np.ndarray:
        distance = np.maximum(low_hz - hz, hz - high_hz).clip(0, _BAND_EDGE_HZ)
        return 0.5 - 0.5 * np.cos(np.pi * distance / _BAND_EDGE_HZ)

    return _filtered(x, gain, sample_rate_hz)


def room_response(
    rt60_ms: float, direct_db: float, sample_rate_hz: int, rng: np.random.Generator
) -> Float[np.ndarray, " n"]:
    """Return a room's impulse response: the direct sound, then noise that has decayed by 60 dB after `rt60_ms`.

    This is the statistical model of late reverberation (Polack 1988). Its energy is 1, so that sounds keep their level;
    `direct_db` is the ratio of the direct sound's energy to the rest.
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


def drop_time(x: Waveform, start: int, num_samples: int) -> Waveform:
    """Set `num_samples` samples from `start` on to zero."""
    changed = x.copy()
    changed[start : start + num_samples] = 0
    return changed


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
    # This term prefers small shifts. Without it the best fit is always the continuation in `x`, and sounds drift to the
    # largest shift.
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
