"""Changes to waveforms: pitch, noise, reverberation, dropped bands and dropped time. All keep length and time.

S samples, n samples of a room's response.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import fft, signal

COLOURS = {"white": 0.0, "pink": 0.5, "brown": 1.0}  # amplitude falls with this power of frequency
_BAND_EDGE_HZ = 25.0  # from nothing to everything beside a dropped band
# Segments of the time stretch, in seconds: their distance, how far they overlap, and how far each is moved to fit.
_SEGMENT, _OVERLAP, _REACH = 0.03, 0.01, 0.0075

Waveform = Float[np.ndarray, " S"]


def shift_pitch(x: Waveform, cents: float, sample_rate_hz: int) -> Waveform:
    """Pitch and formants raised by so many cents (1200 are an octave), as SoX does it: resampled, then stretched back.

    Sounds stay where they were to within 12 ms at 300 cents: the search of the stretch, and the drift in a segment.
    """
    ratio = 2 ** (-cents / 1200)
    apart = np.pad(x, (0, sample_rate_hz // 20))  # zeros, so that the end does not sound at the beginning
    resampled = signal.resample(apart, max(1, round(len(apart) * ratio)))[: max(1, round(len(x) * ratio))]
    return _stretched(resampled, len(x), sample_rate_hz)


def add_noise(x: Waveform, noise: Waveform, snr_db: float) -> Waveform:
    """Noise added at a ratio of the two energies; what is silent stays as it is, for no ratio fits it."""
    energy, of_noise = (float(np.square(each, dtype=np.float64).sum()) for each in (x, noise))
    if energy == 0 or of_noise == 0:
        return x
    return x + noise * np.float32(np.sqrt(energy / of_noise) * 10 ** (-snr_db / 20))


def made_noise(num_samples: int, colour: str, sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """Gaussian noise of one of `COLOURS`, above 20 Hz: pink falls by 3 dB an octave, brown by 6."""
    white = rng.standard_normal(num_samples, np.float32)
    if not COLOURS[colour]:
        return white
    return _filtered(white, lambda hz: (hz >= 20) * np.maximum(hz, 20) ** -COLOURS[colour], sample_rate_hz)


def keep_band(x: Waveform, low_hz: float, high_hz: float, sample_rate_hz: int) -> Waveform:
    """What lies in a band alone."""
    return _filtered(x, lambda hz: (hz >= low_hz) & (hz <= high_hz), sample_rate_hz)


def drop_band(x: Waveform, low_hz: float, high_hz: float, sample_rate_hz: int) -> Waveform:
    """What lies outside a band: nothing is left within, all is left from 25 Hz beside it on."""

    def gain(hz: np.ndarray) -> np.ndarray:
        distance = np.maximum(low_hz - hz, hz - high_hz).clip(0, _BAND_EDGE_HZ)
        return 0.5 - 0.5 * np.cos(np.pi * distance / _BAND_EDGE_HZ)

    return _filtered(x, gain, sample_rate_hz)


def room_response(
    rt60_ms: float, direct_db: float, sample_rate_hz: int, rng: np.random.Generator
) -> Float[np.ndarray, " n"]:
    """A room's impulse response: the direct sound, then noise that has decayed by 60 dB after `rt60_ms`.

    The statistical model of late reverberation (Polack 1988). Its energy is 1, so that sounds keep their level.

    Args:
        rt60_ms: reverberation time.
        direct_db: energy of the direct sound against all that follows.
        sample_rate_hz: of the response.
        rng: draws the reflections.
    """
    num_samples = max(2, round(rt60_ms / 1000 * sample_rate_hz))
    response = rng.standard_normal(num_samples, np.float32)
    response *= np.logspace(0, -3, num_samples, dtype=np.float32)
    response[0] = 0
    response *= np.float32(10 ** (-direct_db / 20) / np.linalg.norm(response))
    response[0] = 1
    return response / np.linalg.norm(response)


def reverberate(x: Waveform, response: Float[np.ndarray, " n"]) -> Waveform:
    """Heard in a room; what would sound on after the end is cut off."""
    size = fft.next_fast_len(len(x) + len(response) - 1, real=True)
    return fft.irfft(fft.rfft(x, size) * fft.rfft(response, size), size)[: len(x)]


def drop_time(x: Waveform, start: int, num_samples: int) -> Waveform:
    """Zeros for so many samples from `start` on."""
    changed = x.copy()
    changed[start : start + num_samples] = 0
    return changed


def _filtered(x: Waveform, gain: Callable[[np.ndarray], np.ndarray], sample_rate_hz: int) -> Waveform:
    size = fft.next_fast_len(len(x) + sample_rate_hz // 20, real=True)  # zeros, so that the ends do not meet
    gains = np.asarray(gain(fft.rfftfreq(size, 1 / sample_rate_hz)), np.float32)
    return fft.irfft(fft.rfft(x, size) * gains, size)[: len(x)]


def _stretched(x: Waveform, num_samples: int, sample_rate_hz: int) -> Float[np.ndarray, " {num_samples}"]:
    """At its pitch, but in another time: WSOLA (Verhelst and Roelands 1993).

    Segments of 40 ms are laid one over the other's end. Each is taken from within 7.5 ms of its place in time, where it
    correlates best with that end.
    """
    hop, overlap, reach = (max(1, round(each * sample_rate_hz)) for each in (_SEGMENT, _OVERLAP, _REACH))
    speed, size = len(x) / num_samples, hop + overlap
    padded = np.pad(x, (reach + size, reach + 2 * size))  # enough down to an octave below
    energy = np.concatenate([[0], np.square(padded, dtype=np.float64).cumsum()])
    # Without it an end is followed by what came next in `x` while that is within reach: all comes late, or early.
    nearness = 1 - 0.2 * np.linspace(-1, 1, 2 * reach + 1) ** 2
    fade = np.linspace(0, 1, overlap, dtype=np.float32)
    # Each is equally early at its beginning as late at its end.
    firsts = np.arange(0, num_samples, hop)
    begins = np.rint((firsts + size / 2) * speed - size / 2).astype(int) + size
    out = np.empty(num_samples + size, np.float32)
    end = padded[begins[0] + reach :][:overlap]
    for first, begin in zip(firsts, begins, strict=True):
        fit = np.correlate(padded[begin : begin + 2 * reach + overlap], end, "valid")
        of_place = energy[begin + overlap :][: len(fit)] - energy[begin:][: len(fit)]
        place = begin + int(np.argmax(nearness * fit / np.sqrt(of_place + 1e-9)))
        segment = padded[place : place + size].copy()
        segment[:overlap] = segment[:overlap] * fade + end * (1 - fade)
        out[first : first + size] = segment
        end = segment[hop:]
    return out[:num_samples]
