"""A modality of a user's own, sequences of vectors with a label each: probed and embedded through `Readouts` alone."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cpc
from cpc.contexts import GRU
from cpc.data.readouts import FrontEnd, Labels, Readouts
from cpc.data.store.folders import find_files
from cpc.encoders import VectorEncoder
from cpc.predictors import Bilinear
from cpc.probes import Extraction, ProbeProtocol, format_report, probe_report
from cpc.probes.embed import embed


class VectorFrontEnd(FrontEnd):
    def __init__(self, features: Sequence[str], model: Any, sequences: list[np.ndarray]) -> None:
        self.model, self.sequences = model, sequences
        self.dims = {name: {"z": model.encoder.dim, "c": model.context.dim}[name] for name in features}

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        return np.array([len(self.sequences[row]) for row in rows])

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for row in rows.tolist():
            yield row, self._features(self.sequences[row])

    def of_file(self, path: Path) -> np.ndarray:
        return next(iter(self._features(np.load(path)).values()))

    @torch.no_grad()
    def _features(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        latents, contexts, *_ = self.model(torch.from_numpy(vectors)[None])
        return {name: {"z": latents, "c": contexts}[name][0].numpy() for name in self.dims}


class VectorReadouts(Readouts):
    unit, several_vectors = "sequence", True

    def __init__(self, folder: Path | None, **where: Any) -> None:
        super().__init__(**where)
        files = sorted(folder.glob("*.npy")) if folder else []
        self.sequences = [np.load(file) for file in files]
        self.kinds, self.own_splits = [[file.stem.split("-")[i] for file in files] for i in (1, 0)]

    @property
    def splits(self) -> Sequence[str]:
        return self.own_splits

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        return Labels({row: self.kinds[row] for row in rows.tolist()})

    def front_end(self, features: Sequence[str], model: Any = None) -> FrontEnd:
        return VectorFrontEnd(features, model, self.sequences)

    def find_files(self, folder: Path) -> list[str]:
        return find_files(folder, (".npy",), "vectors")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(40):
        split, kind = ("train", "test")[number % 2], ("up", "down")[number // 2 % 2]
        vectors = rng.standard_normal((5 + number % 4, 3)) + {"up": 1, "down": -1}[kind]
        (tmp_path / "corpus").mkdir(exist_ok=True)
        np.save(tmp_path / "corpus" / f"{split}-{kind}-{number}.npy", vectors.astype(np.float32))
    return tmp_path / "corpus"


def test_it_is_probed_and_embedded(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_vectors(config: Any, model: Any, source: Path | None, **where: Any) -> VectorReadouts:
        return VectorReadouts(source, **{name: where[name] for name in ("train_split", "device") if name in where})

    for module in ("report", "embed"):
        monkeypatch.setattr(f"cpc.probes.{module}.open_readouts", open_vectors)
    model = cpc.CPC(VectorEncoder(3), GRU(4), Bilinear(2))
    cpc.save_pretrained(model, tmp_path / "model")
    options: dict[str, Any] = {"protocol": ProbeProtocol(min_steps=50), "extraction": Extraction(progress=False)}
    baselines = ("majority", "random", "neighbours")
    report = probe_report(tmp_path / "model", corpus, "kind", baselines=baselines, label_shares=(0.2, 1.0), **options)
    task = report["tasks"]["kind"]
    assert list(task["results"]) == ["cpc", "neighbours", "cpc_z", "random", "random_z", "majority"]
    assert task["results"]["cpc_z"]["accuracy_percent"] > 90
    assert task["label_efficiency"]["num_labels"] == [4, 20]
    assert "kind: 2 classes, split train (20 sequences) -> test (20), mean over the sequence" in format_report(report)
    frames = probe_report(tmp_path / "model", corpus, "kind", pool="frames", baselines=(), **options)
    assert frames["tasks"]["kind"]["results"]["cpc"]["num_train"] == sum(5 + n % 4 for n in range(0, 40, 2))
    with pytest.raises(ValueError, match="legal are majority, random, neighbours"):
        probe_report(tmp_path / "model", corpus, "kind", baselines=("supervised",), **options)

    written = embed(tmp_path / "model", [corpus], tmp_path / "out", "z", progress=False)
    assert len(written) == 40
    with torch.no_grad():
        latents = model.encoder(torch.from_numpy(np.load(corpus / written[0].name))[None])[0]
    np.testing.assert_allclose(np.load(written[0]), latents, atol=1e-6)
    sidecar = json.loads(written[0].with_suffix(".json").read_text())
    assert (sidecar["features"], sidecar["dim"]) == ("z", model.encoder.dim)
