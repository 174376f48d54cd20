"""Headers of audio files, read without decoding: length, rate, channels, and a check that the file is whole."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import soundfile
from tqdm import tqdm

from cpc.data.audio.containers import MOST_SAMPLES, check_end, whole_samples
from cpc.data.store.parallel import map_in_order
from cpc.data.store.untrusted import open_regular, reading
from cpc.on_ray.spread import spread

# Formats of recordings that libsndfile reads; compared in lower case.
AUDIO_SUFFIXES = frozenset(
    ".wav .wave .flac .ogg .oga .opus .mp3 .aif .aiff .aifc .au .snd .caf .w64 .rf64 .sph .nist .voc".split()
)

# After a seek in these formats, samples may differ from straight decoding (MP3 loses its bit reservoir; measured with
# libsndfile 1.2.2). So a seek cannot be used to read their last sample.
_INEXACT_SEEKS = ("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III", "VORBIS")
_MOST_VORBIS_SAMPLES = 2048  # samples per byte: a packet of at least two bytes holds at most 4096 samples

# Legal values in headers and manifests; a header beyond them is damaged. 2^40 samples at 16 kHz last two years.
# Resampling from 1 Hz to 16 kHz would make a file 16,000 times as long. libsndfile supports at most 1024 channels.
COUNT_LIMITS = {"num_samples": (1, MOST_SAMPLES), "sample_rate_hz": (1000, 10_000_000), "num_channels": (1, 1024)}
COUNT_COLUMNS = tuple(COUNT_LIMITS)

_FILES_PER_MESSAGE = 256  # files sent to a worker on Ray at once, because a message takes longer than reading a header


class Header(NamedTuple):
    """Length, rate and channels of one audio file.

    Attributes:
        num_samples: samples per channel at the file's own rate.
        subtype: libsndfile's name of the sample format, such as "PCM_16" or "FLOAT".
    """

    num_samples: int
    sample_rate_hz: int
    num_channels: int
    subtype: str


class Sound(soundfile.SoundFile):
    """An audio file. It seeks only if the format has exact seeks; otherwise it is decoded from the start.

    soundfile seeks after every `read` of a seekable file. In an MP3 or Ogg Vorbis file this corrupts the next block.
    """

    stream: FileIO
    num_samples: int

    def seekable(self) -> bool:
        """Return whether decoding after a seek gives the same samples as decoding from the start."""
        return super().seekable() and self.subtype not in _INEXACT_SEEKS


@contextmanager
def open_sound(path: Path) -> Iterator[Sound]:
    """Open an audio file; errors of the decoder become a ValueError that names the file."""
    with reading(path, "cannot be decoded: it is damaged, truncated or not audio"), open_regular(path) as stream:
        try:
            sound = Sound(stream.fileno(), closefd=False)
        except soundfile.SoundFileError as error:
            _refuse_compression(path, str(error))
            raise
        with sound:
            check_rate(sound.samplerate, f"{path}: is of")
            sound.stream, sound.num_samples = stream, whole_samples(path, stream, sound)
            if not sound.num_samples:
                check_end(path, stream, sound)  # a length of 0, although samples follow: the length was never written
                raise ValueError(f"{path}: holds no samples")
            yield sound


def _refuse_compression(path: Path, reason: str) -> None:
    """Raise a ValueError if a file is intact, but in an encoding that libsndfile does not read."""
    with open_regular(path) as stream:
        head = stream.read(1024)
    if head.startswith(b"NIST_1A") and b"shorten" in head:
        raise ValueError(
            f"{path}: is compressed by shorten, which is not supported: write it as WAV, by `sph2pipe -f wav IN OUT`"
        )
    if re.search("unimplemented|unsupported|not supported", reason, re.IGNORECASE):
        raise ValueError(f"{path}: is in an encoding that is not supported ({reason}): write it as WAV or FLAC")


def check_rate(sample_rate_hz: int, subject: str) -> None:
    """Raise a ValueError, which begins with `subject`, if a rate is out of range."""
    lowest, highest = COUNT_LIMITS["sample_rate_hz"]
    if not lowest <= sample_rate_hz <= highest:
        raise ValueError(f"{subject} {sample_rate_hz} Hz, but must be from {lowest} to {highest} Hz")


def read_header(path: Path) -> Header:
    """Read length, rate and channels of an audio file, and check that it is whole.

    A truncated WAV, AIFF or AU file is detected by its header, a FLAC file by its last sample, an Ogg file by its last
    page, an MP3 file by counting its frames.

    Raises:
        ValueError: if the file is missing, empty, truncated, without samples or not audio, holds several files, or has
            an absurd rate or length. The message names the file.
    """
    with open_sound(path) as sound:
        header = Header(sound.num_samples, sound.samplerate, sound.channels, sound.subtype)
        num_bytes = path.stat().st_size
        if header.subtype == "VORBIS" and header.num_samples > num_bytes * _MOST_VORBIS_SAMPLES:
            raise ValueError(
                f"{path}: its header states {header.num_samples} samples, more than its {num_bytes} bytes can hold"
            )
        if sound.seekable():
            sound.seek(header.num_samples - 1)
            if len(sound.read(1)) != 1:
                raise ValueError(f"{path}: is truncated: its last sample is missing")
            check_end(path, sound.stream, sound)
    return header


def read_headers(
    files: Sequence[Path], num_workers: int, bar: str | None = None, num_ray_workers: int | None = None
) -> list[Header | str]:
    """Return, for each file in order, its header or an error message, with a progress bar titled `bar`."""
    headers = _examine(files, num_workers)
    if num_ray_workers is not None:
        parts = [files[start : start + _FILES_PER_MESSAGE] for start in range(0, len(files), _FILES_PER_MESSAGE)]
        headers = chain.from_iterable(
            spread(lambda: lambda part: list(_examine(part, num_workers)), parts, num_ray_workers, name=itemgetter(0))
        )
    return list(tqdm(headers, total=len(files), desc=bar, unit="file", disable=bar is None))


def _examine(files: Sequence[Path], num_workers: int) -> Iterator[Header | str]:
    def examine(file: Path) -> Header | str:
        try:
            return read_header(file)
        except ValueError as error:
            return str(error)
        except OSError as error:  # a disk error of one file must not end the index
            return f"{file}: cannot be read ({error.strerror or error})"

    return map_in_order(examine, files, num_workers)
