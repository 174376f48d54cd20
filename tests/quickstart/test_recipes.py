"""Every quickstart, shortened: all stages run, and the reports hold what they promise. Prose alone is fast."""

import base64
import html
import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from refusals import refuses

from cpc.cli import main
from cpc.config.description import build
from cpc.data.synthetic import photographs
from cpc.data.synthetic.speech import _scripts, draw_speakers, synthesize
from cpc.data.text.lines import Text
from cpc.quickstart import images, load_recipe, prose, speech

CONFIG = Path(__file__).parents[2] / "configs/text/cpu_small.yaml"
OF_IMAGES = ["majority", "random", "pixels", "hog", "cpc", "supervised"]


class Finished(NamedTuple):
    out: Path
    corpus: Path
    report: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """Run a quickstart by its command, with few steps and probes of these options, once."""
    finished: dict[str, Finished] = {}

    def run(modality: str, steps: int, extra: str = "torch", **options: float) -> Finished:
        pytest.importorskip(extra, reason="an extra is not installed")
        if modality not in finished:
            folder = tmp_path_factory.mktemp("quickstart")
            out, corpus = folder / "out", folder / "corpus"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(photographs, "PHOTOGRAPHS", ("coins.png", "page.png", "text.png"))
                patch.setattr(photographs, "MOST_CROPS", {"train": 40, "valid": 30, "test": 20})
                patch.setattr(images, "BATCH_SIZE", 16)
                smaller = partial(synthesize, num_speakers=12, num_heldout_speakers=4, minutes=12.0)
                patch.setattr(speech, "synthesize", smaller)
                for study in load_recipe(modality).studies.values():
                    for option, value in options.items():
                        patch.setitem(study.probe, option, value)
                places = ["--out", str(out), "--corpus", str(corpus), "--steps", str(steps)]
                main(["quickstart", "--modality", modality, *places])
            report = json.loads((out / "report.json").read_text())
            finished[modality] = Finished(out, corpus, report, (out / "report.html").read_text())
        return finished[modality]

    return run


# --- text


@pytest.fixture
def of_prose(run: Callable[..., Finished]) -> Finished:
    return run("text", 20)


def test_the_report_of_text_holds_perplexity_and_what_it_certifies(of_prose: Finished) -> None:
    report, own = of_prose.report, of_prose.report["runs"]["prose"]
    (measured,) = own["bounds"]
    assert own["num_train_steps"] == 20
    assert (own["negatives"], measured["split"], own["steps"]) == ("full_softmax", "test", [1])
    assert measured["perplexity"] == pytest.approx([math.exp(measured["loss_nats"][0])])
    assert measured["perplexity"][0] < 1000  # it has learnt something: frequencies at least
    assert own["mi_bound_nats"][0] == pytest.approx(own["mi_ceiling_nats"][0] - measured["loss_nats"][0])
    assert 4 < own["mi_ceiling_nats"][0] < 5
    assert "test split" in report["recipe_chosen_on"]
    assert list(report["seconds"]) == ["prose", "pretrain", "bound", "page", "total"]
    seconds = [seconds for stage, seconds in report["seconds"].items() if stage != "total"]
    assert report["seconds"]["total"] == pytest.approx(sum(seconds), abs=0.1)


def test_the_page_of_text_shows_it_and_loads_nothing(of_prose: Finished) -> None:
    """Every picture has words and a table of its values."""
    measured, page = of_prose.report["runs"]["prose"]["bounds"][0], of_prose.page
    assert "H - L in nats, full_softmax on &#x27;test&#x27;" in page
    perplexity = math.exp(measured["loss_nats"][0])
    assert f"Prose: 20 training steps, trained in 32-true, perplexity {perplexity:.1f}." in page
    assert f"<td>{measured['mi_bound_nats'][0]:.3f}</td><td>{measured['standard_error_nats'][0]:.3f}</td>" in page
    assert "default-src 'none'" in page
    elements = "html head meta title style script body main h1 h2 p b i code section div img table thead tbody tr th td"
    assert set(re.findall(r"<(\w+)", page)) <= set(elements.split())
    pictures = re.findall(r'<img alt="(.*?)" src="data:image/png;base64,(.*?)">', page)
    assert 2 == page.count("<img") == page.count("src=") <= page.count("<table>")
    for (words, picture), what in zip(pictures, ("bound on held-out batches", "bound over training"), strict=True):
        assert words == f"Prose: {what}; the values are in the tables below"
        assert base64.b64decode(picture).startswith(b"\x89PNG")


def test_the_recipe_of_text_is_that_of_the_config() -> None:
    shipped = yaml.safe_load(CONFIG.read_text())
    assert prose.RECIPE.studies["prose"].num_steps == shipped["trainer"].pop("max_steps")
    assert shipped.pop("trainer") == {"gradient_clip_val": 1.0}
    assert prose.config(Path("embedded"), 0) == shipped


def test_the_prose_is_split_as_the_embedded_one(of_prose: Finished, tmp_path: Path) -> None:
    own, embedded = (
        Text(source, valid_share=0.1, test_share=0.1) for source in (of_prose.corpus / "embedded", "embedded")
    )
    for split in ("train", "valid", "test"):
        assert list(own.lines(split)) == list(embedded.lines(split))
    (tmp_path / "embedded").write_text("Other prose.")
    refuses("holds other prose than this Python ships with: remove it", prose.RECIPE.make, tmp_path, 0)


# --- speech


def test_the_corpus_is_another_than_the_recipe_was_chosen_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedError(Exception):
        pass

    def asked(folder: Path, *, seed: int) -> None:
        raise AskedError(seed)

    monkeypatch.setattr(speech, "synthesize", asked)
    with pytest.raises(AskedError) as caught:
        speech.RECIPE.make(tmp_path / "corpus", 0)
    (seed,) = caught.value.args
    chosen_on, reported = draw_speakers(48, 8, 0), draw_speakers(48, 8, seed)
    assert not {speaker.voice for speaker in chosen_on} & {speaker.voice for speaker in reported}
    variants = [{s.voice.variant for s in speakers if s.is_heldout} for speakers in (chosen_on, reported)]
    assert [len(of_test) for of_test in variants] == [8, 8]
    assert not variants[0] & variants[1]
    sentences = [
        set(_scripts(speakers, 2000, 60.0, drawn_by)[-1][2]["test"])
        for speakers, drawn_by in ((chosen_on, 0), (reported, seed))
    ]
    assert [len(of_test) for of_test in sentences] == [240, 240]
    assert len(sentences[0] & sentences[1]) < 40  # 29 by chance
    assert f"corpus of seed {seed}" in speech.CHOSEN_ON.format(corpus_seed=seed)


@pytest.mark.slow
def test_speech_from_end_to_end(run: Callable[..., Finished]) -> None:
    _, _, report, page = run("audio", 60, "espeakng_loader", supervised_seconds=5.0, train_minutes=6.0)
    for task in ("phones", "speaker"):
        assert set(report[task]) == {"majority", "random", "mfcc", "cpc", "cpc_z", "supervised"}
        assert all(0 < value < 100 for value in report[task].values())
        assert report[task]["random"] > report[task]["majority"]
    own = report["runs"]["speech"]
    assert len(own["mi_bound_nats"]) == len(own["mi_ceiling_nats"]) == 12
    assert all(bound < ceiling for bound, ceiling in zip(own["mi_bound_nats"], own["mi_ceiling_nats"], strict=True))
    assert own["mi_bound_nats"][0] > 0.5  # 60 steps are enough to leave zero
    assert own["num_train_steps"] == 60
    assert own["reading"] == "in-sequence candidates, not a bound on I(z; c)"
    assert report["corpus_seed"] == 63
    assert report["phones_num_steps"]["supervised"] > 0
    assert "valid split of the corpus of seed 0," in report["recipe_chosen_on"]
    assert page.count("data:image/png") == 3
    assert html.escape(report["recipe_chosen_on"]) in page


# --- signals


@pytest.mark.slow
def test_the_report_of_signals_has_every_baseline_by_folds_over_people(run: Callable[..., Finished]) -> None:
    finished = run("signals", 20, "seglearn", supervised_seconds=1.0)
    assert (finished.report["num_people"], finished.report["num_classes"]) == (10, 7)
    probed = json.loads((finished.out / "smartwatch" / "probe.json").read_text())["tasks"]["label"]
    assert (probed["protocol"]["folds"], probed["protocol"]["num_folds"]) == ("group", 5)
    assert set(probed["results"]) == {"majority", "hand", "random", "random_stream", "cpc", "cpc_stream", "supervised"}
    accuracy = {name: result["accuracy_percent"] for name, result in probed["results"].items()}
    assert accuracy["majority"] < 25 < min(value for name, value in accuracy.items() if name != "majority")
    for text in ("hand", "cpc", "cpc_stream", "supervised", "10 people", "7 exercises"):
        assert text in finished.page


# --- images


@pytest.mark.slow
def test_images_from_end_to_end(run: Callable[..., Finished]) -> None:
    """Six steps on three small photographs and the digits."""
    out, _, report, page = run("image", 6, "skimage", supervised_seconds=1.0)
    for name, num_classes in (("photographs", 3), ("digits", 10)):
        assert list(report[name]) == list(report[f"{name}_interval"]) == OF_IMAGES
        assert all(0 < accuracy <= 100 for accuracy in report[name].values())
        for representation, (low, high) in report[f"{name}_interval"].items():
            assert low <= report[name][representation] <= high
        assert report[name]["majority"] == pytest.approx(100 / num_classes, abs=1)
        assert report[name]["hog"] > report[name]["majority"] + 20  # not chance: probes were trained
    for name in images.RECIPE.studies:
        own = report["runs"][name]
        assert own["num_train_steps"] == 6
        assert own["steps"] == [2, 3, 4, 5, 6]
        assert own["directions"] == ["down"] * 5
        assert own["negatives"] == own["bounds"][0]["strategy"] == "mixed"
        assert own["reading"] == own["bounds"][0]["reading"] == "in-sequence candidates, not a bound on I(z; c)"
        assert own["bounds"][1]["strategy"] == "mixed_excluding"
        bounds = zip(own["mi_bound_nats"], own["mi_ceiling_nats"], strict=True)
        assert all(bound < ceiling for bound, ceiling in bounds)
        probed = json.loads((out / name / "probe.json").read_text())
        assert probed["bound"] == own["bounds"]
        assert (own["precision"], probed["protocol"]["precision"]) == ("32-true", "float32")
        supervised = probed["tasks"]["class"]["results"]["supervised"]
        assert report[f"{name}_num_steps"] == {"supervised": supervised["num_network_steps"]}
    assert {"images", "pretrain", "bound", "probes", "page"} < set(report["seconds"])
    titles = [html.unescape(title) for title in re.findall("<h2>(.*?)</h2>", page)]
    of_each = ["accuracy of linear probes", "bound on held-out batches", "bound over training"]
    assert titles[:-1] == [f"{name}: {title}" for name in ("Photographs", "Digits") for title in of_each]
    shown = re.findall(r'<tr><th scope="row">(\w+)</th><td>([\d.]+)</td><td>[\d.]+ to', page)
    assert {(key, f"{report['photographs'][key]:.1f}") for key in OF_IMAGES} <= set(shown)
    assert f"supervised: after {report['photographs_num_steps']['supervised']} training steps" in page
    assert "valid splits" in report["recipe_chosen_on"]
    assert html.escape(report["recipe_chosen_on"]) in page


def test_the_model_of_images_skips_the_rows_that_overlap() -> None:
    for study in images.RECIPE.studies.values():
        config = study.config(Path("images.npz"), 0)
        encoder = build(config["model"]["encoder"])
        assert config["model"]["loss"]["init_args"]["skip_steps"] == encoder.overlapping_rows == 1
