"""The whole comparison for images on gratings, where what must come out is known."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from opened import stored
from PIL import Image

import cpc
from cpc.checkpoint import load_pretrained, read_config
from cpc.config.description import build
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.probe_data import ImageProbeData
from cpc.probes import Extraction, Task, fit_probe, open_probe_data, probe_tables
from cpc.probes.report import probe

BRIEF = {"num_epochs": 1, "min_steps": 2, "seconds": None, "batch_size": 8}
BASELINES = ("majority", "random", "pixels", "hog", "supervised", "fine_tuned", "neighbours")
QUIET = Extraction(progress=False)
NAMES = ["cpc", "neighbours", "cpc_grid", "cpc_c", "cpc_c_grid", "pixels", "hog"]
NAMES += ["random", "random_grid", "random_c", "random_c_grid", "supervised", "fine_tuned", "majority"]


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_every_result_stands_beside_the_bound(model_folder: Path, source: Path, tmp_path: Path) -> None:
    options = {"features": ("z", "z_grid", "c", "c_grid"), "baselines": BASELINES, "supervised": BRIEF}
    options |= {"label_shares": (0.2, 1.0), "num_random_models": 2, "out": tmp_path / "deeper" / "probe.json"}
    report = probe(model_folder, source, "class", **options, extraction=QUIET)
    assert json.loads((tmp_path / "deeper" / "probe.json").read_text()) == report
    with Image.open(tmp_path / "deeper" / "label_efficiency.png") as curve:
        assert curve.width > 600
    task = report["tasks"]["class"]
    protocol = {"pool": None, "unit": "image", "clusters": "sequence", "folds": None, "classes": ["columns", "rows"]}
    assert protocol | {"num_unlabelled": {"train": 0, "test": 0}} == {
        name: task["protocol"][name] for name in (*protocol, "num_unlabelled")
    }
    assert list(task["results"]) == NAMES
    for result in task["results"].values():
        assert (result["num_train"], result["num_test"], result["num_clusters"]) == (30, 14, 14)
    seeds = {name: len(result["accuracy_percent_by_seed"]) for name, result in task["results"].items()}
    assert seeds == {name: 2 if name.startswith("random") else 1 for name in NAMES}
    assert task["results"]["hog"]["accuracy_percent"] == 100
    assert task["results"]["pixels"]["accuracy_percent"] < 90  # the phase of a grating is its own
    assert task["results"]["majority"]["accuracy_percent"] == 50
    assert task["results"]["majority"]["label_information_nats"] == pytest.approx(0)
    curve = task["label_efficiency"]
    assert (curve["shares"], curve["num_labels"]) == ([0.2, 1.0], [6, 30])
    assert list(curve["accuracy_percent"]) == ["cpc", "cpc_grid", "cpc_c", "cpc_c_grid", "supervised", "fine_tuned"]
    for name in ("cpc", "cpc_grid", "supervised", "fine_tuned"):  # all labels: the result above
        assert curve["accuracy_percent"][name][1] == task["results"][name]["accuracy_percent"]
    assert report["bound"][0]["mi_bound_nats"] == [1.5, None]
    assert report["model"] == {"folder": str(model_folder), "sha256": read_config(model_folder)["sha256"], "step": 7}
    steps = {name: result["num_network_steps"] for name, result in task["results"].items()}
    assert steps == dict.fromkeys(NAMES) | {"supervised": 4, "fine_tuned": 4}
    sizes = {"image_size": 24, "load_size": 28, "num_skipped": 0}
    assert report["data"] == {"source": str(source), "num_images": 56, **sizes}
    assert set(report["seconds"]) == {"cpc", "random", "pixels", "hog", "supervised", "fine_tuned"}

    table = "\n".join(map(str, probe_tables(report)))
    assert "class: 2 classes, split train (30 images) -> test (14)\n" in table
    for name in NAMES:
        result = task["results"][name]
        first, *again = [line.split() for line in table.splitlines() if line.startswith(f"  {name} ")]
        assert first[1] == f"{result['accuracy_percent']:.1f}"
        assert first[-1] == f"{result['label_information_nats']:.3f}"
        of_curve = [values for result, values in curve["accuracy_percent"].items() if result == name]
        assert [cells[1:] for cells in again] == [[f"{value:.1f}" for value in values] for values in of_curve]
    for name in ("supervised", "fine_tuned"):
        assert f"{name}: after 4 training steps" in table
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[-4:]]
    assert [row[:4] for row in rows[1:3]] == [["down 2", "1.500", "0.250", "2.000"], ["left 2", "n/a", "n/a", "2.000"]]


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_untrained_models_are_as_training_found_them(model_folder: Path, source: Path, corpus: ImageCorpus) -> None:
    """Once more from the parts: weights by seed, the corpus' statistics, the initialisation by training images."""
    options = {"features": ("c",), "baselines": ("random",), "num_random_models": 2, "held_out": []}
    report = probe(model_folder, source, "class", **options, extraction=QUIET)
    assert list(report["tasks"]["class"]["results"]) == ["cpc_c", "random_c"]
    found = report["tasks"]["class"]["results"]["random_c"]
    config, percents, cross_entropies = read_config(model_folder), [], []
    task = Task("class", ImageProbeData(corpus))
    for seed in (0, 1):
        torch.manual_seed(seed)
        untrained: cpc.CPC = build(config["architecture"]).eval()
        untrained.encoder.set_statistics(torch.tensor([0.5, 0.4, 0.6]), torch.tensor([0.2, 0.3, 0.25]))
        untrained.initialise_from(replace(corpus.options, seed=seed).initialisation_batch(corpus))
        store = stored(task, ["c"], untrained)
        train, test = task.examples("train", store, "c"), task.examples("test", store, "c")
        answers = fit_probe(train, 2).answer(test)
        percents.append(100 * (answers.predicted == test.labels).mean())
        cross_entropies.append(-answers.log_likelihood_nats.mean())
    assert abs(cross_entropies[0] - cross_entropies[1]) > 0.001
    assert found["accuracy_percent_by_seed"] == pytest.approx(percents)
    assert found["accuracy_percent"] == pytest.approx(np.mean(percents))
    assert found["cross_entropy_nats"] == pytest.approx(np.mean(cross_entropies), rel=1e-4)
    assert report["bound"] == []
    assert "not recorded with this model; measure it with cpc evaluate" in "\n".join(map(str, probe_tables(report)))


def test_the_models_run_says_how_images_are_cut_and_changed(model_folder: Path, source: Path) -> None:
    """So that the supervised network sees mirrored images where pretraining did."""
    probe_data = open_probe_data(read_config(model_folder), load_pretrained(model_folder), source)
    images = probe_data.corpus.windows("train")
    assert (images.image_size, images.images.shape[0], images.flip) == (24, 28, True)
    assert images.augmentation.kind == "v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"baselines": ("chance",)}, "baselines=.*must be among majority, random, .*, fine_tuned, pixels, hog"),
        ({"alignments": "there.csv"}, "`alignments` is not an option of image"),
        ({"pool": "mean"}, "`pool` is 'mean', but each image has only one vector"),
        ({"train_minutes": 3.0}, "`train_minutes` is 3, but images have no duration"),
        ({"task": ("class", "size")}, "task='size' is unknown for images"),
        ({"train_split": "unlabelled"}, "no image of the train part .split 'unlabelled'. has a label"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_mistakes_show_before_anything_is_computed(
    arguments: dict, message: str, model_folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpc.data.images.corpus.pack_images", lambda *_, **__: pytest.fail("packed"))
    with pytest.raises(ValueError, match=message):
        probe(model_folder, source, **{"task": "class"} | arguments)
