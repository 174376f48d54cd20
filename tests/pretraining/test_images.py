"""`cpc pretrain` and `cpc evaluate` in-process on a handful of small images: what they write and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cpc
from cpc.checkpoint import read_config
from cpc.cli import main
from cpc.data.store.atomic import read_records
from cpc.data.store.contents import _say_once
from cpc.evaluation import evaluate, recorded_data
from cpc.quickstart.recipe import part

Run, Refused, Capture = Callable[..., Path], Callable[..., str], pytest.CaptureFixture[str]
DIRECTIONS = ["down", "up", "right", "left"]
PROBE = "--trainer.callbacks=[{class_path: cpc.probes.OnlineProbe, init_args: {task: class, learning_rate: 0.05}}]"
# Latents of a trunk that slides over the image see one row more.
SLIDING = """--model.encoder.init_args.fully_convolutional=true --model.loss.skip_steps=2
    --model.predictor.init_args.num_steps=1""".split()
TRUNK = part("encoders.TinyTrunk", dim=8, strides=[4, 1], widths=[8, 8])
DATA = {"image_size": 40, "load_size": 44, "augmentation": "v1", "flip": True}  # a grid of 4 x 4
DATA |= {"batch_size": 4, "eval_batches": 2}


def write_images(path: Path, splits: list[str], seed: int = 0) -> Path:
    """Gratings whose direction is their class, in a colour of their own, at a phase of their own."""
    rng = np.random.default_rng(seed)
    labels = np.arange(len(splits)) % 3
    rows, columns = np.mgrid[:44, :44]
    along = np.stack([rows, columns, (rows + columns) / 2**0.5])[labels]
    waves = np.sin(along * 0.8 + rng.uniform(0, 6, (len(splits), 1, 1)))[..., None]
    colours = rng.uniform(20, 100, (len(splits), 1, 1, 3))
    noise = rng.normal(0, 5, (*waves.shape[:3], 3))
    images = (128 + colours * waves + noise).clip(0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, images=images, labels=labels, split=splits, classes=["rows", "columns", "oblique"])
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = ["train"] * 27 + ["valid"] * 12 + ["test"] * 3
    return write_images(tmp_path_factory.mktemp("corpus") / "gratings.npz", splits)


@pytest.fixture(scope="module")
def config(source: Path) -> dict[str, Any]:
    return dict.fromkeys(("record_every_steps", "eval_every_steps", "checkpoint_every_steps"), 2) | {
        "model": {
            "encoder": part("encoders.PatchEncoder", trunk=TRUNK, patch_size=16, stride=8),
            "context": part("contexts.PixelCNN", width=8, num_blocks=2, hidden_dim=8, directions=DIRECTIONS),
            "predictor": part("predictors.Bilinear", num_steps=2),
            "loss": part("losses.Contrastive", skip_steps=1),
        },
        "data": part("data.Images", source=str(source), **DATA),
        "trainer": {"max_steps": 4, "accelerator": "cpu"},
    }


def records(run_dir: Path, name: str = "bound.jsonl") -> list[dict]:
    return read_records(run_dir / name)


def held_out_losses(run_dir: Path) -> list[Any]:
    """The losses that the run has recorded of its exported model."""
    records = read_config(run_dir)["provenance"]["held_out"]
    return [pytest.approx(record["loss_nats"], abs=1e-5) for record in records]


def test_a_run_leaves_everything_behind(run: Run, source: Path) -> None:
    folder = run(PROBE)
    found = [(r["step"], r["split"], r["strategy"]) for r in records(folder)]
    held_out = [("valid", "mixed"), ("valid", "mixed_excluding")]
    assert found == [(step, *which) for step in (2, 4) for which in [("train", "mixed"), *held_out]]
    for record in records(folder):
        assert record["steps"] == [2, 3] * 4
        assert record["directions"] == [direction for direction in DIRECTIONS for _ in range(2)]
        # of 2 batches of 4 images with 4 columns, those of 4 rows that have a row 2 or 3 ahead
        assert record["num_rows"] == [2 * 4 * 4 * 2, 2 * 4 * 4 * 1] * 4
        num_candidates = 4 * 16 if record["strategy"] == "mixed" else 1 + 3 * 16
        assert record["num_candidates"] == [num_candidates] * 8
        assert np.allclose(record["mi_ceiling_nats"], np.log(num_candidates))
        assert np.allclose(np.array(record["mi_ceiling_nats"]) - record["loss_nats"], record["mi_bound_nats"])
    for record in records(folder, "probe.jsonl"):
        assert (record["task"], record["num_examples"]) == ("class", 8)
        assert len(record["mi_bound_nats"]) == 8
    assert [record["step"] for record in records(folder, "probe.jsonl")] == [2, 4]
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    of_data = yaml.safe_load((folder / "config.yaml").read_text())["data"]
    assert of_data["class_path"].endswith("Images")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    shown = events.Scalars("valid/left/k=03/mi_bound_nats")
    of_the_run = [r["mi_bound_nats"][7] for r in records(folder) if r["split"] == "valid" and r["strategy"] == "mixed"]
    assert [event.value for event in shown] == pytest.approx(of_the_run, rel=1e-5)
    config = read_config(folder)
    assert (config["modality"], config["patch_size"], config["stride"], config["num_channels"]) == ("image", 16, 8, 3)
    saved_settings = config["provenance"]["data"]
    assert saved_settings["class_path"] == "cpc.data.images.modality.Images"
    assert saved_settings["init_args"] == {name: of_data["init_args"][name] for name in saved_settings["init_args"]}
    assert saved_settings["init_args"].items() >= {"source": str(source), **DATA}.items()
    assert not saved_settings["init_args"].keys() & {"cache_dir", "skip_bad", "num_workers"}
    model = cpc.load_pretrained(folder)
    assert (model.is_initialised, model.loss_part.skip_steps) == (True, 1)
    assert model(torch.rand(2, 3, 40, 40)).contexts.shape == (2, 4, 4, 4 * 8)
    assert config["architecture"]["init_args"]["encoder"]["init_args"]["crop_size"] == model.encoder.crop_size == 15
    with np.load(source) as arrays:
        pixels = arrays["images"][:27] / 255
    np.testing.assert_allclose(model.encoder.pixel_mean, pixels.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(model.encoder.pixel_std, pixels.std((0, 1, 2)), rtol=1e-5)


def test_it_learns_what_there_is_to_learn(run: Run) -> None:
    """Phase and colour of a grating are an image's own, its direction too: the probe of classes sees it."""
    options = [f"--{name}=60" for name in ("trainer.max_steps", "eval_every_steps", "record_every_steps")]
    folder = run(*options, "--model.learning_rate=0.01", "--checkpoint_every_steps=60", PROBE)
    bound = records(folder)[-1]
    assert bound["strategy"] == "mixed_excluding"
    assert np.mean(bound["mi_bound_nats"]) > 0.8
    (probe,) = records(folder, "probe.jsonl")
    assert probe["accuracy"] >= 0.75  # one in three by chance


def test_a_broken_run_continues_bit_for_bit(
    run: Run, refused: Refused, break_at: Callable[[int], None], tmp_path: Path
) -> None:
    """With two workers, through the end of a pass, at the seventh batch."""
    options = ["--model.loss.num_negatives=7", "--model.schedule=cosine", "--trainer.max_steps=9", PROBE]
    options += ["--data.augmentation=v2", "--data.num_workers=2", "--data.packed=false"]
    options += ["--checkpoint_every_steps=5", "--record_every_steps=3", "--eval_every_steps=4"]

    def outcome(folder: Path) -> tuple[Any, ...]:
        weights = torch.load(folder / "checkpoints" / "last.ckpt")["state_dict"]
        names = ("bound.jsonl", "probe.jsonl", "model/config.json")
        return *((folder / name).read_text() for name in names), {k: v.tolist() for k, v in weights.items()}

    whole = outcome(run(*options))
    folder = (tmp_path / "run").rename(tmp_path / "whole").with_name("run")
    break_at(7)
    refused(*options)
    assert records(folder)[-1]["step"] == 6
    assert outcome(run(*options, "--ckpt_path=last")) == whole


def test_the_best_of_a_checkpoint_stays_and_another_model_is_refused(
    run: Run, refused: Refused, finished: Path, capsys: Capture
) -> None:
    path = finished / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path)
    architecture = checkpoint["cpc"]["architecture"]["init_args"]
    (best,) = (state for state in checkpoint["callbacks"].values() if "best_bound_nats" in state)
    best["best_bound_nats"] = 99.0  # stays, since held-out images are the same
    del best["measured_on"]["valid_share"]
    torch.save(checkpoint, path)
    run("--ckpt_path=last", "--trainer.max_steps=6", "--data.augmentation=v2")
    told = capsys.readouterr().err
    assert "data.augmentation is 'v1' in the checkpoint, 'v2' now" in told
    assert "data.flip" not in told
    assert records(finished)[-1]["step"] == 6
    states = torch.load(path)["callbacks"].values()
    assert [state["best_bound_nats"] for state in states if "best_bound_nats" in state] == [99.0]
    architecture["loss"]["init_args"]["skip_steps"] = 0
    torch.save(checkpoint, path)
    assert "model.loss.skip_steps is 0 in the checkpoint, 1 now" in refused("--ckpt_path=last", "--trainer.max_steps=8")


def test_held_out_images_without_labels_leave_the_probe_without_a_result(run: Run, tmp_path: Path) -> None:
    path = write_images(tmp_path / "half.npz", ["train"] * 9 + ["valid"] * 4)
    with np.load(path) as arrays:
        content = dict(arrays)
    content["labels"][9:] = -1
    np.savez(path, **content)
    folder = run(PROBE, f"--data.source={path}")
    assert [(r["num_examples"], r["accuracy"]) for r in records(folder, "probe.jsonl")] == [(0, None)] * 2


@pytest.mark.parametrize(
    "options",
    [
        [
            *("--trainer.precision=bf16-mixed", "--model.loss.compute=bf16"),
            *("--trainer.gradient_clip_val=1.0", "--model.optimiser=adamw"),
        ],
        ["--model.encoder.init_args.trunk.init_args.num_channels=1", "--data.augmentation=v2"],
        """--model.predictor=cpc.predictors.TransformerPredictor --model.predictor.init_args.num_steps=2
            --model.predictor.init_args.num_heads=2""".split(),
    ],
    ids=["bfloat16", "grey", "transformer"],
)
def test_other_parts_train_and_are_measured(run: Run, options: list[str], source: Path) -> None:
    folder = run(*options)
    assert all(np.isfinite(r["loss_nats"]).all() for r in records(folder))
    measured = evaluate(folder, source, num_batches=2)["bounds"][0]["loss_nats"]
    assert measured == pytest.approx(read_config(folder)["provenance"]["held_out"][0]["loss_nats"], abs=0.02)


def test_a_folder_of_photographs_is_enough(run: Run, refused: Refused, source: Path, tmp_path: Path) -> None:
    """Neither splits nor classes; of different sizes, and one of them broken."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    with np.load(source) as arrays:
        for number, pixels in enumerate(arrays["images"]):
            Image.fromarray(pixels).resize((50 + number, 44)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    assert "of split 'train'; the splits are unlabelled" in refused(f"--data.source={folder}")
    options = [f"--data.source={folder}", "--data.train_split=unlabelled", "--data.valid_share=0.2"]
    assert "broken.png" in refused(*options)
    with pytest.warns(UserWarning, match="went on without 1 of 43"):
        run_dir = run(*options, "--data.skip_bad=true")
    assert records(run_dir)[-1]["step"] == 4
    with pytest.warns(UserWarning, match="went on without 1 of 43"):
        measured = evaluate(run_dir, folder, num_batches=2, skip_bad=True)
    assert measured["split"] == "valid"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.image_size=32"], "data.image_size=32 gives 3 rows of patches, but the model predicts 3 steps ahead"),
        (["--model.loss.skip_steps=2"], "data.image_size=40 gives 4 rows of patches, but the model predicts 4 steps"),
        (["--data.image_size=8"], "images of 8 pixels are smaller than patch_size=16"),
        (["--data.image_size=43"], "leave out the last 3 pixels of images of 43: set --data.image_size to 40 or 48"),
        (["--data.load_size=39"], "--data.load_size=39 is smaller than --data.image_size=40"),
        (["--model.encoder.init_args.crop_size=12"], "crop_size=12, but --data.augmentation='v1' shows 15 pixels"),
        (
            ["--model.encoder.init_args.patch_size=8", "--model.encoder.init_args.trunk.init_args.strides=[4, 4]"],
            "patch_size=8 does not fit the trunk TinyTrunk, which cannot encode a patch",
        ),
        (SLIDING, "augmentation='v1' changes patches one by one"),
        (["--model.encoder.init_args.trunk=cpc.encoders.GradientTrunk"], "whose edges GradientTrunk reads: set --data"),
        (["--model.loss.negatives=same_speaker"], "no speakers: set --model.loss.init_args.negatives to mixed"),
        (["--model.loss.negatives=mixed_excluding", "--data.batch_size=1"], "'mixed_excluding' leaves 1 of 1"),
        (["--data.source=nowhere"], "there is no folder or npz file nowhere"),
        (["--data.packed=false", "--data.skip_bad=true"], "--data.packed=false is for image files, without shards"),
        (["--trainer.callbacks=cpc.probes.OnlineProbe"], "no task 'speaker' for an online probe; their tasks are"),
    ],
)
def test_mistakes_end_before_training_with_their_name(
    refused: Refused, options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the data end before anything is packed."""
    if options[0].startswith("--data."):
        monkeypatch.setattr("cpc.data.images.corpus.pack_images", lambda *_, **__: pytest.fail("packed"))
    assert message in refused(*options)
    assert not (tmp_path / "run" / "bound.jsonl").exists()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1] * 6, "have no task 'class' for an online probe; their tasks are none: add labels"),
        ([0] * 6, "number of classes of task 'class'=1 must be at least 2"),
    ],
)
def test_an_online_probe_needs_classes(refused: Refused, labels: list[int], message: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 40, 40), np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=labels, split=["train"] * 4 + ["valid"] * 2)
    assert message in refused(PROBE, f"--data.source={tmp_path / 'few.npz'}")


def test_rows_that_share_pixels_and_are_not_skipped_are_told(run: Run) -> None:
    """facts T25: legal, the paper does it, and never without a word."""
    with pytest.warns(UserWarning, match=r"`loss.skip_steps`=0, but the next 1 rows share pixels"):
        run("--model.loss.skip_steps=0")
    with pytest.warns(UserWarning, match=r"`loss.skip_steps`=1, but the next 2 rows share pixels"):
        run(SLIDING[0], "--data.augmentation=none", name="sliding")


def test_a_held_out_scene_has_no_others_negatives_and_copies_are_counted(
    run: Run, tmp_path: Path, capsys: Capture
) -> None:
    path = write_images(tmp_path / "one.npz", ["train"] * 9 + ["valid"] * 2)
    arrays = dict(np.load(path))
    arrays["images"][9] = arrays["images"][4]
    np.savez(path, **arrays, sequence=[*range(9), 9, 9])
    _say_once.cache_clear()  # another test may have said the same
    held_out = [r for r in records(run(f"--data.source={path}")) if r["split"] == "valid"]
    assert {r["strategy"] for r in held_out} == {"mixed"}
    copies = {"num_shared": 1, "num_compared": 2, "num_tested": 2, "unit": "image"}
    assert held_out[0]["pretrained_on"] == copies
    printed = capsys.readouterr().err
    assert "without mixed_excluding, whose negatives come from other sequences" in printed
    assert "1 of 2 images of split 'valid' are copies of training data" in printed


def test_cpc_evaluate_repeats_the_runs_own_measurement(finished: Path, source: Path, capsys: Capture) -> None:
    of_the_run = read_config(finished)["provenance"]["held_out"]
    main(["evaluate", str(finished), "--data", str(source), "--num_batches", "2"])
    assert "left 3" in capsys.readouterr().out
    measured = json.loads((finished / "bound.json").read_text())
    assert (measured["image_size"], measured["load_size"], measured["split"]) == (40, 44, "valid")
    for here, there in zip(measured["bounds"], of_the_run, strict=True):
        of_both = [name for name in there if not name.endswith("nats") and name != "pretrained_on"]
        assert {name: here[name] for name in of_both} == {name: there[name] for name in of_both}
        assert measured["pretrained_on"] == there["pretrained_on"]
    assert [each["loss_nats"] for each in measured["bounds"]] == held_out_losses(finished)


def test_unlabelled_images_are_held_out_where_they_are_trained_on(run: Run, tmp_path: Path) -> None:
    """All labelled images stay with the probe; `cpc evaluate` finds the same held-out ones."""
    path = write_images(tmp_path / "parts.npz", ["unlabelled"] * 60 + ["train"] * 20 + ["test"] * 9)
    folder = run(f"--data.source={path}", "--data.train_split=unlabelled", "--data.valid_share=0.2")
    table = recorded_data(read_config(folder), path).open(cpc.load_pretrained(folder).encoder).table
    assert len(table.rows("train")) == 20
    assert len(table.rows("valid")) + len(table.rows("unlabelled")) == 60
    assert evaluate(folder, path, num_batches=2)["bounds"][0]["loss_nats"] == held_out_losses(folder)[0]


def test_evaluate_takes_other_sizes_but_not_what_images_lack(finished: Path, source: Path, refusal: Refused) -> None:
    larger = evaluate(finished, source, num_batches=1, image_size=48, load_size=48, batch_size=2)
    assert larger["bounds"][0]["num_candidates"] == [2 * 5 * 5] * 8
    command = ["evaluate", str(finished), "--data", str(source), "--out", str(finished / "other.json")]
    for options, message in (
        (["--window_samples", "3200"], "--window_samples 3200; "),
        (["--negatives", "same_speaker"], "images have no speakers"),
        (["--image_size", "48"], "load_size=44 is smaller than --image_size=48"),
        (["--image_size", "24", "--load_size", "24"], "the longest sequence has 2 latents"),
    ):
        printed = refusal([*command, *options])
        assert message in printed
        is_unknown = "is a model of image, whose data have no such option" in printed
        assert is_unknown == (message == f"{' '.join(options)}; ")
    assert not (finished / "other.json").exists()
