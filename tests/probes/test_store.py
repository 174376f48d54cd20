"""The features of a corpus: in memory or in a file, the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import cpc
from cpc.data.audio.files import AudioFiles
from cpc.data.audio.manifest import Manifest
from cpc.probes import Features, FeatureStore, ProbeProtocol, Task, fit_probe
from cpc.probes import store as store_module


class Waves:
    """Audio in memory."""

    sample_rate_hz = 16000

    def __init__(self, waves: list[np.ndarray]) -> None:
        self.waves = waves
        self.num_samples = np.array([len(wave) for wave in waves])

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        return self.waves[file_index][start : start + num_samples]


def waves(*lengths: int) -> tuple[Waves, Manifest]:
    rng = np.random.default_rng(0)
    audio = Waves([0.1 * rng.standard_normal(length, dtype=np.float32) for length in lengths])
    return audio, Manifest(Path(), {"path": [f"{i}.wav" for i in range(len(lengths))]})


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of torch; the store extracts as many files at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_a_store_holds_every_file_at_its_place(model: cpc.CPC, num_threads: int) -> None:
    audio, manifest = waves(4_000, 900, 3, 2_500)
    features = Features("c", model, chunk_seconds=0.05)
    store = FeatureStore.extract(features, manifest, audio, np.array([0, 2, 3]))
    assert torch.get_num_threads() == num_threads
    assert not store.is_memory_mapped
    assert store.num_too_short == 1
    for row in (0, 2, 3):
        np.testing.assert_allclose(store.file(row), features(audio.waves[row]), atol=1e-6)


def test_groups_are_of_like_length_and_bounded(model: cpc.CPC, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_FILES_TOGETHER", 3)
    monkeypatch.setattr(store_module, "MOST_FRAMES_TOGETHER", 100)
    rows, num_frames = np.arange(10, 17), np.array([5, 60, 7, 40, 101, 6, 4])
    assert store_module._groups(rows, num_frames, Features("c", model)) == [[14], [11], [13, 12], [15, 10, 16]]
    assert all(len(group) == 1 for group in store_module._groups(rows, num_frames, Features("z", model)))


def test_one_pass_serves_latents_and_contexts(model: cpc.CPC) -> None:
    audio, manifest = waves(4_000, 900)
    rows = np.arange(2)
    both = FeatureStore.extract(Features("zc", model), manifest, audio, rows)
    for kind in ("z", "c"):
        alone = FeatureStore.extract(Features(kind, model), manifest, audio, rows)
        np.testing.assert_allclose(both.part(kind), alone.values, atol=1e-6)
    with pytest.raises(ValueError, match="holds no 'mfcc'"):
        both.part("mfcc")


def test_a_memory_mapped_store_gives_identical_probes(
    model: cpc.CPC, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpc.probes.linear._BLOCK_ROWS", 64)  # several blocks, several groups
    monkeypatch.setattr("cpc.probes.linear._GROUP_BYTES", 4 * 10 * 64 * 2)
    task = Task("phones", manifest)
    audio = AudioFiles.from_manifest(manifest, 16000)
    probes = []
    for max_ram_bytes in (10**9, 0):
        store = FeatureStore.extract(
            Features("zc", model), manifest, audio, task.rows, max_ram_bytes=max_ram_bytes, scratch_dir=tmp_path
        )
        assert store.is_memory_mapped == (max_ram_bytes == 0)
        train = task.examples("train", store, "c")
        probes.append(fit_probe(train, 3, ProbeProtocol(min_steps=20, batch_size=50), seed=1))
    assert torch.equal(probes[0].weights[0], probes[1].weights[0])
    assert not list(tmp_path.iterdir())  # the file has no name, so nothing can be left behind


def test_half_precision_on_disk(model: cpc.CPC) -> None:
    audio, manifest = waves(4_000)
    features = Features("c", model)
    store = FeatureStore.extract(features, manifest, audio, np.arange(1), dtype="float16")
    assert store.values.dtype == np.float16
    np.testing.assert_allclose(store.values, features(audio.waves[0]), atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_that_are_not_finite_name_their_file(model: cpc.CPC, dtype: str) -> None:
    audio, manifest = waves(4_000, 4_000)
    audio.waves[1][:] *= np.nan if dtype == "float32" else 1e9
    with pytest.raises(ValueError, match=r"1\.wav: features 'z' are not finite"):
        FeatureStore.extract(Features("z", model), manifest, audio, np.arange(2), dtype=dtype)


def test_only_files_too_short(model: cpc.CPC) -> None:
    audio, manifest = waves(3, 3)
    with pytest.raises(ValueError, match="none of the 2 files is long enough"):
        FeatureStore.extract(Features("z", model), manifest, audio, np.arange(2))


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(
    model: cpc.CPC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda _: Usage)
    audio, manifest = waves(4_000)
    with pytest.raises(OSError, match="scratch_dir"):
        FeatureStore.extract(Features("z", model), manifest, audio, np.arange(1), max_ram_bytes=0, scratch_dir=tmp_path)
