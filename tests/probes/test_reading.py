"""What probes read of features, against loops over single vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpc.data.probe_data import FeatureExtractor, ProbeData
from cpc.probes.reading import Reading
from cpc.probes.report import probe
from cpc.probes.store import FeatureStore

ROWS, NUM_VECTORS, SPEAKER = np.array([2, 5, 6]), np.array([4, 1, 3]), np.array([9, 9, 0, 9, 9, 1, 0])
VALUES = np.random.default_rng(0).normal(3, 5, size=(8, 2)).astype(np.float32)
ROW_OF = np.repeat(ROWS, NUM_VECTORS)


class Corpus(ProbeData):
    splits = ("train",) * 7
    several_vectors = True

    def units(self, kind: str, task: str) -> np.ndarray:
        return SPEAKER if kind == "speaker" else np.arange(7)

    def labels(self, *_: Any) -> Any: ...
    def feature_extractor(self, *_: Any) -> Any: ...
    def find_files(self, *_: Any) -> Any: ...


class Nothing(FeatureExtractor):
    def read(self, *_: Any) -> Any: ...


def read(**options: Any) -> np.ndarray:
    store = FeatureStore(Nothing(), ROWS, NUM_VECTORS, {"c": VALUES})
    found = Reading(**options).change(store, Corpus(), "phones")
    assert [found.span(row) for row in ROWS.tolist()] == [store.span(row) for row in ROWS.tolist()]
    np.testing.assert_array_equal(store.values["c"], VALUES)
    return found.values["c"]


@pytest.mark.parametrize("unit", ["speaker", "recording"])
def test_the_vectors_of_a_unit_have_mean_zero_and_deviation_one(unit: str) -> None:
    of = SPEAKER[ROW_OF] if unit == "speaker" else ROW_OF
    expected = np.zeros((8, 2))
    for i in range(8):
        same = VALUES[of == of[i]].astype(np.float64)
        deviation = np.sqrt(((same - same.sum(0) / len(same)) ** 2).sum(0) / len(same))
        expected[i] = (VALUES[i] - same.sum(0) / len(same)) / np.maximum(deviation, 1e-5)  # a unit may have one vector
    np.testing.assert_allclose(read(normalise=unit), expected, atol=1e-5)


def test_neighbours_are_those_of_the_observation() -> None:
    found = read(frames_around=2)
    for i in range(8):
        (same,) = np.nonzero(ROW_OF == ROW_OF[i])
        around = [VALUES[min(max(i + step, same[0]), same[-1])] for step in (-2, -1, 0, 1, 2)]
        np.testing.assert_array_equal(found[i], np.concatenate(around))
    both = read(normalise="speaker", frames_around=1)
    np.testing.assert_array_equal(both[:, 2:4], read(normalise="speaker"))


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_every_probe_of_a_report_reads_alike(model_folder: Path, corpus_folder: Path, tmp_path: Path) -> None:
    def results(**reading: Any) -> tuple[Any, Any]:
        options: dict[str, Any] = {"features": ["c", "mfcc"], "baselines": ["random", "supervised"], "l2": 1.0}
        options |= {"supervised": {"seconds": None, "num_steps": 2}, **reading}
        report = probe(model_folder, corpus_folder, "phones", **options, out=tmp_path / "probe.json")
        found = report["tasks"]["phones"]["results"]
        return report["protocol"]["probe"], {name: each["cross_entropy_nats"] for name, each in found.items()}

    (_, plain), (_, normalised) = results(), results(normalise="speaker")
    protocol, around = results(normalise="speaker", frames_around=1)
    assert protocol == {"l2": 1.0, "normalise": "speaker", "frames_around": 1}
    for name in ("cpc", "mfcc", "random", "supervised"):
        assert len({plain[name], normalised[name], around[name]}) == 3


def test_networks_are_read_with_the_statistics_of_probes(
    model_folder: Path, corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curve trains networks on few rows, but the mean of a recording or a speaker is that of all rows."""
    change, rows = Reading.change, []

    def recorded(self: Reading, store: FeatureStore, *where: Any) -> FeatureStore:
        rows.append(list(store.rows))
        return change(self, store, *where)

    monkeypatch.setattr(Reading, "change", recorded)
    network: dict[str, Any] = {"supervised": {"seconds": None, "num_steps": 2}, "label_shares": [0.5], "pool": "mean"}
    probe(
        model_folder,
        corpus_folder,
        "speaker",
        features=["c"],
        baselines=["supervised"],
        normalise="recording",
        l2=1.0,
        **network,
    )
    assert len(rows) == 3  # c, the network with all labels, and with half of them
    assert rows[0] == rows[1] == rows[2]


def test_units_that_do_not_exist(model_folder: Path, corpus_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"`normalise`=speaker, .* unknown, or is the task"):
        probe(model_folder, corpus_folder, "speaker", normalise="speaker", features=["c"], baselines=[])
