import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from refusals import refuses
from shared_data import real

from cpc.data.audio.headers import read_header
from cpc.data.audio.pack import read_audio, read_blocks, resampled_length


def speechlike(num_samples: int, channels: int, seed: int = 0) -> np.ndarray:
    """Loud and quiet stretches of coloured noise: what makes an MP3 bit reservoir move."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_samples, channels))
    x = np.cumsum(x - 0.05 * np.cumsum(x, axis=0), axis=0) if seed % 2 else x
    x = x * np.exp(2 * np.sin(np.arange(num_samples) / 3000))[:, None]
    return 0.5 * x / np.abs(x).max()


def write(path: Path, x: np.ndarray, rate: int, **options: str | float) -> Path:
    # In pieces: libsndfile overflows its stack on one long Ogg write.
    with soundfile.SoundFile(path, "w", rate, x.shape[1], **options) as sound:
        for start in range(0, len(x), 4096):
            sound.write(x[start : start + 4096])
    return path


def decoded_at_once(path: Path, rate: int) -> np.ndarray:
    """The oracle: decode all, average the channels, resample all with torchaudio."""
    x, old = soundfile.read(path, dtype="float32", always_2d=True)
    return torchaudio.functional.resample(torch.from_numpy(x.mean(axis=1)), old, rate).numpy()


FORMATS = [
    ("a.wav", 16000, 1, {}),
    ("a.wav", 8000, 2, {"subtype": "FLOAT"}),
    ("a.wav", 44100, 1, {"subtype": "PCM_24"}),
    ("a.wav", 16000, 1, {"subtype": "GSM610"}),  # cannot seek
    ("a.flac", 44100, 2, {}),
    ("a.flac", 22050, 1, {}),
    ("a.flac", 48000, 3, {}),
    ("a.flac", 12345, 1, {}),  # a pattern of 2469 : 3200 samples
    ("a.ogg", 44100, 2, {}),
    ("a.ogg", 16000, 1, {}),
    ("a.ogg", 24000, 1, {"subtype": "OPUS"}),
    ("a.mp3", 16000, 1, {}),
    ("a.mp3", 22050, 1, {}),
    ("a.mp3", 24000, 2, {"bitrate_mode": "VARIABLE", "compression_level": 0.9}),
    ("a.mp3", 44100, 2, {"bitrate_mode": "CONSTANT", "compression_level": 0.99}),
]


@pytest.mark.parametrize(("name", "rate", "channels", "options"), FORMATS)
def test_blocks_equal_the_whole_file(tmp_path: Path, name: str, rate: int, channels: int, options: dict) -> None:
    path = write(tmp_path / name, speechlike(int(3.1 * rate) + 17, channels, seed=rate % 7), rate, **options)
    whole = decoded_at_once(path, 16000)
    np.testing.assert_allclose(read_audio(path, 16000)[: len(whole)], whole, atol=1e-4)
    joined = np.concatenate(list(read_blocks(path, 16000, block_samples=5000)))
    np.testing.assert_allclose(joined[: len(whole)], whole, atol=1e-4)
    assert joined.dtype == np.float32
    assert 0 <= len(joined) - len(whole) <= 1
    header = read_header(path)
    promised = resampled_length(header.num_samples, rate, 16000)
    # An MP3 without a Xing header only estimates its length.
    assert 0 <= promised - len(whole) <= (0.02 * len(whole) + 1152 if "compression_level" in options else 1)


@pytest.mark.parametrize(
    ("old", "new"), [(44100, 16000), (8000, 16000), (48000, 16000), (11025, 16000), (16000, 22050)]
)
def test_blocks_of_any_size_join_without_a_seam(tmp_path: Path, old: int, new: int) -> None:
    path = write(tmp_path / "a.wav", speechlike(30001, 2), old, subtype="FLOAT")
    whole = decoded_at_once(path, new)
    for block_samples in (701, 4096, 30001, 100000):
        blocks = list(read_blocks(path, new, block_samples))
        joined = np.concatenate(blocks)
        assert len(joined) == math.ceil(30001 * new / old)
        np.testing.assert_allclose(joined[: len(whole)], whole, atol=1e-4)
        if block_samples == 4096:
            assert len(blocks) > 5


def test_resampled_length_is_the_exact_ceiling() -> None:
    lengths = [1, 440, 441, 442, 10**12 + 1]
    expected = [1, 160, 160, 161, -((-(10**12 + 1) * 160) // 441)]
    assert [resampled_length(length, 44100, 16000) for length in lengths] == expected


def test_channels_are_averaged(tmp_path: Path) -> None:
    left, right = np.random.default_rng(0).integers(-1000, 1000, (2, 500))
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], axis=1).astype(np.int16), 16000)
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav", 16000), (left + right) / 2 / 32768, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_name_the_file(tmp_path: Path, bad: float) -> None:
    x = speechlike(2000, 2)
    x[1200, 1] = bad
    path = write(tmp_path / "broken.wav", x, 16000, subtype="FLOAT")
    refuses(r"broken\.wav: holds NaN or infinite", read_audio, path, 8000)


def test_real_speech() -> None:
    folder = real("fsdd/recordings")
    for path in sorted(folder.glob("*.flac"))[::400]:
        np.testing.assert_allclose(read_audio(path, 16000), decoded_at_once(path, 16000), atol=1e-4)


@pytest.mark.parametrize(
    ("rate", "wanted"), [(1, 16000), (999, 999), (16000, 500), (16000, 0), (4_000_000, 8000), (44101, 16000)]
)
def test_absurd_rates_are_refused_and_the_file_named(tmp_path: Path, rate: int, wanted: int) -> None:
    path = write(tmp_path / "a.wav", speechlike(4000, 1), rate)
    refuses(r"a\.wav: .*(must be at least 1000|absurdly long)", list, read_blocks(path, wanted))


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wav"
    path.write_text("what libsndfile says is the same for a file that it may not open")
    refuses(r"a\.wav: cannot be decoded: it is damaged", read_header, path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(
        "cpc.data.store.untrusted.open_regular", refuse
    )  # root, who runs tests, may read whatever its mode
    refuses(r"a\.wav: cannot be read \(Permission denied\)$", read_header, path)


def test_compression_that_is_not_supported_is_not_called_damage(tmp_path: Path) -> None:
    """Of TIMIT and WSJ as they were first published."""
    soundfile.write(tmp_path / "a.sph", np.full(800, 0.1), 8000, format="NIST")
    whole = (tmp_path / "a.sph").read_bytes()
    head = whole[:1024].replace(b"-s3 pcm", b"-s23 pcm,embedded-shorten-v1.09")
    (tmp_path / "b.sph").write_bytes(head[:1024].ljust(1024) + b"ajkg\2" + whole[1024:])
    assert read_header(tmp_path / "a.sph").num_samples == 800
    refuses(r"b\.sph: is compressed by shorten, .*sph2pipe -f wav", read_header, tmp_path / "b.sph")
