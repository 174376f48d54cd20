"""Frozen front ends: whole files in, one feature vector per frame out.

B files, S samples, T frames, D feature dim.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.data.probe_data import Precision
from cpc.encoders.spectral import MFCC, LogMel

Kind = Literal["c", "z", "zc", "mfcc", "logmel"]

_SPECTRAL: dict[str, Any] = {"mfcc": MFCC, "logmel": LogMel}


class Features:
    """Latents z, contexts c or a spectral baseline of whole files: what probes read.

    Every file starts from a fresh state and the model is in eval mode, so neither the order of files nor what was read
    before matters, but for rounding where files are taken together. Long files are encoded in chunks: the encoder's
    overlap, the context carries its state, and the result is that of the whole file at once, in bounded memory.

    Args:
        kind: `z` latents, `c` contexts, `zc` both side by side (one pass over the audio serves two probes), `mfcc` or
            `logmel`.
        model: whose latents and contexts; needed for `z`, `c` and `zc`.
        sample_rate_hz: rate of the waveforms for `mfcc` and `logmel`; the model's own where there is a model.
        statistics: mean and deviation of the corpus' samples, for `mfcc` and `logmel`; a model has its own.
        device: where to compute; the model is moved there. Unless given, where the model is.
        precision: `bfloat16` runs the encoder's products in it, faster on many processors that have it and slower on
            some; contexts stay in float32.
        chunk_seconds: audio encoded at a time; short chunks stay in the processor's cache.

    Attributes:
        dim: D.
        has_context: whether a context network runs over the latents.
        hop_samples: from a frame to the next.
        first_centre_samples: centre of frame 0, from the file's first sample.
        sample_rate_hz: of the waveforms.

    Raises:
        ValueError: on an unknown kind, or without the model or the rate that the kind needs.

    Example:
        >>> features = Features("mfcc", sample_rate_hz=16000)
        >>> features(np.zeros(16000, np.float32)).shape[1] == features.dim
        True
    """

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
        if kind not in get_args(Kind):
            raise ValueError(f"features {kind!r} are not one of {', '.join(get_args(Kind))}")
        if precision not in get_args(Precision):
            raise ValueError(f"precision={precision!r} is not one of {', '.join(get_args(Precision))}")
        self._context: Any = None
        if kind in _SPECTRAL:
            rate = model.encoder.sample_rate_hz if model is not None else sample_rate_hz
            if rate is None:
                raise ValueError(f"features {kind!r} need sample_rate_hz, or a model to take it from")
            self._encoder: Any = _SPECTRAL[kind](sample_rate_hz=rate)
            if statistics is not None:
                self._encoder.set_statistics(*statistics)
            self._network: nn.Module = self._encoder.to(device or "cpu")
        else:
            if model is None:
                raise ValueError(f"features {kind!r} are a model's: pass it")
            self._network = model if device is None else model.to(device)
            self._encoder = model.encoder
            self._context = None if kind == "z" else model.context
        self.kind = kind
        self.device = next(
            (parameter.device for parameter in self._network.parameters()), torch.device(device or "cpu")
        )
        self.precision = precision
        self.has_context = self._context is not None
        self.latent_dim: int = self._encoder.dim
        self.dim: int = (self.latent_dim if kind != "c" else 0) + (self._context.dim if self._context else 0)
        self.hop_samples: int = self._encoder.hop_samples
        self.first_centre_samples: float = self._encoder.first_centre_samples
        self.sample_rate_hz: int = self._encoder.sample_rate_hz
        # A latent closer than this to the start of a chunk has seen the padding there.
        half_field = (self._encoder.receptive_field_samples - 1) / 2
        self._margin_latents = max(0, math.ceil((half_field - self.first_centre_samples) / self.hop_samples))
        self._shortest_samples = self._encoder.shortest_samples
        self._last_offset = math.ceil(self.first_centre_samples + half_field)
        self.chunk_samples = max(self.hop_samples, round(chunk_seconds * self.sample_rate_hz))

    def num_frames(self, num_samples: np.ndarray) -> np.ndarray:
        """Frames of files of these lengths."""
        return self._encoder.num_latents(torch.from_numpy(np.asarray(num_samples, np.int64))).numpy()

    def geometry(self) -> dict[str, Any]:
        """What a reader of stored features must know."""
        return {
            "features": self.kind,
            "dim": self.dim,
            "hop_samples": self.hop_samples,
            "first_centre_samples": self.first_centre_samples,
            "sample_rate_hz": self.sample_rate_hz,
        }

    def __call__(self, wave: np.ndarray) -> np.ndarray:
        """Features of a whole file.

        Args:
            wave: `[S]` float32 at `sample_rate_hz`.

        Returns:
            `[T, D]` float32; T is 0 if the file is too short for a frame.
        """
        pieces = list(self.stream([wave]))
        return np.concatenate(pieces) if pieces else np.zeros((0, self.dim), np.float32)

    def stream(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Features of one file whose samples come block by block; the pieces `[t, D]` together are the file's `[T, D]`.

        Args:
            blocks: consecutive samples, in blocks of any size.
        """
        with self.frozen():
            state = None
            for latents in self._latents(blocks):
                frames, state = self._frames(latents, state)
                yield rearrange(frames, "1 t d -> t d").cpu().numpy()

    def together(self, files: Sequence[Iterable[np.ndarray]]) -> list[np.ndarray]:
        """Features of several files, each as if it came alone, up to rounding.

        A recurrent context's steps wait for memory, so that eight files side by side take little longer than one; the
        padding behind a shorter file reaches none of its contexts, because they are causal. The encoder, which is not,
        takes the files one by one.

        Args:
            files: each a file's blocks of samples.

        Returns:
            `[T, D]` float32 per file.
        """
        with self.frozen():
            latents = [
                rearrange(torch.cat([self._none(), *self._latents(blocks)], 1), "1 t d -> t d") for blocks in files
            ]
            lengths = [len(each) for each in latents]
            frames, _ = self._frames(nn.utils.rnn.pad_sequence(latents, batch_first=True), None)
        return [each[:length].cpu().numpy() for each, length in zip(frames, lengths, strict=True)]

    @torch.inference_mode()
    def _frames(self, latents: Float[Tensor, "B T Z"], state: Any) -> tuple[Float[Tensor, "B T D"], Any]:
        """Features of latents, going on from `state`."""
        if self._context is None:
            return latents, None
        contexts, state = self._context(latents, state)
        return torch.cat([latents, contexts], 2) if self.kind == "zc" else contexts, state

    def _latents(self, blocks: Iterable[np.ndarray]) -> Iterator[Float[Tensor, "1 t Z"]]:
        """A file's latents in pieces, none of which has seen the edge of a chunk."""
        pending = np.zeros(0, np.float32)
        num_done = 0  # latents of `pending` that are out already, or that have seen its cut edge
        for block in self._chunks(blocks):
            pending = np.concatenate([pending, block])
            num_final = (len(pending) - 1 - self._last_offset) // self.hop_samples + 1
            if num_final <= num_done or len(pending) < self._shortest_samples:
                continue
            yield self._encode(pending)[:, num_done:num_final]
            # What is kept begins at a latent's place and is long enough for the encoder, also behind the last chunk.
            num_droppable = (len(pending) - self._shortest_samples) // self.hop_samples
            num_dropped = max(min(num_final - self._margin_latents, num_droppable), 0)
            pending = pending[num_dropped * self.hop_samples :]
            num_done = num_final - num_dropped
        if self._encoder.num_latents(len(pending)) > num_done:
            yield self._encode(pending)[:, num_done:]

    @torch.inference_mode()
    def _encode(self, x: np.ndarray) -> Float[Tensor, "1 t Z"]:
        samples = rearrange(torch.from_numpy(x), "s -> 1 s").to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self._encoder(samples).float()

    def _none(self) -> Float[Tensor, "1 0 Z"]:
        return torch.zeros(1, 0, self.latent_dim, device=self.device)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The network in eval mode, and afterwards as it was."""
        was_training = self._network.training
        self._network.eval()
        try:
            yield
        finally:
            if was_training:
                self._network.train()

    def _chunks(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            for start in range(0, len(block), self.chunk_samples):
                yield block[start : start + self.chunk_samples]
