"""Files that do not hold what they say: cut off anywhere, joined, or of a length that no header tells."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from refusals import refuses

from cpc.data.audio.headers import read_header
from cpc.data.audio.pack import read_audio

RATE_HZ = 16000
FORMATS = {
    "a.mp3": {"bitrate_mode": "CONSTANT", "compression_level": 0.5},
    "v.mp3": {"bitrate_mode": "VARIABLE", "compression_level": 0.6},
    "a.ogg": {"subtype": "VORBIS"},
    "b.ogg": {"subtype": "OPUS"},
    "a.flac": {},
    "a.wav": {"subtype": "FLOAT"},
    "b.wav": {"subtype": "IMA_ADPCM"},
    "a.aiff": {},
    "a.au": {},
    "a.caf": {},
    "a.w64": {},
    "a.rf64": {"format": "RF64"},
    "a.sph": {"format": "NIST", "subtype": "PCM_16"},
    "a.voc": {"subtype": "PCM_16"},
}


def encoded(path: Path, seconds: float, seed: int = 0, **options: object) -> bytes:
    """Noise that swells, so that variable rates vary."""
    num_samples = round(seconds * RATE_HZ)
    x = np.random.default_rng(seed).standard_normal(num_samples)
    soundfile.write(path, 0.05 * x * np.exp(2 * np.sin(np.arange(num_samples) / 4000)), RATE_HZ, **options)
    return path.read_bytes()


def mpeg_frames(content: bytes) -> list[bytes]:
    """The frames of a file of MPEG 2, layer III: bytes = 72 * bits per second / samples per second, plus padding."""
    kbits = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    frames = []
    while content:
        num_bytes = 72 * 1000 * kbits[content[2] >> 4] // RATE_HZ + (content[2] >> 1 & 1)
        frames.append(content[:num_bytes])
        content = content[num_bytes:]
    return frames


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_cut_off_anywhere_is_named_or_reads_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content = encoded(path, 1.3, **FORMATS[name])
    whole = read_audio(path, RATE_HZ)
    assert read_header(path).num_samples == len(whole)
    tail = range(1, 12)
    for num_missing in [*tail, *np.random.default_rng(0).integers(12, len(content), 20)]:
        path.write_bytes(content[:-num_missing])
        try:
            read = read_audio(path, RATE_HZ)
        except ValueError as error:
            assert name in str(error)  # noqa: PT017 - every place of the cut may read whole instead
        else:
            np.testing.assert_array_equal(read, whole, err_msg=f"{num_missing} bytes are missing")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seconds", [0.4, 2.0])
def test_files_that_were_joined_are_refused(name: str, seconds: float, tmp_path: Path) -> None:
    path = tmp_path / name
    first = encoded(path, 1.0, **FORMATS[name])
    path.write_bytes(first + encoded(path, seconds, seed=1, **FORMATS[name]))
    for read in (read_header, lambda path: read_audio(path, RATE_HZ)):
        refuses(rf"{name}: (holds|goes on|cannot be decoded)", read, path)


def test_an_mp3_without_its_first_frame_is_read_whole_or_refused(tmp_path: Path) -> None:
    for name, seconds in (("a.mp3", 2.0), ("v.mp3", 3.5)):
        frames = mpeg_frames(encoded(tmp_path / name, seconds, **FORMATS[name]))
        (tmp_path / name).write_bytes(b"".join(frames[1:]))
        if name == "a.mp3":
            assert len(read_audio(tmp_path / name, RATE_HZ)) == 576 * len(frames[1:])
            assert read_header(tmp_path / name).num_samples == 576 * len(frames[1:])
        else:
            told = rf"v\.mp3: its bit rate varies .* of its {576 * len(frames[1:])} samples would be read"
            refuses(told, read_audio, tmp_path / name, RATE_HZ)
            # Small frames first: the decoder expects more samples than there are, and reads all of them.
            (tmp_path / name).write_bytes(b"".join(sorted(frames[1:], key=len)))
            assert soundfile.info(tmp_path / name).frames > 576 * len(frames[1:])
            assert read_header(tmp_path / name).num_samples == 576 * len(frames[1:])
            assert len(read_audio(tmp_path / name, RATE_HZ)) == 576 * len(frames[1:])


def id3(num_bytes: int) -> bytes:
    return b"ID3\4\0\0" + bytes(num_bytes >> shift & 127 for shift in (21, 14, 7, 0)) + b"\xff\xfb" * (num_bytes // 2)


@pytest.mark.parametrize("name", ["a.mp3", "v.mp3"])
def test_tags_and_an_mp3_cut_between_frames(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content = encoded(path, 1.3, **FORMATS[name])
    whole = read_audio(path, RATE_HZ)
    path.write_bytes(id3(3000) + content + b"TAG" + bytes(125))
    np.testing.assert_array_equal(read_audio(path, RATE_HZ), whole)
    for num_missing in (1, 2, 9):
        path.write_bytes(b"".join(mpeg_frames(content)[:-num_missing]))
        refuses(rf"{name}: is truncated", read_audio, path, RATE_HZ)


def with_sizes(riff: int, data: int) -> Callable[[bytes], bytes]:
    return lambda wav: wav[:4] + struct.pack("<I", riff) + wav[8:40] + struct.pack("<I", data) + wav[44:]


@pytest.mark.parametrize("placeholder", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF - 36, 0x80000000])
def test_a_wav_that_was_streamed_is_whole(placeholder: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    content = encoded(path, 0.5)
    whole = read_audio(path, RATE_HZ)
    path.write_bytes(with_sizes(0xFFFFFFFF, placeholder)(content))
    np.testing.assert_array_equal(read_audio(path, RATE_HZ), whole)


@pytest.mark.parametrize("data", [0, 4000, 11000])
def test_a_wav_whose_header_was_never_finished_is_refused(data: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(with_sizes(36 + data, data)(encoded(path, 0.5)))
    for read in (read_header, lambda path: read_audio(path, RATE_HZ)):
        refuses(rf"a\.wav: goes on for {16000 - data} bytes after the audio", read, path)


@pytest.mark.parametrize(
    ("claimed", "present"),
    [
        (3 << 30, (3 << 30) - 2000),  # no placeholder: cut off
        (70_000, (1 << 32) + 70_000),  # written by a program that counts modulo 2**32
        (0xFFFFFFFF, (1 << 32) + (1 << 29)),  # streamed, and longer than a WAV can be
    ],
)
def test_a_wav_of_gigabytes(claimed: int, present: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    content = with_sizes(min(claimed + 36, 0xFFFFFFFF), claimed)(encoded(path, 0.5))
    with path.open("wb") as stream:
        stream.write(content)
        stream.truncate(44 + present)  # sparse
    refuses(r"a\.wav: (is truncated|goes on for \d+ bytes)", read_header, path)


def test_metadata_after_the_audio_are_no_audio(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    content = encoded(path, 0.5)
    whole = read_audio(path, RATE_HZ)
    chunk = b"LIST" + struct.pack("<I", 20_000) + b"INFO" + bytes(19_996)
    path.write_bytes(with_sizes(len(content) - 8 + len(chunk), 16_000)(content) + chunk)
    np.testing.assert_array_equal(read_audio(path, RATE_HZ), whole)
    path.write_bytes(content + bytes(2048))  # whole blocks
    np.testing.assert_array_equal(read_audio(path, RATE_HZ), whole)


def test_a_flac_that_does_not_know_its_length_says_so_to_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    content = bytearray(encoded(path, 0.5))
    content[21] &= 0xF0  # 36 bits of STREAMINFO
    content[22:26] = bytes(4)
    path.write_bytes(content)
    for read in (read_header, lambda path: read_audio(path, RATE_HZ)):
        refuses(r"a\.flac: does not state its length", read, path)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_cut_between_pages_is_truncated(subtype: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    content = encoded(path, 3.0, subtype=subtype)
    path.write_bytes(content[: content.rindex(b"OggS")])
    assert 0 < soundfile.info(path).frames < 3 * RATE_HZ
    refuses(r"a\.ogg: is truncated: its end is missing", read_header, path)


def test_metadata_of_adobe_audition_are_no_audio(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    content = encoded(path, 1) + b"_PMX" + struct.pack("<I", 200_000) + b"<x/>" * 50_000
    path.write_bytes(content[:4] + struct.pack("<I", len(content) - 8) + content[8:])
    assert len(read_audio(path, RATE_HZ)) == RATE_HZ
