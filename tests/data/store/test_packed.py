import pickle
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from cpc.data.store.packed import PackedRows, RowSource, pack_rows

RNG = np.random.default_rng(0)
ROWS = [RNG.integers(-(10**5), 10**5, (length, 3)).astype("<i4") for length in (5, 0, 17, 4, 9)]


class Tokens(RowSource):
    """Rows of triples of any length; the fourth is damaged halfway, the last promises more than it holds."""

    noun, dtype, shape = "row", "<i4", (3,)

    def __init__(self) -> None:
        self.about = {"origin": "a test"}

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        return [5, "row 1: is missing", 17, 4, 20]

    def decoding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def decode(self, row: int) -> Iterator[np.ndarray]:
        yield ROWS[row][:2]
        if row == 3:
            raise ValueError("row 3: is damaged")
        yield ROWS[row][2:]


def test_rows_of_any_type_shape_and_length(tmp_path: Path) -> None:
    options = {"skip_bad": True, "num_workers": 2, "progress": False}
    with pytest.raises(ValueError, match=r"2 of 5 rows cannot be used:\n  row 1: is missing\n  row 3: is damaged"):
        pack_rows(Tokens(), tmp_path / "pack", PackedRows, **(options | {"skip_bad": False}))
    with pytest.warns(UserWarning, match="went on without 2 of 5 rows"):
        packed = pack_rows(Tokens(), tmp_path / "pack", PackedRows, **options)
    assert packed.lengths.tolist() == [5, 0, 17, 0, 9]
    assert packed.skipped == {1: "row 1: is missing", 3: "row 3: is damaged"}
    chosen = pickle.loads(pickle.dumps(packed.subset([4, 3, 0])))
    assert chosen.skipped == {1: "row 3: is damaged"}
    for row, offset, length in zip((4, 0), chosen._offsets[[0, 2]], chosen.lengths[[0, 2]], strict=True):
        np.testing.assert_array_equal(chosen.elements[offset : offset + length], ROWS[row])
    values = np.concatenate([ROWS[4], ROWS[0]]) / 10
    np.testing.assert_allclose(chosen.statistics_over(10).mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(chosen.statistics_over(10).std, values.std(axis=0), rtol=1e-12)
