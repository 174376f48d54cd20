"""Features of whole files, one vector per frame, by a frozen model or by spectra.

B files, S samples, T frames, D feature dim.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import checked
from cpc.data.probe_data import FeatureExtractor, Precision, autocast
from cpc.encoders.encoder import check_scale
from cpc.encoders.spectral import MFCC, LogMel

Kind = Literal["c", "z", "zc", "mfcc", "logmel"]

_SPECTRAL: dict[str, Any] = {"mfcc": MFCC, "logmel": LogMel}


class Features:
    """Latents z, contexts c or a spectral baseline of whole files, for probes.

    Features do not depend on other files, except for rounding if files are encoded together. Long files are encoded in
    chunks in bounded memory: chunks of the encoder overlap, and the context carries its state. The result is the same
    as for the whole file at once. A context that reads ahead gets all latents of a file at once.

    Args:
        kind: `z` latents; `c` contexts; `zc` both concatenated, so that one pass over the audio serves two probes;
            `mfcc`; or `logmel`.
        sample_rate_hz: rate of the waveforms for `mfcc` and `logmel`; with a model, the model's rate.
        statistics: mean and deviation of the samples of the corpus, for `mfcc` and `logmel`.
        device: device to compute on, to which the model is moved; None: the device of the model.
        precision: precision of the encoder's matrix products. Contexts stay in float32.
        chunk_seconds: audio encoded at a time; short chunks stay in the processor's cache.

    Example:
        >>> features = Features("mfcc", sample_rate_hz=16000)
        >>> features(np.zeros(16000, np.float32)).shape[1] == features.dim
        True
    """

    @checked
    def __init__(
        self,
        kind: Kind,
        model: Any = None,
        sample_rate_hz: int | None = None,
        *,
        statistics: tuple[float, float] | None = None,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        chunk_seconds: float = 4.0,
    ) -> None:
        if model is None and (kind not in _SPECTRAL or sample_rate_hz is None):
            raise ValueError(f"features {kind!r} need a model{' or sample_rate_hz' * (kind in _SPECTRAL)}")
        if kind in _SPECTRAL:
            self._encoder: Any = _SPECTRAL[kind](
                sample_rate_hz=sample_rate_hz if model is None else model.encoder.sample_rate_hz
            )
            if statistics is not None:
                self._encoder.set_statistics(*statistics)
            self._network: nn.Module = self._encoder.to(device or "cpu")
            self._context: Any = None
        else:
            self._network = model if device is None else model.to(device)
            self._encoder = model.encoder
            self._context = None if kind == "z" else model.context
        self.kind = kind
        self.device = next((each.device for each in self._network.parameters()), torch.device(device or "cpu"))
        self.precision = precision
        self.has_context = self._context is not None
        self.reads_ahead = getattr(self._context, "reads_ahead", False)
        self.latent_dim: int = self._encoder.dim
        self.dim: int = (self.latent_dim if kind != "c" else 0) + (self._context.dim if self._context else 0)
        self.hop_samples: int = self._encoder.hop_samples
        self.first_centre_samples: float = self._encoder.first_centre_samples
        self.sample_rate_hz: int = self._encoder.sample_rate_hz
        # If a latent is closer than this to the start of a chunk, it depends on the padding there.
        half_field = (self._encoder.receptive_field_samples - 1) / 2
        past_samples = getattr(self._encoder, "past_samples", half_field - self.first_centre_samples)
        # At least one latent is kept, since fewer samples than a hop may be a latent only at the start of a recording.
        self._margin_latents = max(1, math.ceil(past_samples / self.hop_samples))
        self._shortest_samples = self._encoder.shortest_samples
        self._last_offset = math.ceil(self.first_centre_samples + half_field)
        self.chunk_samples = max(self.hop_samples, round(chunk_seconds * self.sample_rate_hz))

    def num_frames(self, num_samples: np.ndarray) -> np.ndarray:
        """Return the number of frames of files of these lengths."""
        return self._encoder.num_latents(torch.from_numpy(np.asarray(num_samples, np.int64))).numpy()

    def geometry(self) -> dict[str, Any]:
        """Return the facts that a reader of stored features needs."""
        return {
            "features": self.kind,
            "dim": self.dim,
            "hop_samples": self.hop_samples,
            "first_centre_samples": self.first_centre_samples,
            "sample_rate_hz": self.sample_rate_hz,
        }

    def __call__(self, wave: np.ndarray) -> np.ndarray:
        """Return the features `[T, D]` float32 of a whole file `[S]`; T is 0 if the file is too short for a frame."""
        return np.concatenate([np.zeros((0, self.dim), np.float32), *self.stream([wave])])

    def stream(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the features of a file in pieces `[t, D]`; `blocks` are its samples, in blocks of any size."""
        with self.frozen():
            state, pieces = None, self._latents(blocks)
            if self.reads_ahead and (whole := list(pieces)):
                pieces = iter([torch.cat(whole, 1)])
            for latents in pieces:
                frames, state = self._frames(latents, state)
                yield rearrange(frames, "1 t d -> t d").cpu().numpy()

    def together(self, files: Sequence[Iterable[np.ndarray]]) -> list[np.ndarray]:
        """Return the features of several files, equal up to rounding; contexts of all take one pass.

        A context that reads ahead would read padding.
        """
        with self.frozen():
            nothing = torch.zeros(1, 0, self.latent_dim, device=self.device)
            latents = [torch.cat([nothing, *self._latents(blocks)], 1)[0] for blocks in files]
            lengths = [len(file_latents) for file_latents in latents]
            frames, _ = self._frames(nn.utils.rnn.pad_sequence(latents, batch_first=True), None)
        return [padded[:length].cpu().numpy() for padded, length in zip(frames, lengths, strict=True)]

    def encode_windows(self, x: Float[np.ndarray, "B S ..."]) -> Float[np.ndarray, "B T D"]:
        """Return the features of windows of one length, equal up to rounding to those of each window as a file.

        A context that reads ahead also reads the padding of windows.
        """
        with self.frozen():
            frames, _ = self._frames(self._encode(x), None)
        return frames.cpu().numpy()

    @torch.inference_mode()
    def _frames(self, latents: Float[Tensor, "B T Z"], state: Any) -> tuple[Float[Tensor, "B T D"], Any]:
        """Return the features of latents and the new state, starting from `state`."""
        if self._context is None:
            return latents, None
        contexts, state = self._context(latents, state)
        return torch.cat([latents, contexts], 2) if self.kind == "zc" else contexts, state

    def _latents(self, blocks: Iterable[np.ndarray]) -> Iterator[Float[Tensor, "1 t Z"]]:
        """Yield a file's latents in pieces; no latent depends on the edge of a chunk."""
        pending: np.ndarray | None = None
        num_done = 0  # latents of `pending` to drop: already yielded, or dependent on the cut edge
        step = self.chunk_samples
        for block in (each[start : start + step] for each in blocks for start in range(0, len(each), step)):
            pending = np.array(block) if pending is None else np.concatenate([pending, block])
            num_final = (len(pending) - 1 - self._last_offset) // self.hop_samples + 1
            if num_final <= num_done or len(pending) < self._shortest_samples:
                continue
            yield self._encode(pending[None])[:, num_done:num_final]
            # The remainder begins where a latent begins, and is long enough for the encoder even after the last chunk.
            num_droppable = (len(pending) - self._shortest_samples) // self.hop_samples
            num_dropped = max(min(num_final - self._margin_latents, num_droppable), 0)
            pending = pending[num_dropped * self.hop_samples :]
            num_done = num_final - num_dropped
        if pending is not None and self._encoder.num_latents(len(pending)) > num_done:
            yield self._encode(pending[None])[:, num_done:]

    @torch.inference_mode()
    def _encode(self, x: Float[np.ndarray, "B S ..."]) -> Float[Tensor, "B t Z"]:
        samples = torch.from_numpy(x).to(self.device)
        check_scale(self._encoder, samples)
        with autocast(samples, self.precision):
            return self._encoder(samples).float()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Put the network into eval mode while the block runs, and restore its mode afterwards."""
        was_training = self._network.training
        self._network.eval()
        try:
            yield
        finally:
            self._network.train(was_training)


MOST_FILES_TOGETHER = 16
MOST_FRAMES_TOGETHER = 16_000  # frames of a group of files, including padding


class RecordingFeatures(FeatureExtractor):
    """Features of whole recordings.

    Args:
        samples: samples of the corpus (`WindowDataset`); None if only files outside it are read.
        read_file: returns the samples of a file outside the corpus, in blocks.
        together: encode several recordings at a time, on all cores: faster, and equal up to rounding.
    """

    def __init__(
        self, features: Sequence[str], times: Features, samples: Any, read_file: Any = None, together: bool = True
    ) -> None:
        self.times, self.samples, self._read_file, self._together = times, samples, read_file, together
        parts = {"z": slice(None, times.latent_dim), "c": slice(times.latent_dim, None)}
        self._parts = {name: parts[name[0]] if times.kind == "zc" else slice(None) for name in features}
        self.dims = {name: len(range(times.dim)[part]) for name, part in self._parts.items()}

    @property
    def num_workers(self) -> int:
        """All cores if the device is a CPU, since one file per core is faster than one file on all cores."""
        return torch.get_num_threads() if self._together and self.times.device.type == "cpu" else 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:  # noqa: D102
        return self.times.num_frames(self.samples.num_samples[rows])

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Group recordings of similar length that fit into memory together.

        A group is one file without a context, or with one that reads ahead, which would read padding.
        """
        if not self._together or not self.times.has_context or self.times.reads_ahead:
            return super().groups(rows)
        num_frames = self.num_vectors(rows)
        groups: list[list[int]] = []
        longest = 0
        for index in np.argsort(num_frames, kind="stable")[::-1].tolist():
            size = len(groups[-1]) + 1 if groups else 1
            fits = size <= MOST_FILES_TOGETHER and size * longest <= MOST_FRAMES_TOGETHER
            if groups and fits:
                groups[-1].append(int(rows[index]))
            else:
                groups.append([int(rows[index])])
                longest = int(num_frames[index])
        return [np.array(group) for group in groups]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each recording and its features. A group is computed at once, a single recording in pieces."""
        blocks = [self._blocks(row) for row in rows.tolist()]
        row_frames: Iterator[tuple[int, np.ndarray]]
        if len(rows) == 1:
            row_frames = ((int(rows[0]), frames) for frames in self.times.stream(blocks[0]))
        else:
            row_frames = zip(rows.tolist(), self.times.together(blocks), strict=True)
        for row, frames in row_frames:
            yield row, {name: frames[:, part] for name, part in self._parts.items()}

    def geometry(self, feature: str) -> dict[str, Any]:  # noqa: D102
        return self.times.geometry() | super().geometry(feature)

    def file_features(self, path: Path) -> np.ndarray:  # noqa: D102
        pieces = list(self.times.stream(self._read_file(path)))
        if not pieces:
            raise ValueError(f"{path}: is too short for a single frame")
        return np.concatenate(pieces)

    def _blocks(self, row: int) -> Iterator[np.ndarray]:
        for start in range(0, int(self.samples.num_samples[row]), self.times.chunk_samples):
            yield self.samples.read(row, start, self.times.chunk_samples)
