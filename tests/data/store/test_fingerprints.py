import json

import numpy as np
import pytest
from refusals import refuses

from cpc.data.store import fingerprints
from cpc.data.store.fingerprints import fingerprint_record, merged, num_shared


def content(*ids: int) -> np.ndarray:
    """Rows of a length and sums, one per observation."""
    return np.array([[100 + i, 7 * i, i * i] for i in ids], np.int64).reshape(-1, 3)


def test_shared_observations_are_counted() -> None:
    record = json.loads(json.dumps(fingerprint_record(content(*range(50)))))
    assert record["num_observations"] == 50
    assert num_shared(content(3, 49, 50, 1000), record) == (2, 4)
    assert num_shared(content(), record) == (0, 0)
    assert num_shared(content(0), fingerprint_record(content())) == (0, 1)
    record = fingerprint_record(np.array([[0, 0, 0], [100, 5, 6]]))  # a skipped file is no observation
    assert record["num_observations"] == 1
    assert num_shared(np.array([[0, 0, 0], [100, 5, 7], [101, 5, 6], [100, 6, 5], [100, 5, 6]]), record) == (1, 5)


def test_a_sample_is_compared_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "MOST", 100)
    record = fingerprint_record(content(*range(1000)))
    shared, compared = num_shared(content(*range(500), *range(5000, 5500)), record)
    # A tenth of 1000 observations, half of which are shared: binomial, here within four standard deviations.
    assert abs(compared - 100) < 40
    assert abs(shared - 50) < 28
    assert num_shared(content(*range(1000)), record) == (100, 100)


def test_damaged_records_are_refused() -> None:
    for record in ({}, {"num_observations": "1", "fingerprints": ""}, {"fingerprints": ""}):
        refuses(r"config\.json has damaged fingerprints", num_shared, content(1), record)
    for damaged in (7, "no base64", "AAAA"):
        record = {"num_observations": 1, "fingerprints": damaged}
        refuses(r"config\.json has damaged fingerprints", num_shared, content(1), record)


@pytest.mark.parametrize("most", [20, 100, 10_000])
def test_merged_is_the_record_of_both(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(fingerprints, "MOST", most)
    first, second = content(*range(70)), content(*range(200, 500))
    both = merged(fingerprint_record(first), fingerprint_record(second))
    whole = fingerprint_record(np.concatenate([first, second]))
    assert both["num_observations"] == whole["num_observations"] == 370
    tested = content(*range(0, 500, 3))
    shared, compared = num_shared(tested, both)
    is_shared = np.isin(np.arange(0, 500, 3), [*range(70), *range(200, 500)])
    if most > 370:
        assert (shared, compared) == (is_shared.sum(), len(tested))
    else:  # a sample: all that are compared and shared are found
        assert shared == sum(num_shared(content(i), both) == (1, 1) for i in np.arange(0, 500, 3)[is_shared].tolist())
        assert 0 < compared < len(tested)
    assert merged(both) == both
    assert merged() == {}
