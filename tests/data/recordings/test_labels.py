"""Labels as codes of samples, against a loop over samples."""

import pickle

import numpy as np
import pytest

from cpc.data.recordings.labels import (
    RecordingLabels,
    Segment,
    labels_of_recordings,
    labels_of_segments,
    runs_of_samples,
)

RATE_HZ, NUM_SAMPLES = 8.0, 60


def looped(segments: list[Segment], classes: list[str]) -> list[int]:
    """Each sample has the last segment, by its start, that begins at or before it and ends after it."""
    codes = [-1] * NUM_SAMPLES
    for start, end, label in sorted(segments, key=lambda segment: segment[0]):
        for sample in range(NUM_SAMPLES):
            is_mark = start == end and round(start * RATE_HZ) == sample
            if is_mark or start <= sample / RATE_HZ < end:
                codes[sample] = classes.index(label)
    return codes


@pytest.mark.parametrize("seed", range(5))
def test_segments_that_overlap_and_marks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for num in (0, 1, 12):
        starts = rng.integers(-8, 80, num) / 10
        lengths = rng.choice([0, 0.1, 0.4, 2.3], num)
        rows.append(
            [Segment(*each) for each in zip(starts, starts + lengths, rng.choice(list("abc"), num), strict=True)]
        )
    labels = labels_of_segments(rows, [RATE_HZ] * 3)
    assert labels.vary_within
    for row, segments in enumerate(rows):
        expected = looped(segments, list(labels.classes))
        assert labels.codes(row, 0, NUM_SAMPLES).tolist() == expected
        assert labels.codes(row, 13, 20).tolist() == expected[13:33]


def test_samples_and_whole_recordings() -> None:
    codes = [np.array([2, 2, -7, 0, 0, 1]), np.array([], int)]
    labels = RecordingLabels((["a", "b", "c"], list(map(runs_of_samples, codes))))
    assert labels.codes(0, 1, 7).tolist() == [2, -1, 0, 0, 1, -1, -1]  # none after the end
    assert labels.codes(1, 0, 2).tolist() == [-1, -1]
    whole = pickle.loads(pickle.dumps(labels_of_recordings(["10", "", "9"])))
    assert not whole.vary_within
    assert list(whole.classes) == ["9", "10"]
    assert [whole.codes(row, 5, 2).tolist() for row in range(3)] == [[1, 1], [-1, -1], [0, 0]]
