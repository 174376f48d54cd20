"""Extractors of features of recordings and windows, for probes. T latents, D feature dim, C channels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.features import Features, RecordingFeatures
from cpc.data.probe_data import FeatureExtractor
from cpc.data.signals.hand_features import hand_features
from cpc.data.signals.recordings import read_recordings

_WINDOWS_AT_ONCE = 256


class SignalFeatures(RecordingFeatures):
    """Latents and contexts of whole recordings."""

    def __init__(self, features: Sequence[str], model: Any, probe_data: Any) -> None:
        self.data, self._encoder = probe_data, model.encoder
        kinds: Any = "".join(sorted({name[0] for name in features}, reverse=True))
        times = Features(kinds, model, device=probe_data.device, precision=probe_data.precision)
        samples = None if probe_data._corpus is None else probe_data.corpus.samples
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
            raise ValueError(
                f"{path} holds {len(recordings.names)} recordings of {len(recordings.channels)} channels "
                f"({', '.join(recordings.channels)}), but the model reads {self._encoder.channels} channels: write "
                "one file per recording, with the channels of the training data"
            )
        return recordings.read(0)


class WindowFeatures(SignalFeatures):
    """Latents and contexts of windows: `c` and `z` of each alone, `c_stream` and `z_stream` within its recording."""

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
            for row, alone in zip(chosen.tolist(), self.times.encode_windows(windows), strict=True):
                sources = {"": alone}
                if stream is not None:
                    # The last latent of the stream that ends within the window is the last of the window.
                    end = (data.start[row] + len(windows[0])) // self.times.hop_samples
                    latent = max(min(int(end), len(stream)) - len(alone), 0)
                    sources["_stream"] = stream[latent : latent + len(alone)]
                yield row, {name: sources[name[1:]][:, part] for name, part in self._parts.items()}


class HandMadeFeatures(FeatureExtractor):
    """Features of windows that need no model.

    A window has one vector. A whole recording has the vector of every window of `window_seconds` that begins half a
    window after the one before, and the pooling of the task makes them one vector.

    Args:
        name: `hand`, statistics and band powers; `hand_past`, the same beside those of the window before, or of the
            window itself if it is the first. Whole recordings have only `hand`.
    """

    def __init__(self, name: str, probe_data: Any) -> None:
        if not probe_data.is_windowed and name != "hand":
            raise ValueError(f"`{name}` are features of windows: set `hop_seconds`, or leave {name} out")
        self._name, self._data = name, probe_data
        self.is_pooled = probe_data.is_windowed
        self.dims = {name: self._features(np.array([0])).shape[1]}

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return 1 for a window, and the number of windows of a recording."""
        if self._data.is_windowed:
            return super().num_vectors(rows)
        return np.array([len(self._starts(row)) for row in rows.tolist()], np.int64)

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return windows in groups of `_WINDOWS_AT_ONCE`; a whole recording by itself."""
        if not self._data.is_windowed:
            return super().groups(rows)
        return np.split(rows, range(_WINDOWS_AT_ONCE, len(rows), _WINDOWS_AT_ONCE))

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each row and its vectors."""
        if not self._data.is_windowed:
            for row in rows.tolist():
                yield row, {self._name: self._features(np.array([row]))}
            return
        for row, vector in zip(rows.tolist(), self._features(rows), strict=True):
            yield row, {self._name: vector[None]}

    def _features(self, rows: np.ndarray) -> np.ndarray:
        rate = self._data.corpus.encoder.sample_rate_hz
        now = hand_features(self._windows(rows), rate)
        if self._name == "hand":
            return now
        earlier = rows - self._data.rows_per_window
        is_same = (earlier >= 0) & (self._data.recording[earlier] == self._data.recording[rows])
        return np.concatenate([now, hand_features(self._windows(np.where(is_same, earlier, rows)), rate)], 1)

    def _starts(self, row: int) -> range:
        """Return the first sample of each window of a whole recording."""
        length = int(self._data.corpus.samples.num_samples[row])
        last = max(length - self._data.window_samples, 0)
        return range(0, last + 1 if length else 0, max(1, self._data.window_samples // 2))

    def _windows(self, rows: np.ndarray) -> np.ndarray:
        """Return windows `[n, S, C]`, or those of one whole recording; missing samples are the channel's mean."""
        data = self._data
        num_samples, mean = data.window_samples, data.corpus.statistics(data.train_split).mean
        if data.is_windowed:
            windows = [data.read_window(row) for row in rows.tolist()]
        else:
            (row,) = rows.tolist()
            num_samples = min(num_samples, max(1, int(data.corpus.samples.num_samples[row])))
            windows = [data.corpus.samples.read(row, start, num_samples) for start in self._starts(row)]
        x = np.empty((len(windows), num_samples, len(mean)), np.float32)
        x[:] = mean
        for number, window in enumerate(windows):
            x[number, : len(window)] = np.where(np.isnan(window), mean, window)
        return x
