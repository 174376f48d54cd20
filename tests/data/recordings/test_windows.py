"""Windows of audio and of signals, against the arrays that were written."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
import torch
from refusals import refuses

from cpc.data import UniformBatches, index_folder
from cpc.data.audio.pack import pack
from cpc.data.recordings.windows import WindowDataset, unpadded_samples
from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import read_recordings

LENGTHS = [5000, 300, 1000, 12345, 999, 2048]
WINDOW = 1000


class Source(NamedTuple):
    samples: Any
    arrays: list[np.ndarray]
    rounding: float


def level_of(recording: int) -> float:
    return 0.1 * (recording + 1)


def noise(recording: int, *channels: int) -> np.ndarray:
    """Noise around a level that only this recording has: a sample says where it comes from."""
    size = (LENGTHS[recording], *channels)
    return level_of(recording) + np.random.default_rng(recording).uniform(-0.02, 0.02, size)


@pytest.fixture(scope="module", params=["audio", "signals"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("levels")
    if request.param == "audio":
        arrays = [noise(recording) for recording in range(len(LENGTHS))]
        for recording, array in enumerate(arrays):
            soundfile.write(root / f"{recording}.wav", array, 16000, subtype="FLOAT")
        return Source(pack(index_folder(root, progress=False), 16000, progress=False), arrays, 1.1 / 65536)
    arrays = [noise(recording, 2) for recording in range(len(LENGTHS))]
    np.savez(root / "x.npz", x=np.concatenate(arrays), length=LENGTHS, sample_rate_hz=50.0)
    return Source(pack_signals(read_recordings(root / "x.npz"), progress=False), arrays, 1e-7)


def test_no_window_crosses_recordings_and_all_are_of_exact_length(source: Source) -> None:
    dataset = WindowDataset(source.samples, WINDOW)
    batches = UniformBatches(**dataset.draws, batch_size=8, seed=0)
    drawn = set()
    for windows in map(batches.batch, range(40)):
        batch = dataset.__getitems__(windows)
        assert batch.x.shape == (8, WINDOW, *source.arrays[0].shape[1:])
        assert batch.x.dtype == torch.float32
        assert dataset.num_valid(windows).tolist() == batch.num_valid.tolist()
        for (row, start), x, num_valid, sequence_id in zip(
            windows, batch.x, batch.num_valid, batch.sequence_id, strict=True
        ):
            assert sequence_id == row
            assert num_valid == min(WINDOW, LENGTHS[row])
            expected = source.arrays[row][start : start + WINDOW]
            np.testing.assert_allclose(x[:num_valid], expected, atol=source.rounding)
            padding = x[num_valid:]
            assert padding.isnan().all() if x.ndim > 1 else not padding.any()
            drawn.add(row)
    assert drawn == set(range(len(LENGTHS)))


def test_windows_of_some_recordings_one_by_one_and_at_once(source: Source) -> None:
    rows = np.array([0, 1, 3])
    dataset = WindowDataset(
        source.samples, WINDOW, rows, group_ids=np.array([3, 1, -1]), labels=lambda *a: np.array(a), num_latents=3
    )
    windows = [(2, 17), (1, 0), (2, 500), (0, 4000)]
    at_once = dataset.__getitems__(windows)
    one_by_one = [dataset.__getitems__([window]) for window in windows]
    assert at_once.target is None  # nothing was changed
    assert at_once.is_known is None  # no sample is missing
    for name in ("x", "num_valid", "sequence_id", "group_id", "labels"):
        expected = torch.cat([getattr(batch, name) for batch in one_by_one])
        torch.testing.assert_close(getattr(at_once, name), expected, rtol=0, atol=0, equal_nan=True)
    assert at_once.num_valid.tolist() == [1000, 300, 1000, 1000]
    assert at_once.sequence_id.tolist() == [3, 1, 3, 0]
    assert at_once.group_id.tolist() == [-1, 1, -1, 3]
    # labels are asked for by (row, start, num_latents)
    assert at_once.labels.tolist() == [[3, 17, 3], [1, 0, 3], [3, 500, 3], [0, 4000, 3]]


def test_a_window_that_begins_near_the_end_is_padded(source: Source) -> None:
    dataset = WindowDataset(source.samples, WINDOW)
    inside, beyond = (dataset.__getitems__([window]) for window in ((2, 0), (3, LENGTHS[3] - 400)))
    assert inside.num_valid == WINDOW
    assert beyond.num_valid == 400
    assert not beyond.x[0, 400:].nan_to_num().any()
    assert beyond.x[0, :400].all()


def test_initialisation_windows_are_all_signal_and_come_from_every_recording_long_enough(source: Source) -> None:
    dataset = WindowDataset(source.samples, WINDOW)
    x = dataset.initialisation(32, seed=3)
    assert x.shape == (32, WINDOW, *source.arrays[0].shape[1:])
    assert x.dtype == torch.float32
    levels = x.flatten(1).mean(1) / 0.1 - 1
    assert set(levels.round().int().tolist()) == {row for row, length in enumerate(LENGTHS) if length >= WINDOW}
    assert (x.flatten(1) - 0.1 * (levels.round() + 1)[:, None]).abs().max() < 0.021  # no zeros of padding
    assert torch.equal(x, dataset.initialisation(32, seed=3))
    assert not torch.equal(x, dataset.initialisation(32, seed=4))


def test_initialisation_windows_of_short_recordings_are_as_long_as_the_median(source: Source) -> None:
    window_samples = unpadded_samples(source.samples.num_samples, 20000)
    assert window_samples == int(np.median(LENGTHS))
    assert (WindowDataset(source.samples, window_samples).initialisation(16, seed=0) > 0.05).all()
    silent = WindowDataset(SimpleNamespace(num_samples=np.zeros(3, np.int64), read=print), 1000)
    refuses("none of the 3 recordings holds a sample", silent.initialisation, 16, seed=0)


def test_arguments_that_do_not_fit(source: Source) -> None:
    refuses("group_ids has 2 entries for 6", WindowDataset, source.samples, WINDOW, group_ids=np.array([0, 1]))
    refuses("num_latents=0", WindowDataset, source.samples, WINDOW, labels=lambda *a: np.array(a))
    refuses("window_samples=0", WindowDataset, source.samples, 0)
