"""Waveforms from audio files: mono, at any rate, in blocks. Joined blocks equal the whole file read at once."""

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torchaudio
from einops import rearrange
from torch.nn import functional

from cpc.data.audio.containers import check_end
from cpc.data.audio.headers import Sound, check_rate, open_sound

_BLOCK_SAMPLES = 1 << 20
# A resampling kernel holds one filter per output sample of the repeating pattern. This limits it to 256 MB.
_MAX_KERNEL_SIZE = 1 << 26
_MAX_FACTOR = 256  # enough for 192 kHz to 1 kHz


def read_audio(path: str | Path, sample_rate_hz: int) -> np.ndarray:
    """Read a whole audio file, mono, at `sample_rate_hz`.

    Raises:
        ValueError: if the file is missing, damaged, truncated, without samples, or holds NaN or infinity. The message
            names the file.
    """
    return np.concatenate(list(read_blocks(path, sample_rate_hz)))


def read_blocks(path: str | Path, sample_rate_hz: int, block_samples: int = _BLOCK_SAMPLES) -> Iterator[np.ndarray]:
    """Yield blocks whose concatenation is `read_audio(path, sample_rate_hz)`, in bounded memory.

    `block_samples` samples are decoded at a time, at the file's own rate.
    """
    path = Path(path)
    with open_sound(path) as sound:
        blocks = _decode_all(path, sound, block_samples)
        if sound.samplerate == sample_rate_hz:
            yield from blocks
            return
        check_rates(path, sound.samplerate, sample_rate_hz)
        resampling = _resampling(sound.samplerate, sample_rate_hz)
        # The first `num_done` patterns of `pending` have been resampled already.
        pending, num_done = np.zeros(0, np.float32), 0
        for block in blocks:
            pending = np.concatenate([pending, block])
            num_final = max(len(pending) // resampling.old - resampling.margin, 0)
            if num_final > num_done:
                yield resampling(pending)[num_done * resampling.new : num_final * resampling.new]
                num_dropped = max(num_final - resampling.margin, 0)
                pending, num_done = pending[num_dropped * resampling.old :], num_final - num_dropped
        yield resampling(pending)[num_done * resampling.new :]


def resampled_length(num_samples: int, old_rate_hz: int, new_rate_hz: int) -> int:
    """Return the number of samples after resampling: ceil(num_samples * new / old)."""
    return -(-num_samples * new_rate_hz // old_rate_hz)


def check_rates(path: str | Path, old_rate_hz: int, new_rate_hz: int) -> None:
    """Raise a ValueError if a rate is out of range, or two lie too far apart or have no small common pattern."""
    for rate in (old_rate_hz, new_rate_hz):
        check_rate(rate, f"{path}: cannot be resampled from {old_rate_hz} Hz to {new_rate_hz} Hz: a rate is")
    divisor = math.gcd(old_rate_hz, new_rate_hz)
    old, new = old_rate_hz // divisor, new_rate_hz // divisor
    if old * new > _MAX_KERNEL_SIZE or max(old, new) > _MAX_FACTOR * min(old, new):
        raise ValueError(
            f"{path}: resampling from {old_rate_hz} Hz to {new_rate_hz} Hz takes absurdly long: one rate is more than "
            f"{_MAX_FACTOR} times the other, or the rates have no large common divisor; convert the file first"
        )


class _Resampling:
    """Windowed-sinc resampling with torchaudio's filters.

    `old` input samples and `new` output samples make one pattern. The outputs of a pattern depend only on the inputs of
    this pattern and of `margin` patterns before and after it.
    """

    def __init__(self, old_rate_hz: int, new_rate_hz: int) -> None:
        divisor = math.gcd(old_rate_hz, new_rate_hz)
        self.old, self.new = old_rate_hz // divisor, new_rate_hz // divisor
        self._transform = torchaudio.transforms.Resample(old_rate_hz, new_rate_hz)
        self.margin = -(-self._transform.width // self.old)

    @torch.no_grad()
    def __call__(self, x: np.ndarray) -> np.ndarray:
        # torchaudio computes the length in float32, which is sometimes one sample too short. Here the length is exact.
        padded = functional.pad(
            torch.from_numpy(x)[None, None], (self._transform.width, self._transform.width + self.old)
        )
        y = functional.conv1d(padded, self._transform.kernel, stride=self.old)
        return rearrange(y, "1 new patterns -> (patterns new)").numpy()[: resampled_length(len(x), self.old, self.new)]


_resampling = lru_cache(maxsize=16)(_Resampling)


def _decode_all(path: Path, sound: Sound, block_samples: int) -> Iterator[np.ndarray]:
    """Yield decoded blocks, averaged over the channels, after checking that they are whole and finite."""
    for start in range(0, sound.num_samples, block_samples):
        num_wanted = min(block_samples, sound.num_samples - start)
        x = sound.read(num_wanted, "float32", always_2d=True)
        if len(x) < num_wanted:
            raise ValueError(
                f"{path}: is truncated: {num_wanted - len(x)} of the {sound.num_samples} samples that its header "
                "promises are missing"
            )
        mono = x[:, 0] if x.shape[1] == 1 else x.mean(axis=1)
        if not np.isfinite(mono).all():
            raise ValueError(f"{path}: holds NaN or infinite samples; repair or remove it")
        yield mono
    check_end(path, sound.stream, sound)
