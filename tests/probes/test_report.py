"""The whole comparison on tones and levels, where what must come out is known."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import soundfile
import torch
from opened import BOUND, opened
from refusals import refuses
from sklearn.metrics import confusion_matrix, log_loss
from sklearn.preprocessing import StandardScaler

import cpc
from cpc.data import Audio, Manifest, Modality, index_folder
from cpc.pages.report import drawn
from cpc.probes import Examples, Extraction, Probe, Task, fit_probe, probe_tables, train_supervised
from cpc.probes.report import _draw_curves, probe
from cpc.probes.tables import draw_label_efficiency

BRIEF = {"seconds": None, "num_steps": 2, "batch_size": 2}


@pytest.fixture
def extraction(cache_dir: Path) -> Extraction:
    return Extraction(cache_dir=cache_dir, progress=False)


@pytest.fixture
def measured(model_folder: Path, corpus_folder: Path, extraction: Extraction) -> Callable[..., Any]:
    """`probe` of the model on the tones."""
    return partial(probe, model_folder, corpus_folder, extraction=extraction)


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_every_result_stands_beside_the_bound(measured: Callable[..., Any], tmp_path: Path) -> None:
    options = {"features": ("c", "z", "mfcc", "logmel"), "supervised": BRIEF, "num_random_models": 2}
    report = measured(["phones", "speaker", "first"], **options, out=tmp_path / "probe.json")
    assert json.loads((tmp_path / "probe.json").read_text()) == report
    names = ["cpc", "cpc_z", "mfcc", "logmel", "random", "supervised", "majority"]
    for task in ("phones", "speaker", "first"):
        results = report["tasks"][task]["results"]
        assert list(results) == names
        for result in results.values():
            low, high = result["accuracy_interval_percent"]
            assert low <= result["accuracy_percent"] <= high
            assert np.sum(result["confusion"]) == result["num_test"] * len(result["accuracy_percent_by_seed"])
    phones = report["tasks"]["phones"]["results"]
    assert phones["logmel"]["accuracy_percent"] > 85  # tones; frames at their borders hear two
    assert phones["majority"]["label_information_nats"] < 0.01
    assert phones["cpc"]["num_train"] == phones["supervised"]["num_train"] == 12 * 40
    assert len(phones["cpc"]["accuracy_percent_by_seed"]) == len(phones["cpc"]["l2"]) == 1
    assert len(phones["random"]["accuracy_percent_by_seed"]) == 2
    assert report["tasks"]["speaker"]["protocol"]["test_split"] == "valid"
    assert report["tasks"]["first"]["results"]["cpc"]["num_test"] == 12
    assert report["bound"] == [BOUND]
    assert report["model"]["step"] == 7
    assert report["protocol"]["probe"] == {"l2": None, "normalise": None, "frames_around": 0}
    assert all(penalty > 0 for penalty in phones["cpc"]["l2"])
    assert report["protocol"]["features"]["cpc"]["dim"] == 10
    assert report["protocol"]["features"]["cpc_z"]["dim"] == 12
    for task in ("phones", "speaker", "first"):
        steps = {name: result["num_network_steps"] for name, result in report["tasks"][task]["results"].items()}
        assert steps == dict.fromkeys(names) | {"supervised": 2}

    table = "\n".join(map(str, probe_tables(report)))
    assert "phones: 3 classes, split train (12 files) -> test (12), every frame" in table
    assert "first: 3 classes, split train (12 files) -> test (12), mean over the file" in table
    assert table.count("  supervised: after 2 training steps") == 3
    assert "log N - L in nats, mixed on 'valid' (in-sequence candidates, not a bound on I(z; c))" in table
    rows = [re.split(r"\s{2,}", line.strip())[:4] for line in table.splitlines()[-4:]]
    assert rows[:2] == [["k", "log N - L", "+-", "ceiling"], ["3", "1.500", "0.250", "2.000"]]
    assert rows[2:] == [["4", "n/a", "n/a", "2.000"], ["mean", "1.500", "2.000"]]
    for name in names:
        assert table.count(f"  {name} ") == 3


def test_values_agree_with_scikit_learn(
    measured: Callable[..., Any], model_folder: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label column by the multi-layer probe: contexts, forward pass and every measure computed once more."""
    probes: list[Probe] = []

    def kept(*arguments: Any, **options: Any) -> Probe:
        probes.append(fit_probe(*arguments, **options))
        return probes[-1]

    monkeypatch.setattr("cpc.probes.comparison.fit_probe", kept)
    report = measured("first", features=("c",), baselines=())
    found = report["tasks"]["first"]["results"]["cpc"]

    model, means = cpc.load_pretrained(model_folder), {}
    for row, (file, split) in enumerate(zip(manifest.files, manifest.column("split"), strict=True)):
        if split != "valid":
            wave = torch.from_numpy(soundfile.read(file, dtype="float32")[0])
            with torch.no_grad():
                means[row] = model(wave[None]).contexts[0].double().mean(0).numpy()
    rows = {part: [row for row in means if manifest.column("split")[row] == part] for part in ("train", "test")}
    names = ["high", "low", "mid"]
    labels = np.array([names.index(manifest.column("first")[row]) for row in rows["test"]])
    scaler = StandardScaler().fit([means[row] for row in rows["train"]])
    x = scaler.transform([means[row] for row in rows["test"]])
    (trained,) = probes
    scores = x @ trained.weight.double().numpy().T + trained.bias.double().numpy()
    cross_entropy = log_loss(labels, scipy.special.softmax(scores, 1))
    confusion = confusion_matrix(labels, scores.argmax(1))
    assert report["tasks"]["first"]["protocol"]["classes"] == names
    assert found["confusion"] == confusion.tolist()
    assert found["accuracy_percent"] == pytest.approx(100 * confusion.trace() / confusion.sum())
    recalls = confusion.diagonal() / confusion.sum(1)
    assert found["class_accuracy_percent"] == pytest.approx((100 * recalls).tolist())
    entropy = scipy.stats.entropy(np.bincount(labels))
    assert found["label_entropy_nats"] == pytest.approx(entropy)
    assert found["cross_entropy_nats"] == pytest.approx(cross_entropy, abs=1e-4)
    assert found["label_information_nats"] == pytest.approx(entropy - cross_entropy, abs=1e-4)


def test_the_report_says_how_much_of_the_test_data_was_pretrained_on(
    model: cpc.CPC, corpus_folder: Path, extraction: Extraction, tmp_path: Path
) -> None:
    """The model was trained on copies, under other names, of three files of `test` and on all of `valid`."""
    copies = tmp_path / "copies" / "train"
    copies.mkdir(parents=True)
    for number, file in enumerate(sorted((corpus_folder / "audio" / "test").iterdir())[:3]):
        shutil.copyfile(file, copies / f"renamed_{number}.wav")
    for file in (corpus_folder / "audio" / "valid").iterdir():
        shutil.copyfile(file, copies / file.name)
    index_folder(copies.parent, split_level=0, progress=False)
    data = Audio(manifest=str(copies.parent), window_samples=4000, cache_dir=str(extraction.cache_dir))
    trained_on = data.trained_on(opened(data, model.encoder))
    settings: dict[str, Any] = {"features": ("z",), "baselines": (), "extraction": extraction}
    settings["out"] = tmp_path / "probe.json"
    for known, counts, line in (
        (trained_on, {"num_shared": 3, "num_compared": 12, "num_tested": 12, "unit": "file"}, "has used 3 of 12 files"),
        (None, None, "not recorded: whether the model was pretrained on test data"),
    ):
        provenance = {"data": data.saved_settings} | ({} if known is None else {"trained_on": known})
        cpc.save_pretrained(model, tmp_path / "model", provenance=provenance)
        report = probe(tmp_path / "model", corpus_folder, "first", **settings)
        assert report["tasks"]["first"]["pretrained_on"] == counts
        assert report["tasks"]["first"]["copies_of_training"]["num_shared"] == 0
        assert line in str(report)
        assert "none of 12 files of the test data are copies of training data" in str(report)


def test_a_report_that_cannot_be_told_leaves_the_one_that_was_there(
    measured: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "reports" / "report.json"
    measured("speaker", features=("mfcc",), baselines=(), out=out)
    before = out.read_bytes()
    monkeypatch.setattr("cpc.probes.tables.result_row", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measured("speaker", features=("mfcc",), baselines=(), out=out)
    assert [(path.name, path.read_bytes()) for path in out.parent.iterdir()] == [("report.json", before)]


def test_less_training_audio(measured: Callable[..., Any]) -> None:
    options = {"features": ("mfcc",), "baselines": ("supervised",), "supervised": BRIEF}
    report = measured("phones", train_minutes=0.04, **options)  # of 12 files with 0.4 s each
    results = report["tasks"]["phones"]["results"]
    assert results["mfcc"]["num_train"] == 6 * 40
    assert results["supervised"]["num_train"] == 12 * 40  # the baseline is as strong as the corpus makes it
    assert report["tasks"]["phones"]["protocol"]["num_train"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "colour"}, "no column 'colour'"),
        ({"task": "speaker", "baselines": ("chance",)}, "must be among majority, random, .*, fine_tuned, mfcc, logmel"),
        ({"task": "speaker", "label_shares": (0.5,)}, "`label_shares` need a training split and labels of whole files"),
        ({"task": "first", "features": ("mfcc",), "baselines": ("neighbours",)}, "neighbours need one of the"),
        ({"task": "speaker", "baselines": ("neighbours",)}, "neighbours has one vector .*`pool` to mean"),
    ],
)
def test_mistakes_show_before_anything_is_computed(
    model_folder: Path, manifest: Manifest, arguments: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpc.data.audio.modality.pack", lambda *_, **__: pytest.fail("packed"))
    refuses(message, probe, model_folder, manifest.root, **arguments)


def test_options_of_no_baseline_are_told(measured: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    options = {"features": ("mfcc",), "baselines": ("majority",)}
    measured("speaker", supervised_seconds=3.0, **options)
    said = capsys.readouterr().err
    assert "supervised_seconds=3 has no effect without the baseline supervised or fine_tuned" in said
    assert "random" not in said
    measured("speaker", num_random_models=2, **options)
    assert "num_random_models=2 has no effect without the baseline random" in capsys.readouterr().err


def test_data_without_probe_data_are_refused_unopened(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Audio, "probe_data", Modality.probe_data)
    refuses("cannot be probed or embedded", probe, model_folder, "nowhere", "speaker")


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_files_as_a_whole_have_what_images_have(
    measured: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curves over labels, neighbours and fine-tuning: wherever an observation gives one example."""
    of_probes: list[list[int]] = []
    of_networks: list[list[int]] = []

    def examples(task: Task, part: Any, store: Any, feature: str | None) -> Examples:
        if part == "train" and feature == "z":
            of_probes.append(task.train.tolist())
        return given(task, part, store, feature)

    def train(model: Any, probe_data: Any, task: Task, *others: Any, **options: Any) -> Any:
        of_networks.append(task.train.tolist())
        return train_supervised(model, probe_data, task, *others, **options)

    given = Task.examples
    monkeypatch.setattr(Task, "examples", examples)
    monkeypatch.setattr("cpc.probes.comparison.train_supervised", train)
    options = {"features": ("z",), "baselines": ("neighbours", "fine_tuned", "mfcc"), "supervised": BRIEF}
    report = measured("first", label_shares=(0.5, 1.0), **options, out=tmp_path / "probe.json")
    task = report["tasks"]["first"]
    assert list(task["results"]) == ["cpc_z", "neighbours", "mfcc", "fine_tuned"]
    assert task["label_efficiency"]["num_labels"] == [3 + 2 + 2, 12]
    assert task["label_efficiency"]["accuracy_percent"]["cpc_z"][1] == task["results"]["cpc_z"]["accuracy_percent"]
    assert task["label_efficiency"]["num_steps"] == {"fine_tuned": [2, 2]}
    assert of_networks == of_probes[:3]  # the whole, half, and the whole once more; then come the neighbours
    assert [len(rows) for rows in of_networks] == [12, 7, 12]
    assert (tmp_path / "label_efficiency.png").stat().st_size > 1000


CURVE = {
    "shares": [0.01, 0.1, 1.0],
    "num_labels": [20, 200, 2000],
    "accuracy_percent": {"cpc": [60.0, 70.0, 80.0], "supervised": [20.0, 50.0, 90.0]},
}


def test_points_stand_at_their_accuracies_and_numbers_of_labels() -> None:
    figure = drawn(partial(draw_label_efficiency, CURVE, "title"))
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["supervised", "cpc"]  # the best with all labels first
    for name, line in lines.items():
        assert list(line.get_ydata()) == CURVE["accuracy_percent"][name]  # type: ignore[index]
        across, _ = axes.transData.transform(line.get_xydata()).T
        assert across[1] - across[0] == pytest.approx(across[2] - across[1])  # a logarithmic axis
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 %\n20", "10 %\n200", "100 %\n2000"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)
    assert lines["cpc"].get_color() != lines["supervised"].get_color()


def test_the_name_of_a_task_is_not_a_folder(tmp_path: Path) -> None:
    curve = {"shares": [1.0], "num_labels": [50], "accuracy_percent": {"cpc": [60.0]}}
    task = {"protocol": {"classes": ["a", "b"], "num_test": 9, "unit": "file"}, "label_efficiency": curve}
    _draw_curves({"tasks": {"first": task, "age/sex": task}}, tmp_path / "probe.json")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["label_efficiency_age_sex.png", "label_efficiency_first.png"]


def test_names_of_users_are_no_mathematics(tmp_path: Path) -> None:
    names = {r"$\frac$": [60.0], "_z": [1.0], "\udcff": [2.0]}
    curve = {"shares": [1.0], "num_labels": [50], "accuracy_percent": names}
    figure = drawn(partial(draw_label_efficiency, curve, r"of $\nothing$"))
    figure.savefig(tmp_path / "curve.png")
    assert len(figure.legends[0].get_texts()) == 3
