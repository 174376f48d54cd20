"""The features of a corpus: in memory or in a file, the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

import cpc
from cpc.data import features as recording_features
from cpc.data.audio.probe_data import AudioProbeData
from cpc.data.features import Features, RecordingFeatures
from cpc.probes import Extraction, FeatureStore, Task, fit_probe
from cpc.probes import store as store_module


class Waves:
    sample_rate_hz = 16000

    def __init__(self, waves: list[np.ndarray]) -> None:
        self.waves = waves
        self.num_samples = np.array([len(wave) for wave in waves])

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        return self.waves[file_index][start : start + num_samples]


def waves(*lengths: int) -> Waves:
    rng = np.random.default_rng(0)
    return Waves([0.1 * rng.standard_normal(length, dtype=np.float32) for length in lengths])


def extract(features: Features, audio: Waves, rows: np.ndarray | None = None, **options: Any) -> FeatureStore:
    names = ["z", "c"] if features.kind == "zc" else [features.kind]
    rows = np.arange(len(audio.waves)) if rows is None else rows
    extractor = RecordingFeatures(names, features, audio)
    return FeatureStore.extract(extractor, rows, "{}.wav".format, Extraction(**options))


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest, set_num_threads: Callable[[int], None]) -> int:
    """Of torch; the store extracts as many files at a time."""
    set_num_threads(request.param)
    return request.param


def test_a_store_holds_every_file_at_its_place(model: cpc.CPC, num_threads: int) -> None:
    audio = waves(4_000, 900, 3, 2_500)
    features = Features("c", model, chunk_seconds=0.05)
    store = extract(features, audio, np.array([0, 2, 3]))
    assert torch.get_num_threads() == num_threads
    assert not isinstance(store.values["c"], np.memmap)
    assert store.num_empty == 1
    for row in (0, 2, 3):
        np.testing.assert_allclose(store.values["c"][store.span(row)], features(audio.waves[row]), atol=1e-6)


def test_groups_are_of_like_length_and_bounded(model: cpc.CPC, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_features, "MOST_FILES_TOGETHER", 3)
    monkeypatch.setattr(recording_features, "MOST_FRAMES_TOGETHER", 100)
    rows, num_frames = np.arange(10, 17), np.array([5, 60, 7, 40, 101, 6, 4])
    audio = waves(*[0] * 10, *(160 * num_frames + 100))
    groups = {kind: RecordingFeatures([kind], Features(kind, model), audio).groups(rows) for kind in ("c", "z")}
    assert [group.tolist() for group in groups["c"]] == [[14], [11], [13, 12], [15, 10, 16]]
    assert all(len(group) == 1 for group in groups["z"])


def test_one_pass_serves_latents_and_contexts(model: cpc.CPC) -> None:
    audio = waves(4_000, 900)
    both = extract(Features("zc", model), audio)
    for kind in ("z", "c"):
        alone = extract(Features(kind, model), audio)
        np.testing.assert_allclose(both.values[kind], alone.values[kind], atol=1e-6)


def test_a_memory_mapped_store_gives_identical_probes(
    model: cpc.CPC, audio: Callable[..., AudioProbeData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    task = Task("phones", audio())
    extractor = task.probe_data.feature_extractor(["z", "c"], model)
    probes = []
    for max_ram_gb in (1.0, 0.0):
        extraction = Extraction(max_ram_gb=max_ram_gb, progress=False)
        store = FeatureStore.extract(extractor, task.rows, task.probe_data.name, extraction)
        assert all(isinstance(values, np.memmap) == (max_ram_gb == 0) for values in store.values.values())
        train = task.examples("train", store, "c")
        probes.append(fit_probe(train, 3))
    assert torch.equal(probes[0].weight, probes[1].weight)
    assert not list(tmp_path.iterdir())  # the file has no name, so nothing can be left behind


@pytest.mark.filterwarnings("ignore:the input, standardised")  # it is a billion times too large
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_that_are_not_finite_name_their_file(model: cpc.CPC, dtype: str) -> None:
    audio = waves(4_000, 4_000)
    audio.waves[1][:] *= np.nan if dtype == "float32" else 1e9
    refuses(r"1\.wav: features 'z' are not finite", extract, Features("z", model), audio, dtype=dtype)


def test_only_files_too_short(model: cpc.CPC) -> None:
    audio = waves(3, 3)
    refuses(r"2 observations, such as 0\.wav, are too short", extract, Features("z", model), audio)


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(
    model: cpc.CPC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda _: Usage)
    audio = waves(4_000)
    with pytest.raises(OSError, match="TMPDIR"):
        extract(Features("z", model), audio, max_ram_gb=0.0)
