"""A user's modality in one file, for sequences of vectors: trained, evaluated and probed by the real commands."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from jaxtyping import Int
from shown import blocks
from torch import Tensor

from cpc.checkpoint import load_pretrained, read_config
from cpc.cli import main
from cpc.data.batch import Batch
from cpc.data.map_style import MapStyleCorpus, MapStyleModality
from cpc.data.probe_data import FeatureExtractor, Labels, ProbeData
from cpc.data.store.atomic import read_records
from cpc.data.store.folders import find_files
from cpc.evaluation import recorded_data
from cpc.quickstart.recipe import part

PACKAGE = __name__.partition(".")[0]
NUM_WALKS, LENGTH, DIM = 60, 12, 3
SPLITS = ["train"] * 40 + ["valid"] * 10 + ["test"] * 10


@dataclass(kw_only=True)
class Walks(MapStyleModality):
    """Random walks that drift up or down.

    Args:
        source: an npz file with `walks`, `[n, T, I]`, `split` and `drift`.
        noise: standard deviation of the noise that is added in training.
    """

    name = "vectors"
    unit = "walks"
    local_options: ClassVar[tuple[str, ...]] = (*MapStyleModality.local_options, "noise")

    source: str
    noise: float = 0.0

    def open(self, encoder: Any, *, is_training: bool = False) -> "WalkCorpus":
        return WalkCorpus(self.source, self.noise)

    def class_names(self, corpus: Any, task: str) -> list[str]:
        """Return the classes of the only task, the direction of the drift."""
        return ["down", "up"]

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> "WalkProbeData":
        return WalkProbeData(corpus, **where)


class WalkCorpus(MapStyleCorpus):
    """The walks of a file."""

    def __init__(self, source: str, noise: float) -> None:
        self.noise = noise
        with np.load(source) as arrays:
            self.walks, self.split, self.drift = (arrays[name] for name in ("walks", "split", "drift"))

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Refuse a split without walks."""
        for split in splits:
            if split not in self.split:
                raise ValueError(f"there are no walks of split {split!r}, only of {', '.join(set(self.split))}")

    def statistics(self, split: str | None) -> tuple[float, float]:
        walks = self.walks[self.rows(split)]
        return float(walks.mean()), float(walks.std())

    def windows(self, split: str | None, *, is_training: bool = False) -> "WalkWindows":
        """Return whole walks, with noise in training."""
        return WalkWindows(self, self.rows(split), split, self.noise if is_training else 0.0)

    def rows(self, split: str | None) -> np.ndarray:
        return np.flatnonzero(np.ones(len(self.split), bool) if split is None else self.split == split)


class WalkWindows:
    """The walks of a split."""

    num_values, num_latents = LENGTH * DIM, LENGTH

    def __init__(self, corpus: WalkCorpus, rows: np.ndarray, split: str | None, noise: float) -> None:
        self.corpus, self.sequence_ids, self.split, self.noise = corpus, rows, split, noise
        self.group_ids = np.full(len(rows), -1)
        self.draws = {"num_slots": np.ones(len(rows), int), "num_starts": 2**20, "made_from": {"walks": len(rows)}}

    def __getitems__(self, indices: list[tuple[int, int]]) -> Batch:
        """Return the batch of the indices (row, key); the key seeds the noise."""
        rows = self.sequence_ids[[row for row, _ in indices]]
        x = torch.stack(
            [
                torch.from_numpy(self.corpus.walks[row]) + self._noise(key)
                for row, (_, key) in zip(rows, indices, strict=True)
            ]
        )
        labels = torch.from_numpy(self.corpus.drift[rows])[:, None].expand(-1, LENGTH)
        return Batch(x.float(), self.num_valid(indices), torch.from_numpy(rows), torch.full((len(rows),), -1), labels)

    def num_valid(self, indices: list[tuple[int, int]]) -> Int[Tensor, " B"]:
        """Return the length of each walk, since no walk is padded."""
        return torch.full((len(indices),), LENGTH)

    def _noise(self, key: int) -> Tensor:
        return self.noise * torch.randn(LENGTH, DIM, generator=torch.Generator().manual_seed(key))


class WalkFeatures(FeatureExtractor):
    """Latents and contexts of whole walks."""

    def __init__(self, features: Sequence[str], model: Any, corpus: WalkCorpus) -> None:
        self.model, self.corpus = model, corpus
        self.dims = {name: {"z": model.encoder.dim, "c": model.context.dim}[name] for name in features}

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        return np.full(len(rows), LENGTH)

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for row in rows.tolist():
            yield row, self._features(self.corpus.walks[row])

    def file_features(self, path: Path) -> np.ndarray:
        return next(iter(self._features(np.load(path)).values()))

    @torch.no_grad()
    def _features(self, walk: np.ndarray) -> dict[str, np.ndarray]:
        latents, contexts, *_ = self.model(torch.from_numpy(walk)[None].float())
        return {name: {"z": latents, "c": contexts}[name][0].numpy() for name in self.dims}


class WalkProbeData(ProbeData):
    """Features of walks, probed for their drift."""

    unit, several_vectors = "walk", True

    def __init__(self, corpus: WalkCorpus, **where: Any) -> None:
        super().__init__(**where)
        self.corpus = corpus

    @property
    def splits(self) -> Sequence[str]:
        return self.corpus.split.tolist()

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the drift of each walk, for a task of any name."""
        return Labels({row: ["down", "up"][self.corpus.drift[row]] for row in rows.tolist()})

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        return WalkFeatures(features, model, self.corpus)

    def find_files(self, folder: Path) -> list[str]:
        return find_files(folder, {".npy"}, "walk")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, drift = np.random.default_rng(0), np.arange(NUM_WALKS) % 2
    steps = rng.normal(size=(NUM_WALKS, LENGTH, DIM)) + (drift - 0.5)[:, None, None]
    path = tmp_path_factory.mktemp("walks") / "walks.npz"
    np.savez(path, walks=steps.cumsum(1), split=SPLITS, drift=drift)
    return path


@pytest.fixture(scope="module")
def run_dir(source: Path) -> Path:
    _, shown = blocks("docs/data.md", "yaml")
    data = yaml.safe_load(shown.replace("mypackage.walks", __name__).replace("walks.npz", str(source)))["data"]
    data["init_args"] |= {"batch_size": 10, "noise": 0.1}
    trainer = {"max_steps": 60, "accelerator": "cpu", "enable_progress_bar": False, "logger": False}
    config = {
        "model": {
            "encoder": part("encoders.VectorEncoder", input_dim=DIM, dim=8),
            "context": part("contexts.GRU", dim=8),
            "predictor": part("predictors.Bilinear", num_steps=2),
            "learning_rate": 3e-3,
        },
        "data": data,
        "trainer": trainer | {"callbacks": [part("probes.OnlineProbe", task="drift")]},
        "eval_every_steps": 30,
        "checkpoint_every_steps": 30,
    }
    path = source.with_name("config.yaml")
    path.write_text(yaml.safe_dump(config))
    main(["pretrain", "--config", str(path), "--run_dir", str(source.parent / "run"), "--data.eval_batches", "1"])
    return source.parent / "run"


def test_it_trains_and_resumes(run_dir: Path, source: Path) -> None:
    losses = [line["loss_nats"][0] for line in read_records(run_dir / "bound.jsonl") if line["split"] == "valid"]
    assert losses[-1] < losses[0]
    probed = read_records(run_dir / "probe.jsonl")[-1]
    assert (probed["task"], probed["num_examples"]) == ("drift", 10 * LENGTH)
    options = ["--config", str(run_dir / "config.yaml"), "--run_dir", str(run_dir), "--ckpt_path", "last"]
    main(["pretrain", *options, "--trainer.max_steps", "64"])
    assert read_records(run_dir / "bound.jsonl")[-1]["step"] == 64
    encoder = load_pretrained(run_dir).encoder
    assert recorded_data(read_config(run_dir), source, trusted_packages=("cpc", PACKAGE)).open(encoder).noise == 0.0


def test_evaluate_measures_it(run_dir: Path, source: Path, refusal: Callable[..., str]) -> None:
    command = ["evaluate", str(run_dir), "--data", str(source), "--negatives", "mixed_excluding", "--split", "test"]
    main([*command, "--trusted_packages", "cpc", PACKAGE, "--batch_size", "5", "--num_batches", "2"])
    (bound,) = json.loads((run_dir / "bound.json").read_text())["bounds"]
    assert bound["num_candidates"] == [1 + 4 * LENGTH] * 2
    assert bound["mi_bound_nats"][0] > 0.5
    advice = f"outside the trusted packages cpc; if you trust its origin, give --trusted_packages cpc {PACKAGE}"
    assert advice in refusal(command)
    for option, message in (
        (["--window_samples", "3"], "is a model of vectors, whose data have no"),
        (["--split", "dev"], "split 'dev'"),
    ):
        assert message in refusal([*command, "--trusted_packages", "cpc", PACKAGE, *option])


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_probe_judges_it(
    run_dir: Path, source: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    command = ["probe", str(run_dir), "--data", str(source), "--task", "drift", "--trusted_packages", "cpc", PACKAGE]
    options = ["--baselines", "majority", "random", "neighbours", "--label_shares", "0.2", "1"]
    main([*command, *options])
    task = json.loads((run_dir / "probe.json").read_text())["tasks"]["drift"]
    assert list(task["results"]) == ["cpc", "neighbours", "cpc_z", "random", "random_z", "majority"]
    assert task["results"]["cpc"]["accuracy_percent"] > 80
    assert task["results"]["majority"]["accuracy_percent"] == 50
    assert task["label_efficiency"]["num_labels"] == [8, 40]
    assert "drift: 2 classes, split train (40 walks) -> test (10), mean over the walk" in capsys.readouterr().out
    main([*command, "--pool", "frames", "--baselines"])
    frames = json.loads((run_dir / "probe.json").read_text())["tasks"]["drift"]["results"]
    assert frames["cpc"]["num_train"] == 40 * LENGTH
    assert "must be among majority, random, neighbours" in refusal([*command, "--baselines", "supervised"])


def test_embed_writes_its_features(run_dir: Path, source: Path) -> None:
    folder, out = source.parent / "files", source.parent / "features"
    folder.mkdir()
    with np.load(source) as arrays:
        walk = arrays["walks"][0]
    np.save(folder / "first.npy", walk)
    options = ["--features", "z", "--trusted_packages", "cpc", PACKAGE]
    main(["embed", str(run_dir), str(folder), "--out", str(out), *options])
    with torch.no_grad():
        latents = load_pretrained(run_dir).encoder(torch.from_numpy(walk)[None].float())[0]
    np.testing.assert_allclose(np.load(out / "first.npy"), latents, atol=1e-6)
    sidecar = json.loads((out / "first.json").read_text())
    assert (sidecar["features"], sidecar["dim"]) == ("z", 8)
