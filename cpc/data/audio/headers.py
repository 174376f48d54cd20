"""What an audio file says about itself, read without decoding it: length, rate, channels, and whether it is whole."""

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

# What libsndfile reads and people store speech in; compared in lower case.
AUDIO_SUFFIXES = frozenset(
    ".wav .wave .flac .ogg .oga .opus .mp3 .aif .aiff .aifc .au .snd .caf .w64 .rf64 .sph .nist .voc".split()
)

# Measured with libsndfile 1.2.2: after a seek in these, samples can be other than in one go (MP3 loses its reservoir).
# Nor can their last sample be looked at.
_INEXACT_SEEKS = ("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III", "VORBIS")
_MOST_VORBIS_SAMPLES = 2048  # in a byte: a packet has two bytes or more for 4096

# What is legal of a file and in a manifest; other headers are wrong. A file that claims 1 Hz would become 16,000 times
# as long, 2^40 samples at 16 kHz are two years, and libsndfile knows 1024 channels.
COUNT_LIMITS = {"num_samples": (1, MOST_SAMPLES), "sample_rate_hz": (1000, 10_000_000), "num_channels": (1, 1024)}
COUNT_COLUMNS = tuple(COUNT_LIMITS)

_FILES_TOGETHER = 256  # of one message to a worker on Ray: a header takes less time than a message


class Header(NamedTuple):
    """Length, rate and channels of one audio file.

    Attributes:
        num_samples: samples per channel at the file's own rate.
        sample_rate_hz: the file's own rate.
        num_channels: 1 for mono.
        subtype: libsndfile's name of the sample format, as "PCM_16" or "FLOAT".
    """

    num_samples: int
    sample_rate_hz: int
    num_channels: int
    subtype: str


class Sound(soundfile.SoundFile):
    """An audio file that seeks only where a seek is exact, and otherwise decodes straight on.

    soundfile itself seeks after every `read` of a seekable file, which spoils the next piece of an MP3 or Ogg Vorbis.

    Attributes:
        stream: the file itself.
        num_samples: what decoding gives of each channel.
    """

    stream: FileIO
    num_samples: int

    def seekable(self) -> bool:
        """Whether decoding after a seek gives the very samples that decoding from the start gives."""
        return super().seekable() and self.subtype not in _INEXACT_SEEKS


@contextmanager
def open_sound(path: Path) -> Iterator[Sound]:
    """Opens an audio file; whatever the decoder complains about becomes a ValueError that names the file.

    Raises:
        ValueError: also as `whole_samples`.
    """
    with reading(path, "cannot be decoded, it is damaged, truncated or no audio"), open_regular(path) as stream:
        try:
            sound = Sound(stream.fileno(), closefd=False)
        except soundfile.SoundFileError as error:
            _refuse_compression(path, str(error))
            raise
        with sound:
            check_rate(sound.samplerate, f"{path}: is of")
            sound.stream, sound.num_samples = stream, whole_samples(path, stream, sound)
            if not sound.num_samples:
                check_end(path, stream, sound)  # a length of 0 before samples is one that was never written
                raise ValueError(f"{path}: holds no samples")
            yield sound


def _refuse_compression(path: Path, reason: str) -> None:
    """Say of a whole file in an encoding that libsndfile does not read that it is not damaged."""
    with open_regular(path) as stream:
        head = stream.read(1024)
    if head.startswith(b"NIST_1A") and b"shorten" in head:
        raise ValueError(
            f"{path}: is compressed by shorten, which is not supported: write it as WAV, by `sph2pipe -f wav IN OUT`"
        )
    if re.search("unimplemented|unsupported|not supported", reason, re.IGNORECASE):
        raise ValueError(f"{path}: is in an encoding that is not supported ({reason}): write it as WAV or FLAC")


def check_rate(sample_rate_hz: int, whose: str) -> None:
    """Refuse a rate out of range.

    Raises:
        ValueError: beginning with whose it is.
    """
    lowest, highest = COUNT_LIMITS["sample_rate_hz"]
    if not lowest <= sample_rate_hz <= highest:
        raise ValueError(f"{whose} {sample_rate_hz} Hz, but legal are {lowest} to {highest} Hz")


def read_header(path: Path) -> Header:
    """Length, rate and channels of an audio file, after a look at its end.

    A cut-off WAV, AIFF or AU file is found by its header, a FLAC file by its last sample, an Ogg file by its last page,
    an MP3 file by its frames, which are counted.

    Raises:
        ValueError: naming the file, if it is missing, empty, truncated, without samples or no audio, holds several
            files, or its rate or length is absurd.
    """
    with open_sound(path) as sound:
        header = Header(sound.num_samples, sound.samplerate, sound.channels, sound.subtype)
        num_bytes = path.stat().st_size
        if header.subtype == "VORBIS" and header.num_samples > num_bytes * _MOST_VORBIS_SAMPLES:
            raise ValueError(
                f"{path}: says that it has {header.num_samples} samples, more than its {num_bytes} bytes can hold; "
                "write it again with any audio tool"
            )
        if sound.seekable():
            sound.seek(header.num_samples - 1)
            if len(sound.read(1)) != 1:
                raise ValueError(f"{path}: is truncated, its last sample is missing")
            check_end(path, sound.stream, sound)
    return header


def read_headers(
    files: Sequence[Path], num_workers: int, bar: str | None = None, num_ray_workers: int | None = None
) -> list[Header | str]:
    """Of every file its header or what is wrong with it, in order.

    Args:
        files: to read.
        num_workers: threads of each process.
        bar: title of a progress bar.
        num_ray_workers: processes of a Ray cluster; this one alone unless given.
    """
    if num_ray_workers is None:
        found = _examine(files, num_workers)
    else:
        parts = [files[start : start + _FILES_TOGETHER] for start in range(0, len(files), _FILES_TOGETHER)]
        of_parts = spread(
            lambda: lambda part: list(_examine(part, num_workers)), parts, num_ray_workers, name=itemgetter(0)
        )
        found = chain.from_iterable(of_parts)
    return list(tqdm(found, total=len(files), desc=bar, unit="file", disable=bar is None))


def _examine(files: Sequence[Path], num_workers: int) -> Iterator[Header | str]:
    def examine(file: Path) -> Header | str:
        try:
            return read_header(file)
        except ValueError as error:
            return str(error)
        except OSError as error:  # a passing disk error must not end the index
            return f"{file}: cannot be read ({error.strerror or error})"

    return map_in_order(examine, files, num_workers)
