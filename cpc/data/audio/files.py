"""Waveforms straight from audio files: any region, at any rate, mono, without decoding whole files.

Regions are exact: a region equals the same samples of the whole file decoded and resampled at once.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torchaudio
from einops import rearrange
from torch.nn import functional

from cpc.data.audio.headers import Header, Sound, check_rate, num_samples_tolerance, open_sound, read_headers
from cpc.data.audio.manifest import Manifest
from cpc.data.store.folders import name_a_few

_BLOCK_SAMPLES = 1 << 20
# A resampling kernel holds one filter per output sample of the repeating pattern: 256 MB at most.
_MAX_KERNEL_SIZE = 1 << 26
_MAX_FACTOR = 256  # 192 kHz to 1 kHz is 192


@runtime_checkable
class Audio(Protocol):
    """What windows are read from: `AudioFiles`, `PackedAudio`, or anybody's own source.

    Attributes:
        sample_rate_hz: rate of every sample read.
    """

    sample_rate_hz: int

    @property
    def num_samples(self) -> np.ndarray:
        """`[num_files]` int64, length of each file at that rate; 0 for one that must not be read."""
        ...

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        """At most `num_samples` float32 samples from `start` on; fewer only where the file ends."""
        ...


class AudioFiles:
    """Audio files of any format and rate, decoded on the fly.

    Args:
        files: the files, in the order of their index.
        sample_rate_hz: rate to resample to.
        num_samples_source: samples per channel of each file at its own rate, as a manifest holds them.
        sample_rate_hz_source: own rate of each file. Without these two, every header is read once, by threads.
        num_workers: threads for that.

    Attributes:
        num_samples: `[num_files]` int64 at `sample_rate_hz`: ceil(n * new / old).

    Raises:
        ValueError: naming the files whose header cannot be read, or whose rate does not convert to `sample_rate_hz`.

    Note:
        MP3 and Ogg Vorbis do not seek exactly, so a region of these is decoded from the file's start: pack long ones.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        sample_rate_hz: int,
        num_samples_source: np.ndarray | None = None,
        sample_rate_hz_source: np.ndarray | None = None,
        num_workers: int = 8,
    ) -> None:
        self.files = [str(file) for file in files]
        self.sample_rate_hz = sample_rate_hz
        if num_samples_source is None or sample_rate_hz_source is None:
            headers = read_headers([Path(file) for file in files], num_workers)
            bad = [header for header in headers if isinstance(header, str)]
            if bad:
                raise ValueError(f"{len(bad)} of {len(headers)} audio files cannot be used:\n{name_a_few(bad)}")
            lengths = np.array([header[:2] for header in headers if isinstance(header, Header)], np.int64)
            num_samples_source, sample_rate_hz_source = lengths.reshape(-1, 2).T
        for rate, first in zip(*np.unique(sample_rate_hz_source, return_index=True), strict=True):
            check_rates(self.files[first], int(rate), sample_rate_hz)
        self._num_samples_source = num_samples_source
        self._sample_rate_hz_source = sample_rate_hz_source
        self.num_samples = resampled_length(num_samples_source, sample_rate_hz_source, sample_rate_hz)

    @classmethod
    def from_manifest(cls, manifest: Manifest, sample_rate_hz: int) -> "AudioFiles":
        """The files of a manifest; their lengths are taken from it where it holds them."""
        if not {"num_samples", "sample_rate_hz"} <= set(manifest.columns):
            return cls(manifest.files, sample_rate_hz)
        return cls(manifest.files, sample_rate_hz, manifest.num_samples, manifest.sample_rate_hz)

    def subset(self, file_indices: Sequence[int] | np.ndarray) -> "AudioFiles":
        """These files alone, numbered from 0 in this order."""
        return AudioFiles(
            [self.files[index] for index in file_indices],
            self.sample_rate_hz,
            self._num_samples_source[file_indices],
            self._sample_rate_hz_source[file_indices],
        )

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        """At most `num_samples` samples of one file from `start` on, mono; fewer only where the file ends.

        Returns:
            `[<= num_samples]` float32, nominally in [-1, 1].

        Raises:
            ValueError: naming the file, if it is damaged, truncated, holds NaN or infinite samples, or is not the one
                whose length is known.
        """
        path = Path(self.files[file_index])
        if start < 0:
            raise ValueError(f"start={start}, but a file's first sample is number 0")
        stop = min(start + num_samples, int(self.num_samples[file_index]))
        if stop <= start:
            return np.zeros(0, np.float32)
        expected = (self._num_samples_source[file_index], self._sample_rate_hz_source[file_index])
        with open_sound(path) as sound:
            found = (sound.frames, sound.samplerate)
            if found != expected:
                raise ValueError(
                    f"{path}: has {found[0]} samples at {found[1]} Hz, but the manifest says {expected[0]} at "
                    f"{expected[1]} Hz; index the folder again"
                )
            return _read_region(path, sound, self.sample_rate_hz, start, stop)


def read_audio(path: str | Path, sample_rate_hz: int) -> np.ndarray:
    """A whole audio file, mono, at `sample_rate_hz`.

    Returns:
        `[S]` float32, nominally in [-1, 1].

    Raises:
        ValueError: naming the file, if it is missing, damaged, truncated, without samples, or holds NaN or infinity.
    """
    return np.concatenate(list(read_blocks(path, sample_rate_hz)))


def read_blocks(path: str | Path, sample_rate_hz: int, block_samples: int = _BLOCK_SAMPLES) -> Iterator[np.ndarray]:
    """The blocks whose concatenation is `read_audio(path, sample_rate_hz)`, in bounded memory.

    Args:
        path: the file.
        sample_rate_hz: rate to resample to.
        block_samples: samples decoded at a time, at the file's own rate.
    """
    path = Path(path)
    with open_sound(path) as sound:
        blocks = _decode_all(path, sound, block_samples)
        if sound.samplerate == sample_rate_hz:
            yield from blocks
            return
        check_rates(path, sound.samplerate, sample_rate_hz)
        resampling = _resampling(sound.samplerate, sample_rate_hz)
        # `pending` starts `num_done` patterns before the first sample that has not been resampled yet.
        pending, num_done = np.zeros(0, np.float32), 0
        for block in blocks:
            pending = np.concatenate([pending, block])
            num_final = max(len(pending) // resampling.old - resampling.margin, 0)
            if num_final > num_done:
                yield resampling(pending)[num_done * resampling.new : num_final * resampling.new]
                num_dropped = max(num_final - resampling.margin, 0)
                pending, num_done = pending[num_dropped * resampling.old :], num_final - num_dropped
        yield resampling(pending)[num_done * resampling.new :]


def resampled_length(num_samples: np.ndarray, old_rate_hz: np.ndarray, new_rate_hz: int) -> np.ndarray:
    """Number of samples after resampling: ceil(num_samples * new / old), int64."""
    return -(-np.asarray(num_samples, np.int64) * new_rate_hz // np.asarray(old_rate_hz, np.int64))


def check_rates(path: str | Path, old_rate_hz: int, new_rate_hz: int) -> None:
    """Refuses a pair of rates of which one is out of range, or that lie too far apart, or have no small common pattern.

    Raises:
        ValueError: naming the file.
    """
    for rate in (old_rate_hz, new_rate_hz):
        check_rate(rate, f"{path}: cannot be resampled from {old_rate_hz} Hz to {new_rate_hz} Hz: a rate is")
    divisor = math.gcd(old_rate_hz, new_rate_hz)
    old, new = old_rate_hz // divisor, new_rate_hz // divisor
    if old * new > _MAX_KERNEL_SIZE or max(old, new) > _MAX_FACTOR * min(old, new):
        raise ValueError(
            f"{path}: resampling from {old_rate_hz} Hz to {new_rate_hz} Hz takes absurdly long: one is more than "
            f"{_MAX_FACTOR} times the other, or they have no large common divisor; convert the file first"
        )


class _Resampling:
    """Windowed-sinc resampling with torchaudio's filters, and how far each output sample looks.

    `old` input samples and `new` output samples make one pattern; a pattern's outputs depend on the inputs of `margin`
    patterns before and after it, and on nothing else.
    """

    def __init__(self, old_rate_hz: int, new_rate_hz: int) -> None:
        divisor = math.gcd(old_rate_hz, new_rate_hz)
        self.old, self.new = old_rate_hz // divisor, new_rate_hz // divisor
        self._transform = torchaudio.transforms.Resample(old_rate_hz, new_rate_hz)
        self.margin = -(-self._transform.width // self.old)

    @torch.no_grad()
    def __call__(self, x: np.ndarray) -> np.ndarray:
        # torchaudio computes the length in float32, hence one sample too few now and then: here it is exact.
        padded = functional.pad(
            torch.from_numpy(x)[None, None], (self._transform.width, self._transform.width + self.old)
        )
        y = functional.conv1d(padded, self._transform.kernel, stride=self.old)
        return rearrange(y, "1 new patterns -> (patterns new)").numpy()[: -(-len(x) * self.new // self.old)]


@lru_cache(maxsize=16)
def _resampling(old_rate_hz: int, new_rate_hz: int) -> _Resampling:
    return _Resampling(old_rate_hz, new_rate_hz)


def _read_region(path: Path, sound: Sound, sample_rate_hz: int, start: int, stop: int) -> np.ndarray:
    if sound.samplerate == sample_rate_hz:
        return _decode(path, sound, start, stop)
    resampling = _resampling(sound.samplerate, sample_rate_hz)
    first = max(start // resampling.new - resampling.margin, 0)
    last = -(-stop // resampling.new) + resampling.margin
    x = resampling(_decode(path, sound, first * resampling.old, min(last * resampling.old, sound.frames)))
    return x[start - first * resampling.new : stop - first * resampling.new]


def _decode(path: Path, sound: Sound, start: int, stop: int) -> np.ndarray:
    """Samples [start, stop) at the file's own rate, mono float32."""
    position = 0
    if sound.seekable():
        position = sound.seek(start)
    while position < start and (skipped := len(sound.read(min(start - position, _BLOCK_SAMPLES), "float32"))):
        position += skipped
    x = _mono(path, sound, sound.read(stop - position, "float32", always_2d=True), stop - position)
    return x[start - position :]


def _decode_all(path: Path, sound: Sound, block_samples: int) -> Iterator[np.ndarray]:
    num_decoded = 0
    for start in range(0, sound.frames, block_samples):
        num_wanted = min(block_samples, sound.frames - start)
        block = _mono(path, sound, sound.read(num_wanted, "float32", always_2d=True), num_wanted)
        num_decoded += len(block)
        if len(block):
            yield block
    if not num_decoded:
        raise ValueError(f"{path}: holds no samples")


def _mono(path: Path, sound: Sound, x: np.ndarray, num_wanted: int) -> np.ndarray:
    """Averages the channels of a decoded piece, after checking that it is whole and finite."""
    if len(x) < num_wanted - num_samples_tolerance(sound):
        raise ValueError(
            f"{path}: is truncated, {num_wanted - len(x)} of the {sound.frames} samples that its header promises are "
            "missing"
        )
    mono = x[:, 0] if x.shape[1] == 1 else x.mean(axis=1)
    if not np.isfinite(mono).all():
        raise ValueError(f"{path}: holds NaN or infinite samples; repair or remove it")
    return mono
