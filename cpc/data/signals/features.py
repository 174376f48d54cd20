"""Extractors of features of recordings and windows, for probes. T latents, D feature dim, C channels."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Shaped

from cpc.config.argument_rules import checked
from cpc.data.features import Features, RecordingFeatures
from cpc.data.probe_data import FeatureExtractor
from cpc.data.signals.recordings import Positive, read_recordings

_WINDOWS_AT_ONCE = 256


class SignalFeatures(RecordingFeatures):
    """Latents and contexts of whole recordings."""

    def __init__(self, features: Sequence[str], model: Any, probe_data: Any) -> None:
        self.data, self._encoder = probe_data, model.encoder
        kinds: Any = "".join(sorted({name[0] for name in features}, reverse=True))
        times = Features(kinds, model, device=probe_data.device, precision=probe_data.precision)
        samples = None if probe_data.corpus is None else probe_data.corpus.samples
        super().__init__(features, times, samples, self._read_channels, together=False)

    def _read_channels(self, path: Path) -> Iterator[np.ndarray]:
        """Return a file's samples of the model's channels, in its units, at its rate; NaN where missing."""
        names, units = (getattr(self._encoder, name, None) for name in ("channel_names", "units"))
        recordings = read_recordings(
            path,
            sample_rate_hz=self._encoder.sample_rate_hz,
            channels=self.data.channels,
            missing="mask",
            model_channels=names,
            model_units=units,
        )
        if len(recordings.names) != 1 or len(recordings.channels) != self._encoder.channels:
            found = f"{len(recordings.names)} recordings of the channels {', '.join(recordings.channels)}"
            raise ValueError(f"{path} holds {found}, but must hold one of {self._encoder.channels} channels")
        return recordings.read(0)


class WindowFeatures(SignalFeatures):
    """Latents and contexts of windows: `c` and `z` of each by itself, `c_stream` and `z_stream` in its recording."""

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of latents of each window."""
        return self.times.num_frames(self.data.num_samples(rows))

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the windows of each recording together."""
        recordings = self.data.recording[rows]
        return [rows[recordings == recording] for recording in np.unique(recordings)]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each window and its features."""
        data, stream = self.data, None
        if any(name.endswith("_stream") for name in self.dims):
            stream = self.times(data.corpus.samples.read(int(data.recording[rows[0]])))
        for first in range(0, len(rows), _WINDOWS_AT_ONCE):
            chosen = rows[first : first + _WINDOWS_AT_ONCE]
            windows = np.stack([data.read_window(row) for row in chosen.tolist()])
            for row, window in zip(chosen.tolist(), self.times.encode_windows(windows), strict=True):
                sources = {"": window}
                if stream is not None:
                    # The last latent of the stream that ends within the window is the last of the window.
                    end = (data.start[row] + len(windows[0])) // self.times.hop_samples
                    latent = max(min(int(end), len(stream)) - len(window), 0)
                    sources["_stream"] = stream[latent : latent + len(window)]
                yield row, {name: sources[name[1:]][:, part] for name, part in self._parts.items()}


class HandMadeFeatures(FeatureExtractor):
    """Features of windows that need no model.

    `hand` are statistics and band powers; `hand_past` adds those of the window before, or of the window itself if it is
    the first. A window has one vector. A whole recording has only `hand`, one vector for every window of
    `window_seconds` that begins half a window after the one before; the pooling of the task makes them one vector.
    """

    def __init__(self, name: str, probe_data: Any) -> None:
        if not probe_data.is_windowed and name != "hand":
            raise ValueError(f"`{name}` are features of windows: set `hop_seconds`, or leave {name} out")
        self._name, self._data = name, probe_data
        self.is_pooled = probe_data.is_windowed
        self.dims = {name: self._features(np.array([0])).shape[1]}

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return 1 for a window, and the number of windows of a recording."""
        return np.array([len(self._starts(row)) for row in rows.tolist()], np.int64)

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return windows in groups of `_WINDOWS_AT_ONCE`; a whole recording by itself."""
        size = _WINDOWS_AT_ONCE if self._data.is_windowed else 1
        return np.split(rows, range(size, len(rows), size))

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each row and its vectors."""
        ends = np.cumsum(self.num_vectors(rows))
        for row, vectors in zip(rows.tolist(), np.split(self._features(rows), ends[:-1]), strict=True):
            yield row, {self._name: vectors}

    def _features(self, rows: np.ndarray) -> np.ndarray:
        rate = self._data.corpus.encoder.sample_rate_hz
        now = hand_features(self._windows(rows), rate)
        if self._name == "hand":
            return now
        earlier = rows - self._data.rows_per_window
        is_same = (earlier >= 0) & (self._data.recording[earlier] == self._data.recording[rows])
        return np.concatenate([now, hand_features(self._windows(np.where(is_same, earlier, rows)), rate)], 1)

    def _starts(self, row: int) -> range:
        """Return the first sample of each window of a row, after its own first sample."""
        length = int(self._data.num_samples(np.array([row]))[0])
        last = max(length - self._data.window_samples, 0)
        return range(0, last + 1 if length else 0, max(1, self._data.window_samples // 2))

    def _windows(self, rows: np.ndarray) -> np.ndarray:
        """Return windows `[n, S, C]`, or those of one whole recording; missing samples are the channel's mean."""
        data, num_samples = self._data, self._data.window_samples
        if not data.is_windowed:
            num_samples = min(num_samples, max(1, int(data.num_samples(rows)[0])))
        mean, starts = data.corpus.statistics(data.train_split)[0], [self._starts(row) for row in rows.tolist()]
        x = np.empty((sum(map(len, starts)), num_samples, len(mean)), np.float32)
        x[:] = mean
        places = [(row, start) for row, each in zip(rows.tolist(), starts, strict=True) for start in each]
        for out, (row, start) in zip(x, places, strict=True):
            window = data.corpus.samples.read(int(data.recording[row]), int(data.start[row]) + start, num_samples)
            out[: len(window)] = np.where(np.isnan(window), mean, window)
        return x


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NUM_BANDS = 6
ROOT = 8  # of band powers
_PER_CHANNEL = ("mean", "deviation", *(f"quantile {quantile}" for quantile in QUANTILES), "range", "crossings", "slope")
_LARGEST = float(np.finfo(np.float32).max)
_VALUES_AT_ONCE = 2**20

Windows = Shaped[np.ndarray, "..."]  # [n, T, C], checked by `hand_features`


@checked
def hand_features(windows: Windows, sample_rate_hz: Positive) -> Float32[np.ndarray, "n F"]:
    """Return 16 features of each channel, and the correlation of each pair of channels, for each window `[n, T, C]`.

    The features of a channel are the mean, the standard deviation, five quantiles, the range (peak to peak), how often
    per second the signal crosses its mean, the mean absolute slope per second, and the eighth roots of the powers of
    six bands (see `band_powers`). A root compresses as a logarithm does, and needs no floor.

    NaN is a missing sample. It counts as the mean of the channel's other samples in the window, and as 0 if there are
    none. The correlation with a constant channel is 0. Features are finite for every window, one of one sample too.
    """
    if windows.ndim != 3 or 0 in windows.shape[1:]:
        legal = "[n, T, C], with at least one sample and one channel"
        raise ValueError(f"windows are {list(windows.shape)}, but must be {legal}")
    num_windows, num_samples, num_channels = windows.shape
    features = np.empty((num_windows, len(hand_feature_names(range(num_channels), sample_rate_hz))), np.float32)
    step = max(1, _VALUES_AT_ONCE // (num_samples * num_channels))
    for first in range(0, num_windows, step):
        chunk = _fill_missing(windows[first : first + step])
        features[first : first + step] = np.clip(_features(chunk, sample_rate_hz), -_LARGEST, _LARGEST)
    return features


def hand_feature_names(channels: Sequence[object], sample_rate_hz: int | float) -> list[str]:
    """Return the name of each feature of `hand_features`, such as `deviation of x` or `correlation of x and y`."""
    edges = band_edges_hz(sample_rate_hz)
    bands = [f"{low:.4g}-{high:.4g} Hz" for low, high in pairwise(edges)]
    names = [f"{feature} of {channel}" for feature in (*_PER_CHANNEL, *bands) for channel in channels]
    return names + [f"correlation of {first} and {second}" for first, second in combinations(channels, 2)]


def band_edges_hz(sample_rate_hz: int | float) -> list[float]:
    """Return the edges of the bands of `band_powers`: 0, then octaves up to half of the sample rate."""
    return [0.0, *(sample_rate_hz / 2 / 2**octave for octave in reversed(range(NUM_BANDS)))]


def band_powers(centred: Float64[np.ndarray, "n T C"]) -> Float64[np.ndarray, "n 6 C"]:
    """Return the power of each window (with mean 0 in each channel) in each band, in squared units of the signal.

    The power spectrum is the periodogram with a Hann window. The bands are octaves: the last one goes from a quarter to
    half of the sample rate, the first one from 0 to 1/64. A band includes its upper edge, not its lower one. A sine of
    amplitude A at a multiple of 1 / T has power A^2 / 2, of which the frequencies beside it have a sixth each.
    """
    num_samples = centred.shape[1]
    hann = np.sin(np.pi * (np.arange(num_samples) + 0.5) / num_samples) ** 2
    spectrum = np.fft.rfft(centred * hann[:, None], axis=1)
    power = (spectrum.real**2 + spectrum.imag**2) * (2 / (num_samples * (hann**2).sum()))
    if num_samples % 2 == 0:
        power[:, -1] /= 2  # half of the sample rate has no negative frequency of its own
    cycles = np.arange(power.shape[1])
    edges = [0.0, *(num_samples / 2 / 2**octave for octave in reversed(range(NUM_BANDS)))]
    in_band = np.array([(low < cycles) & (cycles <= high) for low, high in pairwise(edges)])
    return np.einsum("bf,nfc->nbc", in_band.astype(np.float64), power)


def _features(windows: Float64[np.ndarray, "n T C"], sample_rate_hz: int | float) -> Float64[np.ndarray, "n F"]:
    num_samples, spread = windows.shape[1], np.ptp(windows, axis=1)
    mean = windows.mean(axis=1)
    centred = np.where(spread[:, None] > 0, windows - mean[:, None], 0.0)  # a constant's mean is rounded
    deviation = np.sqrt((centred**2).mean(axis=1))
    above = centred > 0
    num_steps = max(1, num_samples - 1)
    crossings = (above[:, 1:] != above[:, :-1]).sum(axis=1) * (sample_rate_hz / num_steps)
    slope = np.abs(np.diff(windows, axis=1)).sum(axis=1) * (sample_rate_hz / num_steps)
    powers = band_powers(centred) ** (1 / ROOT)
    standardised = centred / np.where(deviation > 0, deviation, 1.0)[:, None]
    correlations = standardised.transpose(0, 2, 1) @ standardised / num_samples
    pairs = np.triu_indices(windows.shape[2], 1)
    quantiles = np.quantile(windows, QUANTILES, axis=1)
    per_channel = [mean, deviation, *quantiles, spread, crossings, slope, *powers.transpose(1, 0, 2)]
    return np.concatenate([*per_channel, correlations[:, pairs[0], pairs[1]]], axis=1)


def _fill_missing(windows: Windows) -> Float64[np.ndarray, "n T C"]:
    filled = np.array(windows, np.float64)
    missing = np.isnan(filled)
    if np.isinf(filled).any():
        raise ValueError("windows have infinite values; NaN stands for a missing sample")
    if missing.any():
        sums = np.where(missing, 0.0, filled).sum(axis=1, keepdims=True)
        means = sums / np.maximum(1, (~missing).sum(axis=1, keepdims=True))
        filled = np.where(missing, means, filled)
    return filled
