"""Audio files decoded to mono at one rate: in blocks, or once into a pack of int16 samples that training reads."""

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torchaudio
from einops import rearrange
from torch.nn import functional

from cpc.data.audio.headers import RATES_HZ, Header, Sound, check_end, compare, open_sound, read_headers
from cpc.data.audio.manifest import Manifest
from cpc.data.recordings.windows import LOUDEST, PackedRecordings
from cpc.data.store.atomic import json_text
from cpc.data.store.folders import file_version, name_a_few
from cpc.data.store.packed import FORMAT, RowSource, check_skipped, pack_rows
from cpc.data.store.shards import Shards

_QUIET = 128  # a file with a smaller largest amplitude (of 32768) is quiet; a louder file keeps 8 bits and a sign
_COARSE = ("PCM_16", "PCM_U8", "PCM_S8", "ULAW", "ALAW")  # formats of at most 16 bits


def pack(
    manifest: Manifest,
    sample_rate_hz: int,
    cache_dir: str | Path | None = None,
    *,
    skip_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> PackedRecordings:
    """Decode every file of a manifest to mono int16 at one rate, or reuse what an earlier call decoded.

    Samples beyond [-1, 1] are clipped. Warnings name clipped files, and files so quiet that few levels remain.

    Raises:
        ValueError: if the rate is out of range, or files are bad (missing, damaged, truncated, NaN, constant); the
            message names the first few. Good files are packed before the error.
    """
    RATES_HZ.check("`sample_rate_hz`", sample_rate_hz)
    packs = manifest.root / ".cpc_cache" if cache_dir is None else Path(cache_dir)
    source = _Waveforms(manifest, sample_rate_hz)
    folder = packs / source.key()
    return pack_rows(source, folder, PackedRecordings, skip_bad=skip_bad, num_workers=num_workers, progress=progress)


def open_sharded(shards: Shards, manifest: Manifest, sample_rate_hz: int, skip_bad: bool = False) -> PackedRecordings:
    """Open the audio of a sharded corpus."""
    packed = PackedRecordings(shards.folder, shards)
    if packed.sample_rate_hz != sample_rate_hz:
        found = f"{shards.source} holds audio at {packed.sample_rate_hz} Hz"
        raise ValueError(f"{found}, the encoder takes {sample_rate_hz} Hz: shard at this rate")
    check_skipped(packed, "file", skip_bad, len(manifest))
    return packed


class _Waveforms(RowSource):
    """The files of a manifest as rows of int16 samples."""

    noun, dtype, shape = "file", "<i2", ()

    def __init__(self, manifest: Manifest, sample_rate_hz: int) -> None:
        self.about = {"sample_rate_hz": sample_rate_hz}
        self._rate_hz = sample_rate_hz
        self._files = manifest.files
        self._paths = manifest.paths
        counts = ("num_samples", "sample_rate_hz")
        self._expected = {name: manifest.column(name) for name in counts if name in manifest.columns}
        self._headers: list[Header | str] = []
        self._clipped: set[int] = set()
        self._quiet: set[int] = set()

    def key(self) -> str:
        """Return a hash of the sample rate and of the files' paths, sizes and times."""
        digest = hashlib.sha256(f"{FORMAT} {self._rate_hz}".encode())
        for path, file in zip(self._paths, self._files, strict=True):
            digest.update(json_text([path, *file_version(file)]).encode())
        return digest.hexdigest()[:24]

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        self._headers = read_headers(self._files, num_workers, "pack: headers" if progress else None)
        return [self._room(row, header) for row, header in enumerate(self._headers)]

    @contextmanager
    def decoding(self) -> Iterator[None]:
        yield
        clipped = "of floating-point samples go beyond [-1, 1] and were clipped: scale them down"
        levels = f"16 bits round them to fewer than {2 * _QUIET} levels (`cpc embed` does not)"
        quiet = f"stay below {_QUIET / LOUDEST:.3f} of full scale; {levels}: scale them up"
        for rows, problem in ((self._clipped, clipped), (self._quiet, quiet)):
            if rows:
                files = [str(self._files[row]) for row in sorted(rows)]
                warnings.warn(f"{len(files)} of {len(self._files)} files {problem}:\n{name_a_few(files)}", stacklevel=6)

    def decode(self, row: int) -> Iterator[np.ndarray]:
        header = self._headers[row]
        assert isinstance(header, Header)
        num_samples, lowest, highest = 0, np.inf, -np.inf
        for block in read_blocks(self._files[row], self._rate_hz):
            scaled = np.rint(block * np.float32(LOUDEST))
            # Lossy codecs and resampling exceed [-1, 1] slightly, floating-point files by a wrong scale.
            if header.subtype in ("FLOAT", "DOUBLE") and np.abs(scaled).max(initial=0) > LOUDEST:
                self._clipped.add(row)
            samples = scaled.clip(-LOUDEST, LOUDEST - 1).astype("<i2")
            num_samples += len(samples)
            lowest, highest = min(lowest, samples.min()), max(highest, samples.max())
            yield samples
        if lowest == highest:
            level = f"each of its {num_samples} samples is {lowest / LOUDEST:g}"
            raise ValueError(f"{self._files[row]}: is constant, {level}")
        if max(int(highest), -int(lowest)) < _QUIET and header.subtype not in _COARSE:
            self._quiet.add(row)

    def _room(self, row: int, header: Header | str) -> int | str:
        """Return the number of samples of a file after resampling, or the reason why the file cannot be packed."""
        if isinstance(header, str):
            return header
        file = self._files[row]
        try:
            check_rates(file, header.sample_rate_hz, self._rate_hz)
        except ValueError as error:
            return str(error)
        for name, values in self._expected.items():
            if int(values[row]) != (found := getattr(header, name)):
                return f"{file}: {name} is {found}, but {values[row]} in the manifest; index the folder again"
        return resampled_length(header.num_samples, header.sample_rate_hz, self._rate_hz)


_BLOCK_SAMPLES = 1 << 20
# A resampling kernel holds one filter per output sample of the repeating pattern. This limits it to 256 MB.
_MAX_KERNEL_SIZE = 1 << 26
_MAX_FACTOR = 256  # enough for 192 kHz to 1 kHz


def read_audio(path: str | Path, sample_rate_hz: int) -> np.ndarray:
    """Read a whole audio file, mono, at `sample_rate_hz`; a ValueError names a file that is damaged or holds NaN."""
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
        filters = _filters(sound.samplerate, sample_rate_hz)
        # `new` outputs depend on a pattern of `old` inputs and `margin` such patterns around.
        old, new = filters.orig_freq // filters.gcd, filters.new_freq // filters.gcd
        margin = -(-filters.width // old)
        # The first `num_done` patterns of `pending` have been resampled already.
        pending, num_done = np.zeros(0, np.float32), 0
        for block in blocks:
            pending = np.concatenate([pending, block])
            num_final = max(len(pending) // old - margin, 0)
            if num_final > num_done:
                yield _resample(pending, filters, old, new)[num_done * new : num_final * new]
                num_dropped = max(num_final - margin, 0)
                pending, num_done = pending[num_dropped * old :], num_final - num_dropped
        yield _resample(pending, filters, old, new)[num_done * new :]


def resampled_length(num_samples: int, old_rate_hz: int, new_rate_hz: int) -> int:
    """Return the number of samples after resampling: ceil(num_samples * new / old)."""
    return -(-num_samples * new_rate_hz // old_rate_hz)


def check_rates(path: str | Path, old_rate_hz: int, new_rate_hz: int) -> None:
    """Raise a ValueError if a rate is out of range, or two lie too far apart or have no small common pattern."""
    for rate in (old_rate_hz, new_rate_hz):
        RATES_HZ.check(f"{path}: cannot be resampled from {old_rate_hz} Hz to {new_rate_hz} Hz: a rate in Hz", rate)
    divisor = math.gcd(old_rate_hz, new_rate_hz)
    old, new = old_rate_hz // divisor, new_rate_hz // divisor
    if old * new > _MAX_KERNEL_SIZE or max(old, new) > _MAX_FACTOR * min(old, new):
        what = f"{path}: resampling from {old_rate_hz} Hz to {new_rate_hz} Hz takes absurdly long"
        raise ValueError(f"{what}: one is above {_MAX_FACTOR} times the other, or they have no large common divisor")


_filters = lru_cache(maxsize=16)(torchaudio.transforms.Resample)


@torch.no_grad()
def _resample(x: np.ndarray, filters: torchaudio.transforms.Resample, old: int, new: int) -> np.ndarray:
    # torchaudio computes the length in float32, which is sometimes one sample too short. Here the length is exact.
    padded = functional.pad(torch.from_numpy(x)[None, None], (filters.width, filters.width + old))
    y = functional.conv1d(padded, filters.kernel, stride=old)
    return rearrange(y, "1 new patterns -> (patterns new)").numpy()[: resampled_length(len(x), old, new)]


def _decode_all(path: Path, sound: Sound, block_samples: int) -> Iterator[np.ndarray]:
    """Yield decoded blocks, averaged over the channels, after checking that they are whole and finite."""
    for start in range(0, sound.num_samples, block_samples):
        num_wanted = min(block_samples, sound.num_samples - start)
        x = sound.read(num_wanted, "float32", always_2d=True)
        compare(path, start + num_wanted, start + len(x))
        mono = x[:, 0] if x.shape[1] == 1 else x.mean(axis=1)
        if not np.isfinite(mono).all():
            raise ValueError(f"{path}: holds NaN or infinite samples; repair or remove it")
        yield mono
    check_end(path, sound.stream, sound)
