"""Windows of episodes: none leaves its episode, the same draws give the same frames."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from cpc.data.frames.corpus import FrameCorpus, Recording
from cpc.data.frames.modality import Frames
from cpc.data.streams.stream import check_same_batches
from cpc.encoders import FrameEncoder


@pytest.fixture
def corpus(recording: Recording) -> FrameCorpus:
    return FrameCorpus(recording.folder.parent, window_frames=10, stack=2)


def test_windows_are_slices_of_one_episode(corpus: FrameCorpus) -> None:
    windows = corpus.windows("train")
    stream = corpus.batches(windows, "uniform", 8, seed=0)
    for index in range(20):
        drawn = stream.batch(index)
        batch = windows.__getitems__(drawn)
        assert batch.x.shape == (8, 10, 2, 12, 8)
        for x, row, (_, start) in zip(batch.x, batch.sequence_id.tolist(), drawn, strict=True):
            assert corpus.recording.splits[row] == "train"
            assert 0 <= start <= corpus.recording.lengths[row] - 10
            frames = corpus.recording.read(row)
            np.testing.assert_array_equal(x[:, 1], frames[start : start + 10])
            np.testing.assert_array_equal(x[1:, 0], x[:-1, 1])


def test_episodes_of_like_length_that_show_something_else_are_other_data(tmp_path: Path, corpus: FrameCorpus) -> None:
    shutil.copytree(corpus.recording.folder.parent, tmp_path / "copy")
    same = FrameCorpus(tmp_path / "copy", window_frames=10, stack=2)
    saved = corpus.windows("train").draws["made_from"]
    check_same_batches(saved, same.windows("train").draws["made_from"])
    table = np.load(tmp_path / "copy" / "frames" / "rows.npy")
    table[corpus.recording.rows("train")[1], 2] += 3  # the sum of its pixels
    np.save(tmp_path / "copy" / "frames" / "rows.npy", table)
    refuses("other content of episodes", check_same_batches, saved, same.windows("train").draws["made_from"])


def test_an_episode_shorter_than_a_window_is_padded(recording: Recording) -> None:
    corpus = FrameCorpus(recording.folder.parent, window_frames=50, stack=1)
    windows = corpus.windows("train")
    batch = windows.__getitems__([(0, 0), (1, 0)])
    assert batch.num_valid.tolist() == windows.lengths[:2].tolist()
    assert not batch.x[0, int(windows.lengths[0]) :].any()


def test_bad_input(recording: Recording, tmp_path: Path) -> None:
    source = str(recording.folder.parent)
    encoder = FrameEncoder((12, 8), 4, widths=(4,), kernels=(3,), strides=(2,))
    assert Frames(source=source).open(encoder).stacks.shape == (1, 12, 8)
    refuses(r"frames of 1 x 12 x 8 pixels, but .* are 2 x 12 x 8", Frames(source=source, stack=2).open, encoder)
    refuses("holds no recorded episodes", Frames(source=str(tmp_path)).open, encoder)
    refuses(r"no episode is of split 'dev'; the splits are test, train, valid", FrameCorpus(source, 10, 1).check, "dev")
    refuses("episodes have no speakers", FrameCorpus(source, 10, 1).check, "train", needs_speakers=True)
    for options in ({"cache_dir": str(tmp_path)}, {"skip_bad": True}):
        with pytest.raises(ValueError, match="recordings are not"):
            Frames(source=source, **options)  # type: ignore[arg-type]
