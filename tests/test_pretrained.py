"""The models that ship with cpc: their names, files and cards. A slow test reads the figures of the cards again."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import cpc
from benchmarks.pretrained.__main__ import measure
from benchmarks.pretrained.recipes import RECIPES
from cpc import cli
from cpc.checkpoint import read_config
from cpc.data.store.untrusted import read_json
from cpc.pretrained import FOLDER, models, shipped_names
from cpc.sklearn import CPCTransformer

SHARED = Path(__file__).parents[2] / "shared" / "data"


def test_every_recipe_has_a_model() -> None:
    assert shipped_names() == sorted(RECIPES)
    assert [model["name"] for model in models()] == shipped_names()


@pytest.mark.parametrize("name", RECIPES)
def test_files_of_a_model(name: str) -> None:
    weights, card = FOLDER / name / "model.safetensors", (FOLDER / name / "README.md").read_text()
    config = read_config(name)
    assert weights.stat().st_size <= 4_000_000
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == config["sha256"]
    floating = [tensor.dtype for tensor in load_file(weights).values() if tensor.is_floating_point()]
    assert set(floating) == {torch.float16}
    model = cpc.load_pretrained(name)
    assert {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} == {torch.float32}
    for section in ("## What it is not good for", "## Data", "## Recipe", "## Bound", "## Probes", "## Licence"):
        assert section in card
    assert config["provenance"]["trained_on"]["num_observations"] > 0
    for file in (FOLDER / name).iterdir():
        if file.suffix in (".json", ".md"):
            assert str(SHARED.parent) not in file.read_text(), file


def test_name_stands_for_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """A local folder of the same name comes first, and a line says so."""
    monkeypatch.chdir(tmp_path)
    shipped = cpc.load_pretrained("speech-small").state_dict()
    by_path = cpc.load_pretrained(FOLDER / "speech-small").state_dict()
    assert all(torch.equal(shipped[name], by_path[name]) for name in by_path)
    assert read_config(Path("speech-small")) == read_config("speech-small")
    assert capsys.readouterr().err == ""
    (tmp_path / "speech-small").mkdir()
    with pytest.raises(ValueError, match=r"speech-small.* holds no model"):
        cpc.load_pretrained("speech-small")
    assert "speech-small is the local folder, not the model that ships with cpc" in capsys.readouterr().err


def test_commands_take_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for index in range(4):
        Path("data").mkdir(exist_ok=True)
        soundfile.write(f"data/{index}.wav", 0.1 * rng.standard_normal(8000), 16000)
    cli.main(["models"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in RECIPES)
    cli.main(["models", "--card", "speech-small"])
    assert capsys.readouterr().out.strip() == (FOLDER / "speech-small" / "README.md").read_text().strip()
    cli.main(["embed", "speech-small", "data", "--out", "features"])
    vectors = np.load("features/0.npy")
    model = cpc.load_pretrained("speech-small")
    waveform = torch.from_numpy(soundfile.read("data/0.wav", dtype="float32")[0])
    assert np.allclose(vectors, model.encode(waveform[None])[1][0].detach(), atol=1e-5)
    assert "speech-small ships with cpc, and has no local folder for bound.json" in refusal(
        ["evaluate", "speech-small", "--data", "data"]
    )
    assert "--card='speech-large' is not one of" in refusal(["models", "--card", "speech-large"])


def test_training_starts_from_a_name(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 600, 6)).astype(np.float32)
    transformer = CPCTransformer(init_from="activity-small", sample_rate_hz=50, max_steps=0).fit(x)
    shipped = cpc.load_pretrained("activity-small").state_dict()
    weights = transformer.model_.state_dict()
    assert all(torch.equal(weights[name], shipped[name]) for name in shipped)
    transformer.save(tmp_path / "mine")
    records = [read_config(model)["provenance"]["trained_on"] for model in (tmp_path / "mine", "activity-small")]
    assert records[0] == records[1]
    transformer.set_params(max_steps=1).fit(x).save(tmp_path / "more")
    num_trained = read_config(tmp_path / "more")["provenance"]["trained_on"]["num_observations"]
    assert num_trained == records[0]["num_observations"] + 4  # two of six recordings are held out
    assert transformer.transform(x).shape == (6, len(transformer.get_feature_names_out()))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs the corpora in {SHARED}")
@pytest.mark.parametrize("name", RECIPES)
def test_figures_of_the_card(name: str, tmp_path: Path) -> None:
    """The first report beside the card, measured again: every accuracy is within its interval; all are of the model."""
    recipe = RECIPES[name]
    reports = [read_json(FOLDER / name / f"{report_name}.json") for report_name in recipe.figures]
    assert {report["model"]["sha256"] for report in reports} == {read_config(name)["sha256"]}
    first = dataclasses.replace(recipe, figures={"probe": recipe.figures["probe"]})
    again = measure(first, name, SHARED, tmp_path / "sources", tmp_path)
    for report_name, report in again.items():
        shipped = read_json(FOLDER / name / f"{report_name}.json")
        assert report["model"]["sha256"] == shipped["model"]["sha256"]
        for task, entry in shipped["tasks"].items():
            for feature, result in entry["results"].items():
                low, high = result["accuracy_interval_percent"] or [result["accuracy_percent"]] * 2
                assert low <= report["tasks"][task]["results"][feature]["accuracy_percent"] <= high, (task, feature)
        assert report["abx"].keys() == shipped["abx"].keys()
