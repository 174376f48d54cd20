import json
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from refusals import refuses

import cpc.data.audio.pack
import cpc.data.store.packed
from cpc.data import Manifest, index_folder, read_manifest
from cpc.data.audio.pack import pack, read_audio
from cpc.data.recordings.windows import PackedRecordings

from .test_index import write_noise

HALF_STEP = 0.5 / 32768


@pytest.fixture
def corpus(tmp_path: Path) -> Manifest:
    root = tmp_path / "corpus"
    write_noise(root / "test/d.wav", 3000)
    write_noise(root / "train/a.wav", 16001)
    write_noise(root / "train/b.flac", 30000, 44100, channels=2)
    write_noise(root / "train/c.mp3", 9000, 22050)
    return index_folder(root, split_level=0, progress=False)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail(*_: object, **__: object) -> None:
    raise AssertionError("must not be called")


def test_packed_equals_decoded_within_rounding(corpus: Manifest) -> None:
    audio = pack(corpus, 16000, progress=False)
    assert audio.sample_rate_hz == 16000
    for file, path in enumerate(corpus.files):
        packed = audio.read(file, 0, 10**9)
        assert len(packed) == audio.num_samples[file]
        assert packed.dtype == np.float32
        np.testing.assert_allclose(packed, read_audio(path, 16000), atol=HALF_STEP * 1.01)
        np.testing.assert_array_equal(audio.read(file, 500, 1000), packed[500:1500])
        assert len(audio.read(file, len(packed) - 10, 1000)) == 10
        assert len(audio.read(file, len(packed) + 10, 1000)) == 0
        refuses("start=-1", audio.read, file, -1, 10)


def test_sixteen_bit_audio_at_its_own_rate_is_kept_to_the_bit(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-32768, 32768, 5000).astype(np.int16)
    samples[:2] = (-32768, 32767)
    soundfile.write(tmp_path / "a.flac", samples, 16000)
    audio = pack(Manifest(tmp_path, {"path": ["a.flac"]}), 16000, progress=False)
    np.testing.assert_array_equal(audio.read(0, 0, 5000) * 32768, samples)


@pytest.mark.parametrize("files", [[0, 1, 2, 3], [1, 2, 3], [3, 0]])
def test_statistics_are_those_of_the_files_asked_for(corpus: Manifest, files: list[int]) -> None:
    audio = pack(corpus, 16000, progress=False).subset(files)
    samples = np.concatenate([audio.read(file, 0, 10**9) for file in range(len(files))]).astype(np.float64)
    assert audio.statistics == (pytest.approx(samples.mean(), abs=1e-12), pytest.approx(samples.std(), rel=1e-12))


def test_statistics_of_many_loud_samples_do_not_overflow(corpus: Manifest) -> None:
    """A year of full scale: the sum of squares needs 69 bits."""
    audio = pack(corpus, 16000, progress=False)
    rows = np.load(audio.folder / "rows.npy")
    rows[:, 1:] = 16000 * 3600 * np.array([1, 2**14, 2**30])
    np.save(audio.folder / "rows.npy", rows)
    audio.lengths = rows[:, 1]
    assert audio.subset([0] * 10**4).statistics == pytest.approx((0.5, 0.75**0.5))


def test_long_files_are_packed_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_noise(tmp_path / "a.flac", 50000, 44100)
    manifest = Manifest(tmp_path, {"path": ["a.flac"]})
    whole = pack(manifest, 16000, tmp_path / "whole", progress=False)
    read_blocks = cpc.data.audio.pack.read_blocks
    monkeypatch.setattr(cpc.data.audio.pack, "read_blocks", lambda path, rate: read_blocks(path, rate, 3000))
    pieces = pack(manifest, 16000, tmp_path / "pieces", progress=False)
    np.testing.assert_allclose(pieces.read(0, 0, 10**9), whole.read(0, 0, 10**9), atol=HALF_STEP * 2)
    assert pieces.statistics == pytest.approx(whole.statistics, rel=1e-3)


def test_a_pack_is_reused_until_something_changes(corpus: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack(corpus, 16000, progress=False)
    assert first.folder.parent == corpus.root / ".cpc_cache"
    assert files_in(first.folder) == ["index.json", "rows.bin", "rows.npy"]
    with monkeypatch.context() as patch:
        patch.setattr(cpc.data.store.packed, "_build", fail)
        assert pack(corpus, 16000, progress=False).folder == first.folder
        relabelled = Manifest(corpus.root, corpus.columns | {"text": ["x"] * 4, "split": ["train"] * 4})
        assert pack(relabelled, 16000, progress=False).folder == first.folder
    folders = {first.folder}
    folders.add(pack(corpus, 8000, progress=False).folder)
    folders.add(pack(corpus.take([1, 0, 2, 3]), 16000, progress=False).folder)
    os.utime(corpus.files[0], ns=(1, 1))
    folders.add(pack(corpus, 16000, progress=False).folder)
    assert len(folders) == 4
    assert set(corpus.root.joinpath(".cpc_cache").iterdir()) == folders


def make_nan(path: Path) -> None:
    x = np.full(1000, 0.1)
    x[500] = np.nan
    soundfile.write(path, x, 16000, subtype="FLOAT")


def make_cut_off_mp3(path: Path) -> None:
    write_noise(path.with_suffix(".mp3"), 60000).rename(path)
    path.write_bytes(path.read_bytes()[:4000])


def make_boastful_mp3(path: Path) -> None:
    """Whose Xing header says 2^28 frames."""
    write_noise(path.with_suffix(".mp3"), 60000).rename(path)
    head, tag, rest = path.read_bytes().partition(b"Xing")
    path.write_bytes(head + tag + rest[:4] + (2**28).to_bytes(4, "big") + rest[8:])
    assert soundfile.info(path).frames > 10**11


def make_boastful_ogg(path: Path) -> None:
    """Whose last page says 2^37 samples, under a checksum that is right."""
    write_noise(path.with_suffix(".ogg"), 60000).rename(path)
    head, tag, page = path.read_bytes().rpartition(b"OggS")
    page = tag + page[:2] + (2**37).to_bytes(8, "little") + page[10:18] + bytes(4) + page[22:]
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x04C11DB7 if checksum >> 31 else 0)) & 0xFFFFFFFF
    path.write_bytes(head + page[:22] + checksum.to_bytes(4, "little") + page[26:])
    assert soundfile.info(path).frames > 10**11


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "silent": (lambda path: soundfile.write(path, np.zeros(1000), 16000), "is constant"),
    "level": (lambda path: soundfile.write(path, np.full(1000, 0.25), 16000), "each of its 1000 samples is 0.25"),
    "nan": (make_nan, "NaN"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (lambda path: path.write_text("words " * 100), "not audio"),
    "cut_off": (make_cut_off_mp3, "truncated"),
    "boastful_mp3": (make_boastful_mp3, r"is truncated, 107 of its 268435456 frames are there"),
    "boastful_ogg": (make_boastful_ogg, r"its header states 137438953472 samples, more than its \d+ bytes can hold"),
    "missing": (lambda path: None, "no such file"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_named_or_skipped(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, reason = BAD_FILES[kind]
    for name in ("a.wav", "z.wav"):
        write_noise(tmp_path / name, 5000 + ord(name[0]))
    make(tmp_path / "bad.wav")
    manifest = Manifest(tmp_path, {"path": ["a.wav", "bad.wav", "z.wav"]})
    refuses(rf"1 of 3 files .*:\n.*bad\.wav: .*{reason}(?s:.*)skip_bad", pack, manifest, 16000, progress=False)
    monkeypatch.setattr(cpc.data.store.packed, "_build", fail)  # nothing is decoded twice
    with pytest.warns(UserWarning, match=rf"without 1 of 3 files(?s:.*)bad\.wav: .*{reason}"):
        audio = pack(manifest, 16000, skip_bad=True, progress=False)
    assert audio.num_samples.tolist() == [5097, 0, 5122]
    assert list(audio.skipped) == [1]
    assert len(audio.read(1, 0, 1000)) == 0
    np.testing.assert_allclose(audio.read(2, 0, 10**9), read_audio(tmp_path / "z.wav", 16000), atol=HALF_STEP * 1.01)
    good = np.concatenate([audio.read(0, 0, 10**9), audio.read(2, 0, 10**9)])
    assert audio.statistics == pytest.approx((good.mean(), good.std()), rel=1e-4)
    assert audio.subset([2, 1]).skipped == {1: audio.skipped[1]}
    with pytest.raises(ValueError, match="none of the 1 recordings holds a sample"):
        _ = audio.subset([1]).statistics
    refuses("1 of 3", pack, manifest, 16000, progress=False)


def test_one_bad_file_among_two_thousand_is_all_that_is_missed(tmp_path: Path) -> None:
    content = write_noise(tmp_path / "0.wav", 1000).read_bytes()
    names = [f"{number}.wav" for number in range(2000)]
    for name in names[1:]:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "1234.wav").write_bytes(content[:500])
    with pytest.warns(UserWarning, match=r"without 1 of 2000 files(?s:.*)1234\.wav: "):
        audio = pack(Manifest(tmp_path, {"path": names}), 16000, skip_bad=True, progress=False)
    assert list(audio.skipped) == [1234]
    assert list(audio.subset([1999, 1234]).skipped) == [1]
    for row in (1233, 1235, 1999):
        np.testing.assert_array_equal(audio.read(row, 0, 1000), audio.read(0, 0, 1000))


def test_what_cannot_be_packed(corpus: Manifest, tmp_path: Path) -> None:
    refuses("`sample_rate_hz`=500 must be at least 1000", pack, corpus, 500, progress=False)
    assert not (corpus.root / ".cpc_cache").exists()
    (tmp_path / "a.wav").touch()
    with pytest.raises(OSError, match=r"name another place with `cache_dir`"):
        pack(corpus, 16000, tmp_path / "a.wav", progress=False)
    refuses("1 of 1 files", pack, Manifest(tmp_path, {"path": ["a.wav"]}), 16000, skip_bad=True, progress=False)
    write_noise(corpus.files[1], 99)
    refuses(r"a\.wav: num_samples is 99, but 16001 in the manifest", pack, corpus, 16000, progress=False)


def test_samples_beyond_one_are_clipped_and_reported_once(tmp_path: Path) -> None:
    x = np.linspace(-2, 2, 1000)
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", x, 16000, subtype="FLOAT")
    write_noise(tmp_path / "c.wav", 1000)
    manifest = index_folder(tmp_path, progress=False)
    with pytest.warns(UserWarning, match=r"2 of 3 files(?s:.*)clipped") as caught:
        audio = pack(manifest, 16000, progress=False)
    assert len(caught) == 1
    np.testing.assert_allclose(audio.read(0, 0, 1000), np.clip(x, -1, 1), atol=2 * HALF_STEP)
    pack(manifest, 16000, progress=False)  # a warning would be an error here


def test_a_full_disk_is_said_clearly_and_leaves_nothing(corpus: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    packs = corpus.root / ".cpc_cache"
    with monkeypatch.context() as patch:
        patch.setattr(cpc.data.store.packed.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        with pytest.raises(OSError, match=r"No space left.*files take 0\.000 GB.*with `cache_dir`"):
            pack(corpus, 16000, progress=False)
    assert files_in(packs) == []

    # The real thing: the system refuses the bytes while they are written.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: the packed files take"):
            pack(corpus, 16000, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_in(packs) == []
    assert len(pack(corpus, 16000, progress=False)) == 4


def test_a_pack_travels_light_and_opens_its_map_where_it_arrives(corpus: Manifest) -> None:
    audio = pack(corpus, 16000, progress=False)
    expected = audio.read(1, 100, 50)
    data = pickle.dumps(audio)
    assert len(data) < 5000  # 60 kB of samples
    np.testing.assert_array_equal(pickle.loads(data).read(1, 100, 50), expected)
    chosen = pickle.loads(pickle.dumps(audio.subset(np.array([3, 1]))))
    assert chosen.num_samples.tolist() == audio.num_samples[[3, 1]].tolist()
    np.testing.assert_array_equal(chosen.read(1, 100, 50), expected)
    assert chosen.statistics == audio.subset([3, 1]).statistics


def test_a_damaged_pack_and_one_of_another_rate_are_built_again(corpus: Manifest) -> None:
    folder = pack(corpus, 16000, progress=False).folder
    index, rows = json.loads((folder / "index.json").read_text()), np.load(folder / "rows.npy")
    sizes = {"rows.bin": 1, "rows.npy": 288}

    def is_built_again(message: str) -> None:
        refuses(f"holds no complete pack{message}", PackedRecordings, folder)
        audio = pack(corpus, 16000, progress=False)
        assert (audio.folder, audio.sample_rate_hz, audio.read(1, 0, 10).any()) == (folder, 16000, True)
        assert json.loads((folder / "index.json").read_text()) == index

    os.truncate(folder / "rows.bin", 100)
    is_built_again("")
    for change in ({"sample_rate_hz": "fast"}, {"dtype": "words"}, {"skipped": []}, {"num_bytes": sizes}):
        (folder / "index.json").write_text(json.dumps(index | change))
        is_built_again("")
    for column, value in ((0, -1), (0, 10**9), (1, -1), (1, 10**9)):
        damaged = rows.copy()
        damaged[3, column] = value
        np.save(folder / "rows.npy", damaged)
        is_built_again(": rows lie outside")
    (folder / "index.json").write_text(json.dumps(index | {"sample_rate_hz": 8000}))
    assert pack(corpus, 16000, progress=False).sample_rate_hz == 16000
    (folder / "index.json").write_text("{")
    assert pack(corpus, 16000, progress=False).folder == folder


def test_files_that_16_bits_round_to_few_levels_are_named(tmp_path: Path) -> None:
    """24 bits and lossy files can be quiet and good; 16-bit files lose nothing, however quiet."""
    rng = np.random.default_rng(0)
    for name, level, subtype in (("deep", 4e-4, "PCM_24"), ("usual", 0.1, "FLOAT"), ("short", 4e-4, "PCM_16")):
        soundfile.write(tmp_path / f"{name}.wav", level * rng.uniform(-1, 1, 2000), 16000, subtype=subtype)
    index_folder(tmp_path, progress=False)
    with pytest.warns(UserWarning, match=r"1 of 3 files stay below 0.004 of full scale(.|\n)*deep.wav$"):
        pack(read_manifest(tmp_path), 16000, progress=False)
