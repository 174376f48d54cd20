"""Headers of audio files, and checks that files hold what headers say, without which decoders end early silently."""

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import FileIO
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import soundfile
from tqdm import tqdm

from cpc.config.argument_rules import Range
from cpc.data.store.folders import map_in_order
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

# A header with more samples than this has no known length; libsndfile then gives 2**63 - 1.
MOST_SAMPLES = 1 << 40
# Legal values in headers and manifests; a header beyond them is damaged. 2^40 samples at 16 kHz last two years.
# Resampling from 1 Hz to 16 kHz would make a file 16,000 times as long. libsndfile supports at most 1024 channels.
COUNT_LIMITS = {"num_samples": (1, MOST_SAMPLES), "sample_rate_hz": (1000, 10_000_000), "num_channels": (1, 1024)}
COUNT_COLUMNS = tuple(COUNT_LIMITS)
RATES_HZ = Range(*COUNT_LIMITS["sample_rate_hz"])

_FILES_PER_MESSAGE = 256  # files sent to a worker on Ray at once, because a message takes longer than reading a header


class Header(NamedTuple):
    """Length, rate and channels of one audio file."""

    num_samples: int  # per channel, at the file's own rate
    sample_rate_hz: int
    num_channels: int
    subtype: str  # libsndfile's name of the sample format, such as "PCM_16" or "FLOAT"


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
            RATES_HZ.check(f"{path}: its rate in Hz", sound.samplerate)
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
        raise ValueError(f"{path}: is compressed by shorten, which is not supported: `sph2pipe -f wav IN OUT`")
    if re.search("unimplemented|unsupported|not supported", reason, re.IGNORECASE):
        raise ValueError(f"{path}: is in an encoding that is not supported ({reason}): write it as WAV or FLAC")


def read_header(path: Path) -> Header:
    """Read length, rate and channels of an audio file, and check that it is whole.

    A truncated WAV, AIFF or AU file is detected by its header, a FLAC file by its last sample, an Ogg file by its last
    page, an MP3 file by counting its frames. A ValueError names the file.
    """
    with open_sound(path) as sound:
        header = Header(sound.num_samples, sound.samplerate, sound.channels, sound.subtype)
        num_bytes, promised = path.stat().st_size, header.num_samples
        if header.subtype == "VORBIS" and promised > num_bytes * _MOST_VORBIS_SAMPLES:
            raise ValueError(f"{path}: its header states {promised} samples, more than its {num_bytes} bytes can hold")
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


# libsndfile shortens a truncated file without an error, but its log keeps the sizes in the header.
_SIZES = re.compile(r"^\s*(data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_CAF_SIZES = re.compile(r"Bytes / packet\s*: (\d+)\s+Frames / packet\s*: 1\n(?:.*\n)*?data : (\d+)")
_CAF_EDIT_BYTES = 4
_NIST_COUNT = re.compile(rb"\nsample_count -i (\d+)")
_NIST_HEADER_BYTES = 1024

# Programs pad files to whole blocks. If more bytes than this follow the audio, they are not padding.
_MOST_PADDING_BYTES = 4096
_MOST_METADATA_BYTES = 1 << 24
# The decoder's position may lie beyond the end of the audio, by at most this number of bytes.
_BUFFERED_BYTES = {"FLAC": 1 << 17}

_OGG_BEGINS, _OGG_ENDS = 2, 4  # flags of a page, RFC 3533
_OGG_HEADER_BYTES = 27

# kbit/s of layer III, without free format: ISO 11172-3, 2.4.2.3 and ISO 13818-3, 2.4.2.3.
_MPEG_1_KBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG_2_KBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MPEG_RATES_HZ = (44100, 48000, 32000)
_INFO_BYTES = 64  # names in the first frame, if it holds the number of frames (Xing, LAME, Fraunhofer)


def whole_samples(path: Path, stream: FileIO, sound: soundfile.SoundFile) -> int:
    """Return the samples per channel that decoding an intact file gives; equal to `sound.frames`, except for MP3."""
    if sound.frames > MOST_SAMPLES:
        raise ValueError(f"{path}: does not state its length; write it again with any audio tool")
    log = sound.extra_info
    for name, *sizes in _SIZES.findall(log):
        promised, present = map(int, sizes)
        if promised > present and not _is_placeholder(promised):
            raise ValueError(f"{path}: is truncated, {present} of its {promised} bytes of audio are there")
        if present > promised + _MOST_PADDING_BYTES and name in ("riff", "Riff size") and promised:
            raise _longer(path, present - promised)
    if "Seems to be a truncated file" in log:
        raise _cut_off(path)
    if "Seems to be a multi-segment file" in log:  # in a VOC their headers would be read as samples
        raise ValueError(f"{path}: holds several segments; write it again as a single segment, as WAV or FLAC")
    caf = _CAF_SIZES.search(log)
    if caf and sound.format == "CAF":
        compare(path, (int(caf[2]) - _CAF_EDIT_BYTES) // int(caf[1]), sound.frames)
    if sound.format not in ("NIST", "OGG", "MP3"):
        return sound.frames
    with _mapped(stream) as content:
        if sound.format == "MP3":
            return _mpeg_samples(path, content, sound.frames)
        if sound.format == "OGG":
            _check_ogg_pages(path, content)
        elif count := _NIST_COUNT.search(content[:_NIST_HEADER_BYTES]):
            compare(path, int(count[1]), sound.frames)
            if (surplus := sound.frames - int(count[1])) > _MOST_PADDING_BYTES:
                raise _longer(path, surplus, "samples")
    return sound.frames


def check_end(path: Path, stream: FileIO, sound: soundfile.SoundFile) -> None:
    """Raise an error if a file goes on after its audio; call this after the last sample is read from `stream`."""
    if sound.format in ("MP3", "OGG"):  # `whole_samples` has counted the frames or pages of these formats
        return
    end = stream.tell()
    with _mapped(stream) as content:
        buffered = _BUFFERED_BYTES.get(sound.format, 0)
        last = len(content) if buffered else end + _MOST_PADDING_BYTES
        if content.find(content[:8], max(8, end - buffered), last) > 0:
            raise _joined(path)
        num_after = len(content) - end
        # Letters in the names of chunks, such as `LIST`, or `_PMX` of Adobe Audition.
        is_chunk = any(content[start : start + 4].strip(b" _").isalnum() for start in (end, end + 1))
    if not buffered and num_after > (max(end, _MOST_METADATA_BYTES) if is_chunk else _MOST_PADDING_BYTES):
        raise _longer(path, num_after)


def _mapped(stream: FileIO) -> mmap.mmap:
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _is_placeholder(num_bytes: int) -> bool:
    """Return whether a length is a placeholder of a program that writes to a pipe: near 2**31, 2**32 or 2**63."""
    return abs(num_bytes - 2**31) <= 4096 or 0 <= 2**32 - num_bytes <= 4096 or num_bytes >= 2**62


def compare(path: Path, promised: int, present: int) -> None:
    """Raise a ValueError if fewer samples are present than promised."""
    if present < promised < MOST_SAMPLES:
        raise ValueError(f"{path}: is truncated: {promised - present} of its {promised} samples are missing")


def _longer(path: Path, num_after: int, unit: str = "bytes") -> ValueError:
    return ValueError(
        f"{path}: goes on for {num_after} {unit} after the audio that its header promises: files were joined, the file "
        "was never finished, or it is longer than a header can state (WAV: 4 GiB)"
    )


def _cut_off(path: Path) -> ValueError:
    return ValueError(f"{path}: is truncated: its end is missing")


def _joined(path: Path) -> ValueError:
    return ValueError(f"{path}: holds several files, one after the other, and only the first would be read: split them")


def _check_ogg_pages(path: Path, content: mmap.mmap) -> None:
    """Check the pages: the last page of a stream must have the end flag, and no other stream may follow."""
    position, flags, has_begun = 0, 0, False
    while content[position : position + 4] == b"OggS":
        sizes_start = position + _OGG_HEADER_BYTES
        if sizes_start > len(content):
            raise _cut_off(path)
        flags, sizes_end = content[position + 5], sizes_start + content[sizes_start - 1]
        if has_begun and flags & _OGG_BEGINS:
            raise _joined(path)
        has_begun = not flags & _OGG_BEGINS  # parallel streams begin before any stream continues
        position = sizes_end + sum(content[sizes_start:sizes_end])
        if position > len(content):
            raise _cut_off(path)
    if not flags & _OGG_ENDS:
        raise _cut_off(path)


def _mpeg_samples(path: Path, content: mmap.mmap, num_decoded: int) -> int:
    """Return the samples that decoding gives, by counting frames; tags and damaged bytes are skipped."""
    position, num_frames, samples_per_frame = 0, 0, 0
    promised: int | None = None
    while position + 4 <= len(content):
        if num_bytes := _frame_bytes_at(content, position):
            if (missing := position + num_bytes - len(content)) > 0:
                raise ValueError(f"{path}: is truncated, {missing} bytes of its last frame are missing")
            if not samples_per_frame:
                samples_per_frame = 1152 if content[position + 1] >> 3 & 3 == 3 else 576
                promised = _promised_frames(content[position : position + _INFO_BYTES])
                num_frames -= promised is not None
            num_frames += 1
            position += num_bytes
        elif content[position : position + 3] == b"ID3":
            size = content[position + 6 : position + 10]
            position += 10 + sum((byte & 127) << 7 * i for i, byte in enumerate(reversed(size)))
        elif len(content) - position == 128 and content[position : position + 3] == b"TAG":
            break
        else:
            position = _next_frame(content, position + 1)
    if not samples_per_frame:  # layer I or II
        return num_decoded
    num_samples = num_frames * samples_per_frame
    if promised is None and num_decoded < num_samples:
        counts = f"only {num_decoded} of its {num_samples} samples would be read; convert it to WAV or FLAC"
        raise ValueError(f"{path}: its bit rate varies and no header states its length, so {counts}")
    if promised is not None and num_frames + 1 < promised:  # some encoders count the information frame too
        raise ValueError(f"{path}: is truncated, {num_frames} of its {promised} frames are there")
    if promised is not None and num_frames > promised:
        counts = f"holds {num_frames} frames, but its first frame states {promised}"
        raise ValueError(f"{path}: {counts}, and only these would be read: files were joined; split them")
    return min(num_decoded, num_samples)


def _frame_bytes_at(content: mmap.mmap, position: int) -> int:
    return _frame_bytes(content[position + 1], content[position + 2]) if content[position] == 0xFF else 0


@cache
def _frame_bytes(second: int, third: int) -> int:
    """Return the number of bytes of a frame of layer III, from its header's bytes 2 and 3; 0 if they are illegal."""
    version, layer, kbits, rate, padding = second >> 3 & 3, second >> 1 & 3, third >> 4, third >> 2 & 3, third >> 1 & 1
    if second >> 5 != 7 or version == 1 or layer != 1 or kbits in (0, 15) or rate == 3:
        return 0
    rate_hz = _MPEG_RATES_HZ[rate] // {3: 1, 2: 2, 0: 4}[version]
    if version == 3:
        return 144_000 * _MPEG_1_KBITS[kbits - 1] // rate_hz + padding
    return 72_000 * _MPEG_2_KBITS[kbits - 1] // rate_hz + padding


def _next_frame(content: mmap.mmap, position: int) -> int:
    """Return the position of the next frame that is followed by another frame, or else the end of the file."""
    while 0 <= (position := content.find(b"\xff", position)) < len(content) - 4:
        following = position + _frame_bytes_at(content, position)
        if position < following < len(content) - 4 and _frame_bytes_at(content, following):
            return position
        position += 1
    return len(content)


def _promised_frames(frame: bytes) -> int | None:
    """Return the number of frames that an information frame states; None if the frame holds audio, or no number."""
    for name in (b"Xing", b"Info"):
        start = frame.find(name)
        if 0 < start <= len(frame) - 12 and frame[start + 7] & 1:
            (promised,) = struct.unpack_from(">I", frame, start + 8)
            return int(promised)
    if frame[36:40] == b"VBRI":
        return int(struct.unpack_from(">I", frame, 50)[0])
    return None
