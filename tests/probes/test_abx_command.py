"""`cpc abx` from the corpus to probe.json, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cpc
from cpc.cli import main
from cpc.data import Audio, read_audio, read_manifest
from cpc.data.audio.items import HEADER, read_items
from cpc.data.features import Features
from cpc.probes import Extraction
from cpc.probes.abx import Spans, abx_errors
from cpc.probes.abx.command import abx

TRIPLET = ["0 0.1 mid low high ann", "0.1 0.2 mid low high ann", "0.2 0.3 low low high ann"]


LINES = [f"test/ann-0 {line}" for line in TRIPLET]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([HEADER, *lines]))
    return path


def test_alignments_to_errors(
    model_folder: Path, corpus: Path, corpus_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = corpus / "tones.item"
    main(["data", "items", str(corpus_folder), "--out", str(items), "--alignments", str(corpus_folder)])
    main(["abx", str(model_folder), "--items", str(items), "--features", "z", "c", "mfcc", "--context", "any"])
    printed = capsys.readouterr().out
    report = json.loads((model_folder / "probe.json").read_text())
    assert report["model"]["step"] == 7
    record = report["abx"]["tones, context any"]
    assert "72 items, context any, max_size_group 10, max_x_across 5, seed 0\n" in printed
    assert record["items"]["num_items"] == len(read_items(items)) == 72
    assert (record["protocol"]["context"], record["protocol"]["seed"]) == ("any", 0)
    assert list(record["results"]) == ["cpc_z", "cpc", "mfcc", "random_z"]
    for mode in ("within", "across"):
        assert record["results"]["mfcc"][mode]["error_percent"] < 2  # tones at 300, 1200 and 3000 Hz
        assert f"{record['results']['cpc'][mode]['error_percent']:.2f}" in printed
    assert record["results"]["cpc"]["num_without_frames"] == 0
    assert record["protocol"]["features"]["cpc_z"]["hop_samples"] == 160


def test_whole_recordings_are_encoded(
    model: cpc.CPC, model_folder: Path, corpus: Path, corpus_folder: Path, tmp_path: Path
) -> None:
    """Contexts of an item have heard all that comes before it."""
    main(["data", "items", str(corpus_folder), "--out", str(corpus / "x.item")])
    items, manifest = read_items(corpus / "x.item"), read_manifest(corpus)
    features = Features("c", model)
    frames = {
        str(Path(path).with_suffix("")): features(read_audio(file, 16000))
        for path, file in zip(manifest.paths, manifest.files, strict=True)
    }
    of_item = [next(values for name, values in frames.items() if name.endswith(each)) for each in items.files]
    first = np.ceil((items.onset_seconds * 16000 - features.first_centre_samples) / 160).astype(int)
    end = np.ceil((items.offset_seconds * 16000 - features.first_centre_samples) / 160).astype(int)
    pieces = [values[a:b] for values, a, b in zip(of_item, first, end, strict=True)]
    lengths = np.array([len(piece) for piece in pieces])
    expected = abx_errors(np.concatenate(pieces), Spans(np.cumsum(lengths) - lengths, lengths), items)
    extraction = Extraction(progress=False)
    report = abx(model_folder, corpus / "x.item", features=["c"], baselines=[], extraction=extraction)
    found = report["abx"]["x"]["results"]["cpc"]
    for mode, error in expected.items():
        assert found[mode]["error_percent"] == pytest.approx(error.error_percent, abs=0.5)


def test_errors_stand_beside_probes_of_the_same_weights(
    model: cpc.CPC, model_folder: Path, corpus: Path, corpus_folder: Path
) -> None:
    for name in ("one", "two"):
        main(["data", "items", str(corpus_folder), "--out", str(corpus / f"{name}.item")])
    options = ["--features", "z", "--baselines"]

    def run_abx(name: str) -> dict[str, object]:
        main(["abx", str(model_folder), "--items", str(corpus / f"{name}.item"), *options])
        return json.loads((model_folder / "probe.json").read_text())

    def run_probe() -> dict[str, object]:
        main(["probe", str(model_folder), "--data", str(corpus), "--task", "first", *options])
        return json.loads((model_folder / "probe.json").read_text())

    assert run_abx("one")["tasks"] == {}
    first = run_probe()
    assert list(first["tasks"]) == ["first"]  # type: ignore[call-overload]
    assert list(first["abx"]) == ["one"]  # type: ignore[call-overload]
    second = run_abx("two")
    assert list(second["abx"]) == ["one", "two"]  # type: ignore[call-overload]
    assert all(first[key] == second[key] for key in ("schema", "tasks", "bound", "protocol", "data"))
    with_other_weights = cpc.CPC(model.encoder, model.context, model.predictor)
    with_other_weights.encoder.set_statistics(0.0, 0.2)
    provenance = {"step": 8, "data": Audio(manifest="unknown").saved_settings}
    cpc.save_pretrained(with_other_weights, model_folder / "model", provenance=provenance)
    assert list(run_abx("one")["abx"]) == ["one"]  # type: ignore[call-overload]
    assert run_abx("one")["tasks"] == {}


def test_items_that_do_not_fit_the_audio_are_refused_or_left_out(
    model_folder: Path, corpus: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    lines = [*LINES, "nobody 0 0.1 mid low high ann", "test/ann-1 7 8 mid low high ann"]
    command = ["abx", str(model_folder), "--items", str(write(corpus / "x.item", *lines)), "--features", "z"]
    message = refusal(command)
    assert f"1 of 5 items of {corpus / 'x.item'} are of 1 files that the manifest in {corpus} does not list" in message
    assert "nobody" in message
    assert "name the audio with --data, or set --skip_bad" in message
    write(corpus / "x.item", *lines[:3], lines[4])
    message = refusal(command)
    assert "1 of 4 items" in message
    assert "test/ann-1 7.0 8.0 mid low high ann (it lasts 0.4 s)" in message
    assert not (model_folder / "probe.json").exists()
    write(corpus / "x.item", *lines)
    with pytest.warns(UserWarning, match="left out 1 of") as warned:
        main([*command, "--skip_bad"])
    assert len([each for each in warned if "left out" in str(each.message)]) == 2
    report = json.loads((model_folder / "probe.json").read_text())
    counts = {"num_items": 3, "num_left_out": 2, "num_cut": 0}
    assert counts.items() <= report["abx"]["x"]["items"].items()
    assert report["abx"]["x"]["results"]["cpc_z"]["within"]["num_triplets"] == 2
    assert report["abx"]["x"]["results"]["cpc_z"]["across"] is None
    printed = capsys.readouterr().out
    assert "none" in printed
    assert "items left out, because the data lack their recording: 2" in printed


def test_every_item_file_and_protocol_has_its_own_errors(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    items = write(corpus / "phone.item", *LINES)
    options = ["--features", "z", "--baselines"]

    def run_abx(*more: str) -> list[str]:
        main(["abx", str(model_folder), "--items", str(items), *options, *more])
        return list(json.loads((model_folder / "probe.json").read_text())["abx"])

    run_abx("--context", "any")
    of_old = json.loads((model_folder / "probe.json").read_text())
    of_old["abx"] = {"phone": of_old["abx"]["phone, context any"]}  # as older reports name it
    (model_folder / "probe.json").write_text(json.dumps(of_old))
    assert run_abx("--seed", "1", "--max_size_group", "2") == ["phone, context any", "phone, max_size_group 2, seed 1"]
    capsys.readouterr()
    assert run_abx() == ["phone, context any", "phone, max_size_group 2, seed 1", "phone"]
    assert "replaced" not in capsys.readouterr().err
    run_abx()
    assert f"{model_folder / 'probe.json'} had 'phone' before: replaced" in capsys.readouterr().err
    (tmp_path / "test").mkdir()
    other = write(tmp_path / "test" / "phone.item", *[f"test/ann-1 {line}" for line in TRIPLET])
    command = ["abx", str(model_folder), "--items", str(other), *options, "--data", str(corpus)]
    message = refusal(command)
    assert f"has 'phone' of other items, {items}: rename the item file, or name another report with --out" in message
    message = refusal([*command[:-2], "--seed", "5"])
    assert f"there is no manifest beside {other}: name the folder of the audio with --data" in message


def test_items_that_end_after_their_recording_and_short_ones_are_counted(
    model_folder: Path, corpus: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    lines = [f"test/ann-0 {line}" for line in [*TRIPLET, "0.3 0.44 mid low high ann", "0.3 0.4005 mid low high ann"]]
    items = str(write(corpus / "x.item", *lines, "test/ann-0 0.3 0.46 mid low high ann"))
    message = refusal(["abx", str(model_folder), "--items", items])
    assert "1 of 6 items" in message
    assert "test/ann-0 0.3 0.46 mid low high ann (it lasts 0.4 s)" in message
    write(corpus / "x.item", *lines, "test/ann-0 0.301 0.302 mid low high ann")
    main(["abx", str(model_folder), "--items", items, "--features", "z", "--baselines"])
    printed = capsys.readouterr().out
    assert "items that end after their recording, and are cut at its end: 1" in printed
    assert "items left out, because they are too short for a frame: cpc_z 1" in printed
    assert json.loads((model_folder / "probe.json").read_text())["abx"]["x"]["items"]["num_cut"] == 1


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([f"test/ann-0 {line}" for line in TRIPLET[:2]], [], "its 2 items do not form a triplet"),
        ([f"ann-0 {line}" for line in TRIPLET], [], "items of 'ann-0' may be of 3 files"),
        (LINES, ["--features", "pixels"], "must be among c, z, mfcc, logmel"),
        (LINES, ["--baselines", "majority"], "must be among random, mfcc, logmel"),
        (LINES, ["--train_split", "x"], "is of split 'x'"),
    ],
)
def test_refusals(
    lines: list[str], options: list[str], message: str, model_folder: Path, corpus: Path, refusal: Callable[..., str]
) -> None:
    command = ["abx", str(model_folder), "--items", str(write(corpus / "x.item", *lines)), *options]
    assert message in refusal(command)
    assert not (model_folder / "probe.json").exists()


def test_damaged_reports_and_models_without_phones_are_refused(
    model_folder: Path, corpus: Path, refusal: Callable[..., str], model: cpc.CPC
) -> None:
    items = write(corpus / "x.item", *LINES)
    (model_folder / "probe.json").write_text("{")
    message = refusal(["abx", str(model_folder), "--items", str(items)])
    assert "probe.json is not JSON" in message
    assert "the file is not a report: delete it" in message
    assert "name another file with --out" in message
    saved_settings = {"class_path": "cpc.data.Images", "init_args": {"image_size": 8}}
    cpc.save_pretrained(model, model_folder / "model", provenance={"data": saved_settings})
    message = refusal(["abx", str(model_folder), "--items", str(items)])
    assert "is a model of image, but ABX items are phones of audio" in message
