import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from cpc.data.audio.index import index_folder
from cpc.data.audio.manifest import Manifest
from cpc.data.audio.pack import pack
from cpc.data.recordings.windows import WindowDataset, initialisation_windows
from cpc.data.streams.uniform import UniformBatches

LENGTHS = [5000, 300, 1000, 12345, 999, 2048]
WINDOW = 1000


def level_of(file: int) -> float:
    return 0.1 * (file + 1)


def samples_of(file: int) -> np.ndarray:
    """Noise around a level that only this file has: a sample says where it comes from."""
    return level_of(file) + np.random.default_rng(file).uniform(-0.02, 0.02, LENGTHS[file])


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    root = tmp_path_factory.mktemp("levels")
    for file in range(len(LENGTHS)):
        soundfile.write(root / f"{file}.wav", samples_of(file), 16000, subtype="FLOAT")
    return index_folder(root, progress=False)


@pytest.fixture
def audio(manifest: Manifest) -> object:
    return pack(manifest, 16000, progress=False)


def test_no_window_crosses_files_and_all_are_of_exact_length(audio: object) -> None:
    dataset = WindowDataset(audio, WINDOW)
    batches = UniformBatches(**dataset.draws, batch_size=8, seed=0)
    drawn = set()
    for windows in map(batches.batch, range(40)):
        batch = dataset.__getitems__(windows)
        assert batch.x.shape == (8, WINDOW)
        assert batch.x.dtype == torch.float32
        for (file, start), x, num_valid, sequence_id in zip(
            windows, batch.x, batch.num_valid, batch.sequence_id, strict=True
        ):
            assert sequence_id == file
            assert num_valid == min(WINDOW, LENGTHS[file])
            assert (x[:num_valid] - level_of(file)).abs().max() < 0.021
            assert not x[num_valid:].any()
            np.testing.assert_allclose(x[:num_valid], samples_of(file)[start : start + WINDOW], atol=1.1 / 65536)
            drawn.add(file)
    assert drawn == set(range(len(LENGTHS)))


def test_one_by_one_equals_all_at_once(audio: object) -> None:
    dataset = WindowDataset(
        audio, WINDOW, group_ids=np.array([3, 1, 4, -1, 5, 9]), labels=lambda *a: np.array(a), num_latents=3
    )
    windows = [(3, 17), (1, 0), (3, 500), (0, 4000)]
    at_once = dataset.__getitems__(windows)
    one_by_one = [dataset.__getitems__([window]) for window in windows]
    assert at_once.target is None  # nothing was changed
    assert at_once.is_known is None  # no sample is missing
    for name in ("x", "num_valid", "sequence_id", "group_id", "labels"):
        expected = torch.cat([getattr(batch, name) for batch in one_by_one])
        torch.testing.assert_close(getattr(at_once, name), expected, rtol=0, atol=0)
    assert at_once.num_valid.tolist() == [1000, 300, 1000, 1000]
    assert at_once.sequence_id.tolist() == [3, 1, 3, 0]
    assert at_once.group_id.tolist() == [-1, 1, -1, 3]
    # labels are asked for by (file, start, num_latents)
    assert at_once.labels.tolist() == [[3, 17, 3], [1, 0, 3], [3, 500, 3], [0, 4000, 3]]


def test_without_labels_and_groups(audio: object) -> None:
    batch = WindowDataset(audio, WINDOW, sequence_ids=np.arange(6) + 100).__getitems__([(0, 0), (5, 1000)])
    assert batch.labels.shape == (2, 0)
    assert batch.labels.dtype == batch.group_id.dtype == batch.sequence_id.dtype == batch.num_valid.dtype == torch.int64
    assert batch.group_id.tolist() == [-1, -1]
    assert batch.sequence_id.tolist() == [100, 105]


def test_a_window_at_the_end_of_a_file_is_padded(audio: object) -> None:
    dataset = WindowDataset(audio, WINDOW)
    inside, beyond = (dataset.__getitems__([window]) for window in ((2, 0), (3, LENGTHS[3] - 400)))
    assert inside.num_valid == WINDOW
    assert beyond.num_valid == 400
    assert not beyond.x[0, 400:].any()
    assert beyond.x[0, :400].all()


def test_initialisation_windows_are_all_signal_and_come_from_every_file_long_enough(audio: object) -> None:
    x = initialisation_windows(audio, WINDOW, 32, seed=3)
    assert x.shape == (32, WINDOW)
    assert x.dtype == torch.float32
    levels = x.mean(1) / 0.1 - 1
    assert set(levels.round().int().tolist()) == {file for file, length in enumerate(LENGTHS) if length >= WINDOW}
    assert (x - 0.1 * (levels.round() + 1)[:, None]).abs().max() < 0.021  # no zeros of padding
    assert torch.equal(x, initialisation_windows(audio, WINDOW, 32, seed=3))
    assert not torch.equal(x, initialisation_windows(audio, WINDOW, 32, seed=4))


def test_initialisation_windows_are_drawn_as_training_draws_them_where_every_file_is_long_enough(audio: object) -> None:
    windows = UniformBatches(**WindowDataset(audio, 250).draws, batch_size=32, seed=5).batch(0)
    assert torch.equal(
        initialisation_windows(audio, 250, 32, seed=5), WindowDataset(audio, 250).__getitems__(windows).x
    )


def test_initialisation_windows_of_short_files_are_as_long_as_the_median_file(audio: object) -> None:
    x = initialisation_windows(audio, 20000, 16, seed=0)
    assert x.shape == (16, int(np.median(LENGTHS)))
    assert (x > 0.05).all()
    silent = SimpleNamespace(num_samples=np.zeros(3, np.int64), sample_rate_hz=16000, read=print)
    with pytest.raises(ValueError, match="none of the 3 recordings holds a sample"):
        initialisation_windows(silent, 1000, 16, seed=0)


def test_arguments_that_do_not_fit(audio: object) -> None:
    with pytest.raises(ValueError, match="group_ids has 2 entries for 6 recordings"):
        WindowDataset(audio, WINDOW, group_ids=np.array([0, 1]))
    with pytest.raises(ValueError, match="sequence_ids has 7 entries"):
        WindowDataset(audio, WINDOW, sequence_ids=np.arange(7))
    with pytest.raises(ValueError, match="num_latents=0"):
        WindowDataset(audio, WINDOW, labels=lambda *a: np.array(a))
    with pytest.raises(ValueError, match="window_samples=0"):
        WindowDataset(audio, 0)


@pytest.mark.slow
def test_windows_come_ten_thousand_times_faster_than_real_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(40):
        soundfile.write(tmp_path / f"{number}.wav", 0.1 * rng.standard_normal(160000), 16000)
    audio = pack(index_folder(tmp_path, progress=False), 16000, progress=False)
    dataset = WindowDataset(audio, 20480)
    draws = dataset.draws
    batches = list(map(UniformBatches(**draws, batch_size=8, seed=0).batch, range(500)))
    best = np.inf
    for _ in range(5):
        begin = time.perf_counter()
        for windows in batches:
            dataset.__getitems__(windows)
        best = min(best, time.perf_counter() - begin)
    assert 500 * 8 * 1.28 / best > 10_000
