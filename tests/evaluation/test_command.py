"""Which held-out windows a strategy is measured on, and what `evaluate` takes from the model's run."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened import open_audio, opened
from refusals import refuses

import cpc
from cpc.checkpoint import save_pretrained
from cpc.data import Audio, Images, index_folder, read_manifest
from cpc.data.map_style import HeldOut
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.store.contents import _say_once
from cpc.evaluation import evaluate, held_out_bounds
from cpc.evaluation.estimates import HeldOutEstimates
from cpc.losses import EvalProtocol

DATA = Audio(manifest="not there any more", window_samples=1600, batch_size=4)


@pytest.fixture(scope="module")
def corpus(manifest: Path, model: cpc.CPC) -> RecordingCorpus:
    return open_audio(manifest, model.encoder, DATA.window_samples)


@pytest.fixture
def measure(model: cpc.CPC, manifest: Path, tmp_path: Path) -> Callable[..., Any]:
    """`evaluate` of the model, which is saved as after 70 steps on DATA."""
    save_pretrained(model, tmp_path, provenance={"step": 70, "data": DATA.saved_settings})
    return partial(evaluate, tmp_path, manifest)


@pytest.mark.parametrize(
    ("trained_with", "sampler", "strategy", "expected"),
    [
        ("mixed", "uniform", "mixed", ("uniform", False)),
        ("mixed", "uniform", "same_speaker", ("same_speaker", False)),
        ("mixed", "same_speaker", "mixed", ("same_speaker", False)),  # as training
        ("mixed", "same_speaker", "mixed_excluding", ("uniform", False)),
        ("same_speaker", "uniform", "same_speaker", ("uniform", False)),  # as training
        ("same_speaker", "same_speaker", "same_speaker_excluding", ("same_speaker", True)),
        ("mixed_excluding", "uniform", "sequence_only", ("uniform", False)),
    ],
)
def test_a_strategy_has_the_batches_it_means(
    corpus: RecordingCorpus, trained_with: str, sampler: str, strategy: str, expected: tuple[str, bool]
) -> None:
    held_out = HeldOut(corpus, replace(DATA, sampler=sampler), trained_with, num_batches=5)
    assert held_out.sampler_for(strategy) == expected
    speakers = [{corpus.group_ids[file] for file, _ in batch} for batch in held_out.draws(strategy)]
    assert all(len(of_batch) == 1 for of_batch in speakers) == (expected[0] == "same_speaker")


@pytest.mark.parametrize("options", [{}, {"negatives": ["mixed"], "bank": "valid"}])
def test_no_infinite_loss_is_written(model: cpc.CPC, manifest: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    broken = deepcopy(model)
    with torch.no_grad():
        broken.predictor.linear.weight.fill_(3e38)
    save_pretrained(broken, tmp_path, provenance={"data": DATA.saved_settings})
    refuses(r"loss of mixed is not finite for k = 1, 2", evaluate, tmp_path, manifest, num_batches=1, **options)
    assert not (tmp_path / "bound.json").exists()


def test_one_pass_at_most(corpus: RecordingCorpus, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = HeldOut(corpus, DATA, "mixed", num_batches=100)
    batches = held_out.draws("mixed")
    assert len(batches) == 30 // 4
    assert max(Counter(file for batch in batches for file, _ in batch).values()) == 2  # windows of a file
    assert capsys.readouterr().out.count("instead of 100") == 1
    assert held_out.draws("mixed_excluding") == batches
    assert capsys.readouterr().out == ""


def test_ranks_share_one_pass(corpus: RecordingCorpus) -> None:
    ranks = [HeldOut(corpus, DATA, "mixed", 100, rank=rank, world_size=2).draws("mixed") for rank in (0, 1)]
    assert [len(batches) for batches in ranks] == [3, 3]
    together = Counter(window for batches in ranks for batch in batches for window in batch)
    assert max(together.values()) == 1
    halves = replace(DATA, batch_size=DATA.batch_size // 2)
    one, *two = (
        HeldOut(corpus, data, "mixed", 100, rank=rank, world_size=num).draws("same_speaker_excluding")
        for data, rank, num in ((DATA, 0, 1), (halves, 0, 2), (halves, 1, 2))
    )
    assert [first + second for first, second in zip(*two, strict=True)] == one


def test_shared_batches_are_encoded_once_and_training_mode_returns(
    corpus: RecordingCorpus, model: cpc.CPC, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, seen = [], []
    handle = model.encoder.register_forward_hook(lambda module, *_: modes.append(module.training))
    model.train()
    held_out = HeldOut(corpus, DATA, "mixed", num_batches=3)
    measures = [EvalProtocol(strategy, None) for strategy in ("mixed", "same_speaker", "mixed_excluding")]
    bounds = held_out_bounds(model, held_out, measures, on_batch=lambda batch, *_: seen.append(batch))
    handle.remove()
    assert modes == [False] * 6  # uniform batches for two of them, same-speaker batches for the third
    assert model.training
    assert len(seen) == 3
    assert list(bounds) == measures
    assert held_out_bounds(model, held_out, measures[2:]) == {measures[2]: bounds[measures[2]]}


def test_evaluate_draws_as_the_run_did_unless_told_otherwise(measure: Callable[..., Any]) -> None:
    of_the_run = {"split": "valid", "window_samples": 1600, "batch_size": 4, "sampler": "uniform"}
    report = measure(num_batches=2)
    assert {name: report[name] for name in of_the_run} == of_the_run
    assert [(bound["step"], bound["num_batches"]) for bound in report["bounds"]] == [(70, 2)] * 2
    assert report["bounds"][0]["num_candidates"] == pytest.approx([4 * 10] * 2)  # batches of 4, 10 latents each
    other = measure(num_batches=2, batch_size=6, window_samples=3200, sampler="same_speaker")
    assert other["bounds"][0]["num_candidates"] == pytest.approx([6 * 20] * 2)
    assert other["sampler"] == "same_speaker"
    ceiling = np.array(other["bounds"][0]["mi_ceiling_nats"])
    assert np.allclose(ceiling - other["bounds"][0]["loss_nats"], other["bounds"][0]["mi_bound_nats"])


@pytest.mark.usefixtures("unchecked_types")
def test_refusals(measure: Callable[..., Any], model: cpc.CPC, manifest: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"negatives": ["all"]}, "`negatives`='all' is not one of mixed"),
        ({"image_size": 64}, "`image_size` is not an option of audio, the data of this model"),
        ({"estimators": ["leave_one_out"]}, "estimators`='leave_one_out' is not one of info_nce, nwj"),
        ({"negatives": ["sequence_only"], "estimators": ["tuba"]}, "'tuba', whose baseline .* there is only one"),
        ({"batch_size": 2, "estimators": ["tuba"]}, "needs more of `batch_size`: the number of other sequences=1"),
    ):
        refuses(message, measure, **options)
    save_pretrained(model, tmp_path / "unknown")
    refuses(r"does not describe the training data: it needs", evaluate, tmp_path / "unknown", manifest, batch_size=4)
    images = Images(source="unknown", image_size=24)
    save_pretrained(model, tmp_path / "other", provenance={"data": images.saved_settings})
    words = "AudioEncoder, which encodes audio, but data is Images, which reads image"
    refuses(words, evaluate, tmp_path / "other", manifest)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.modality.Mine", r"outside the trusted packages cpc.*`trusted_packages` cpc tests"),
        ("cpc.data.Modality", "cpc.data.Modality is not a Modality"),
        (7, "does not describe the training data"),
    ],
)
def test_a_config_cannot_name_a_class(model: cpc.CPC, manifest: Path, tmp_path: Path, path: Any, message: str) -> None:
    save_pretrained(model, tmp_path, provenance={"data": DATA.saved_settings | {"class_path": path}})
    refuses(message, evaluate, tmp_path, manifest)


def test_places_of_another_machine_are_not_taken_up(model: cpc.CPC, manifest: Path, tmp_path: Path) -> None:
    """A config.json may come from anywhere: it does not say where to write, or what else to read."""
    elsewhere = {"cache_dir": str(tmp_path / "theirs"), "alignments": str(tmp_path / "absent.csv"), "skip_bad": True}
    saved_settings = DATA.saved_settings | {"init_args": DATA.saved_settings["init_args"] | elsewhere}
    save_pretrained(model, tmp_path / "model", provenance={"data": saved_settings})
    evaluate(tmp_path / "model", manifest, num_batches=1)
    assert not (tmp_path / "theirs").exists()


def test_any_strategy_estimator_and_number_of_candidates(measure: Callable[..., Any]) -> None:
    estimators = ("info_nce", "tuba", "dv", "smile", "goodness_of_fit")
    strategies = ("mixed", "mixed_excluding")
    encoded = []
    with torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: encoded.append(1) if isinstance(module, cpc.CPC) else None
    ):
        report = measure(negatives=strategies, num_negatives=(None, 5), estimators=estimators, num_batches=3)
    assert len(encoded) == 3  # every measure shares its batches' encoding
    of_bounds = [(bound["num_negatives"], bound["strategy"]) for bound in report["bounds"]]
    assert of_bounds == [(None, "mixed"), (None, "mixed_excluding"), (5, "mixed"), (5, "mixed_excluding")]
    assert report["bounds"][2]["num_candidates"] == pytest.approx([6, 6])
    assert report["num_negatives"] is None  # the model's own
    keys = [(each["num_negatives"], each["strategy"], each["estimator"]) for each in report["estimates"]]
    assert keys == [(*of_bound, name) for of_bound in of_bounds for name in estimators[1:]]
    for each in report["estimates"]:
        assert each["steps"] == [1, 2]
        assert all(error > 0 for error in each["standard_error_nats"])
        assert all(abs(nats) < 1 for nats in each["estimate_nats"])  # the model is untrained
        is_bound = each["strategy"] == "mixed_excluding" and each["estimator"] == "tuba"
        assert ("lower bound" in each["reading"]) == (each["side"] == "lower") == is_bound
        assert each["num_batches"] == 3
        assert each["baseline"] == ("half of the sequences" if each["estimator"] == "tuba" else None)
        if each["num_negatives"] == 5:
            assert all(1 < n <= 6 for n in each["num_candidates"])
    for bound in report["bounds"]:
        assert bound["advice"] == ["", ""]
        of_bound = [nats is not None for nats in bound["information_for_gaussians_nats"]]
        assert of_bound == [bound["reading"].startswith("lower bound")] * 2
    shown = str(report)
    assert shown.count("further estimates in nats") == 4
    assert "dv: estimate of I(z; c), if latents mix fast" in shown
    assert report._repr_html_().count("<table>") == 8
    assert [len(axes.containers) for axes in report.figure().axes] == [4]  # a line for each bound
    assert json.loads(report.path.read_text()) == report == report.to_dict()


def test_readings_go_through_the_losss_rows(corpus: RecordingCorpus, model: cpc.CPC) -> None:
    """InfoNCE, read from the scores, is the tally's for every strategy."""
    strategies = ("mixed", "mixed_excluding", "same_speaker")
    generators = {EvalProtocol(strategy, None): torch.Generator() for strategy in strategies}
    estimates = HeldOutEstimates(model, ["info_nce"], generators)
    bounds = held_out_bounds(model, HeldOut(corpus, DATA, "mixed", 4), generators, on_protocol=estimates)
    for measure, bound in bounds.items():
        record = estimates.record(measure, "info_nce", "valid")
        assert record["num_candidates"] == pytest.approx(bound.num_candidates)
        assert record["estimate_nats"] == pytest.approx(bound.mi_bound_nats, abs=1e-5)
        assert (record["num_rows"], record["num_batches"]) == (bound.num_rows, bound.num_batches)


def test_speakers_per_batch_of_no_batch_are_refused(
    measure: Callable[..., Any], model: cpc.CPC, tmp_path: Path
) -> None:
    words = "without `sampler`=same_speaker: batches for mixed, mixed_excluding are"
    refuses(words, measure, speakers_per_batch=2)
    assert measure(speakers_per_batch=2, sampler="same_speaker", num_batches=1)["speakers_per_batch"] == 2  # as advised
    measure(speakers_per_batch=2, negatives=["same_speaker"], num_batches=1)
    save_pretrained(model, tmp_path, provenance={"data": replace(DATA, sampler="same_speaker").saved_settings})
    words = "batches for sequence_only are drawn from all speakers"
    refuses(words, measure, speakers_per_batch=2, negatives=["sequence_only"])


@pytest.mark.parametrize("num", [10**8, 10**12])
def test_negatives_beyond_every_memory_are_refused_first(measure: Callable[..., Any], tmp_path: Path, num: int) -> None:
    words = rf"`num_negatives`={num} for each of \d+ rows .* takes \d+ GB"
    refuses(words, measure, split="valid", num_negatives=[2, num])
    assert not (tmp_path / "bound.json").exists()


def test_few_files_hold_out_two_and_a_split_of_one_leaves_the_extra_strategy_out(
    model: cpc.CPC, tmp_path: Path, write_audio: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "corpus"
    for number in range(12):
        write_audio(folder / f"{number}.wav", seconds=0.25, seed=number)
    index_folder(folder, progress=False)
    assert read_manifest(folder).columns["split"].count("valid") == 2
    data = replace(DATA, manifest=str(folder))
    provenance = {"data": data.saved_settings, "trained_on": data.trained_on(opened(data, model.encoder))}
    save_pretrained(model, tmp_path / "model", provenance=provenance)

    def measured(**options: Any) -> set[str]:
        print(report := evaluate(tmp_path / "model", folder, split="valid", **options))
        return {bound["strategy"] for bound in report["bounds"]}

    assert measured() == {model.loss_part.training_strategies[0], "mixed_excluding"}
    for number in range(3, 12):
        (folder / f"{number}.wav").unlink()
    index_folder(folder, test_share=0.0, overwrite=True, progress=False)
    _say_once.cache_clear()  # another test may have said the same
    assert measured() == {model.loss_part.training_strategies[0]}
    printed = capsys.readouterr()
    assert "without mixed_excluding, whose negatives come from other sequences" in printed.err
    assert "training has used none of 2 files of split 'valid'" in printed.out
    refuses(r"only one sequence .* 'mixed_excluding' .*`loss.negatives`", measured, negatives=["mixed_excluding"])
    assert measured(negatives=["mixed"]) == {"mixed"}
