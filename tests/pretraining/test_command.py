"""`cpc pretrain` on a handful of real audio files: what it writes, what it refuses, how it ends and goes on."""

import multiprocessing
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from refusals import Code, refuses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import cpc
from cpc.checkpoint import read_config
from cpc.cli import main
from cpc.data import Manifest, read_manifest
from cpc.data.store.atomic import read_records
from cpc.pretraining.command import _worker_error
from cpc.pretraining.data import PretrainingData
from cpc.pretraining.module import Pretraining
from cpc.pretraining.pretrain import pretrain
from cpc.pretraining.run_folder import RunFolder
from cpc.pretraining.run_lock import lock_run
from cpc.pretraining.trainer import make_trainer
from cpc.probes.tracker import Tracker
from cpc.quickstart.recipe import part

Run, Refused, Capture = Callable[..., Path], Callable[..., str], pytest.CaptureFixture[str]
Command = Callable[..., list[str]]
MODEL = {
    "encoder": part("encoders.AudioEncoder", dim=8),
    "context": part("contexts.GRU", dim=8),
    "predictor": part("predictors.Bilinear", num_steps=3),
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, write_corpus: Callable[..., Path]) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), train=8, valid=4)


@pytest.fixture(scope="module")
def config(manifest: Path) -> dict[str, Any]:
    every_two = dict.fromkeys(("record_every_steps", "eval_every_steps", "checkpoint_every_steps"), 2)
    data = part("data.Audio", manifest=str(manifest), window_samples=3200, batch_size=4, eval_batches=2)
    return every_two | {"model": MODEL, "data": data, "trainer": {"max_steps": 4, "accelerator": "cpu"}}


def records(run_dir: Path) -> list[dict]:
    return read_records(run_dir / "bound.jsonl")


def event_names(run_dir: Path) -> list[str]:
    return [record["event"] for record in read_records(run_dir / "events.jsonl")]


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "checkpoints" / "last.ckpt")["state_dict"]


def test_a_run_leaves_everything_behind(run: Run) -> None:
    folder = run()
    found = [(r["step"], r["split"], r["strategy"]) for r in records(folder)]
    held_out = [("valid", "mixed"), ("valid", "mixed_excluding")]
    assert found == [(step, *which) for step in (2, 4) for which in [("train", "mixed"), *held_out]]
    for record in records(folder):
        assert record["schema"] == 1
        for name in "loss_nats num_candidates mi_ceiling_nats mi_bound_nats standard_error_nats accuracy".split():
            assert len(record[name]) == 3
        assert np.allclose(np.array(record["mi_ceiling_nats"]) - record["loss_nats"], record["mi_bound_nats"])
        assert record["saturated"] == record["biased"] == [False] * 3
        assert record["num_batches"] == 2
        bounds_information = record["strategy"] == "mixed_excluding"
        assert record["reading"].startswith("lower bound" if bounds_information else "in-sequence candidates")
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert (folder / "checkpoints" / "best.ckpt").exists()
    assert list((folder / "tensorboard").glob("events*"))
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_steps"] == 4
    model = cpc.load_pretrained(folder)
    assert not model.training
    assert model.is_initialised
    assert model(torch.randn(2, 3200)).contexts.shape == (2, 20, 8)


def test_a_run_of_an_older_version_continues_unless_it_used_what_losses_no_longer_have(
    run: Run, refused: Refused, finished: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    options = checkpoint["cpc"]["architecture"]["init_args"]["loss"]["init_args"]
    message = "--model.loss.init_args.exchange='ring' is no longer an option"
    options |= {"exchange": "ring", "anchor": False, "anchor_weight": 0.3}
    torch.save(checkpoint, path)
    assert message in refused("--ckpt_path=last", "--trainer.max_steps=6")
    options["exchange"] = "gather"
    torch.save(checkpoint, path)
    for exchange in ("ring", "gather"):
        loss = part("losses.Contrastive", **options | {"exchange": exchange})
        monkeypatch.setitem(config, "model", MODEL | {"loss": loss})
        if exchange == "ring":
            assert message in refused("--ckpt_path=last", "--trainer.max_steps=6")
    run("--ckpt_path=last", "--trainer.max_steps=6")
    assert records(finished)[-1]["step"] == 6
    assert "exchange" not in (finished / "config.yaml").read_text()


def test_gradient_accumulation_counts_optimiser_steps(run: Run) -> None:
    folder = run("--trainer.accumulate_grad_batches=2")
    train = [r for r in records(folder) if r["split"] == "train"]
    assert [r["step"] for r in train] == [2, 4]
    assert train[0]["num_rows"][0] == 2 * 2 * 4 * 19  # steps, batches a step, windows, rows of k = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.loss.negative=mixed"], "Option 'negative' is not accepted"),  # abbreviated
        (["--model.loss.negatives=all"], "negatives='all' is not one of mixed"),
        (["--model.predictor.init_args.num_steps=20"], "data.window_samples=3200 gives 20 latents"),
        (["--data.eval_split=dev"], "is of split 'dev'; the splits are train, valid"),
        (["--data.manifest=nowhere"], "nowhere"),
        (["--model.loss.negatives=same_speaker_excluding", "--data.batch_size=1"], "without a negative"),
        (
            ["--model.loss.auxiliary_negatives={same_speaker_excluding: 0.5}", "--data.batch_size=2"],
            "excluding' leaves",
        ),
        (["--model.loss={class_path: cpc.losses.Contrastive, init_args: {anchor: true}}"], "anchor`=True is no longer"),
        (["--ckpt_path=last"], "there is no"),
        (["--run_dir= "], "error: --run_dir is empty: give a value, or leave it out"),
        ([f"--seed_everything={2**70}"], f"error: --seed_everything={2**70} must be at least 0 and at most 4294967295"),
        (["--record_every_steps=0"], "--record_every_steps=0 must be at least 1"),
        (["--data.train_split=valid"], "data.train_split and --data.eval_split are both 'valid'"),
        (["--trainer.max_steps=-1"], "trainer.max_steps and --run_dir must be given"),
        (["--trainer.gradient_clip_algorithm=norm"], "needs trainer.gradient_clip_val"),
        (["--trainer.gradient_clip_val=-1"], "trainer.gradient_clip_val=-1.0 must be at least 0"),
        (["--trainer.precision=bf16-true"], "trainer.precision='bf16-true' is not one of 32-true"),
        (["--trainer.accelerator=tpu"], "Given: trainer.accelerator=tpu"),
        (["--trainer.max_epochs=3"], "trainer.max_epochs"),  # would do nothing
        (["--trainer.enable_checkpointing=true"], "trainer.enable_checkpointing"),
        (["--data.batch_size=1", "--model.loss.negatives=sequence_only"], "'mixed_excluding' of model.extra_str"),
        (["--data=cpc.encoders.AudioEncoder"], "cpc.encoders.AudioEncoder"),
        (["--trainer.callbacks=[{class_path: cpc.probes.OnlineProbe, init_args: {task: class}}]"], "no task 'class'"),
        (
            """--model.encoder=cpc.encoders.PatchEncoder --model.encoder.trunk=cpc.encoders.TinyTrunk
                --model.context=cpc.contexts.PixelCNN""".split(),
            "model.encoder is PatchEncoder, which encodes image, but data is Audio, which reads audio",
        ),
    ],
)
def test_mistakes_end_before_training_with_their_name(
    refused: Refused, options: list[str], message: str, tmp_path: Path
) -> None:
    assert message in refused(*options)
    assert not (tmp_path / "run" / "bound.jsonl").exists()


def test_no_split_is_no_training_on_everything(config: dict[str, Any], tmp_path: Path, unchecked_types: None) -> None:
    """A null in a config passes jsonargparse's check of types."""
    for name in ("train_split", "eval_split"):
        refuses(f"`{name}`=None must name a split", pretrain, config, {name: None}, run_dir=tmp_path)


def test_a_folder_with_a_run_is_not_written_over(refused: Refused, finished: Path) -> None:
    before = (finished / "bound.jsonl").read_bytes()
    assert f"already holds a run: continue with --run_dir {finished} --ckpt_path last" in refused()
    assert (finished / "bound.jsonl").read_bytes() == before


def test_logger_and_progress_bar_can_be_left_out(run: Run, capsys: Capture) -> None:
    folder = run("--trainer.logger=false", "--trainer.enable_progress_bar=false")
    assert not (folder / "tensorboard").exists()
    assert "it/s" not in capsys.readouterr().err
    run("--ckpt_path=last", "--trainer.max_steps=6")
    assert list((folder / "tensorboard").glob("events*"))
    assert "6/6" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        [
            *("--data.sampler=same_speaker", "--data.speakers_per_batch=2", "--trainer.accumulate_grad_batches=3"),
            *("--model.loss.negatives=same_speaker_excluding", "--model.loss.num_negatives=7"),
            "--model.loss.auxiliary_negatives.mixed_excluding=0.5",
        ],
        """--model.context.init_args.num_layers=2 --model.context.init_args.dropout=0.3 --model.schedule=cosine
            --model.predictor=cpc.predictors.TransformerPredictor --model.predictor.init_args.num_steps=3
            --model.predictor.init_args.num_heads=2 --model.predictor.init_args.feedforward_dim=16
            --model.predictor.init_args.shared_across_steps=true""".split(),
    ],
    ids=["accumulated same-speaker batches", "context and predictor with dropout"],
)
def test_a_broken_run_continues_bit_for_bit(
    run: Run, refused: Refused, break_at: Callable[[int], None], tmp_path: Path, options: list[str]
) -> None:
    options += ["--trainer.max_steps=9", "--checkpoint_every_steps=5", "--record_every_steps=3", "--eval_every_steps=4"]
    folder = run(*options)
    whole = (folder / "bound.jsonl").read_text(), read_config(folder)["sha256"]
    folder.rename(tmp_path / "whole")
    break_at(7)
    refused(*options)
    assert records(folder)[-1]["step"] == 6
    run(*options, "--ckpt_path=last")
    assert ((folder / "bound.jsonl").read_text(), read_config(folder)["sha256"]) == whole


def test_tensorboard_shows_a_resumed_step_once(run: Run, refused: Refused, break_at: Callable[[int], None]) -> None:
    options = ["--trainer.max_steps=6", "--checkpoint_every_steps=3", "--record_every_steps=1"]
    probes = [f"{{class_path: cpc.probes.OnlineProbe, init_args: {{task: speaker, features: {x}}}}}" for x in "zc"]
    options.append(f"--trainer.callbacks=[{', '.join(probes)}]")
    break_at(5)
    refused(*options)
    folder = run(*options, "--ckpt_path=last")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/mi_bound_nats")] == [1, 2, 3, 4, 5, 6]
    errors = [event.value for event in events.Scalars("train/k=01/standard_error_nats")]
    recorded = [r["standard_error_nats"][0] for r in records(folder) if r["split"] == "train"]
    assert errors == pytest.approx(recorded, rel=1e-5)
    probed = read_records(folder / "probe.jsonl")
    for x in "zc":
        shown = {event.step: event.value for event in events.Scalars(f"probe/speaker/{x}/accuracy")}
        assert shown == pytest.approx({r["step"]: r["accuracy"] for r in probed if r["features"] == x}, rel=1e-5)
    healths = read_records(folder / "health.jsonl")
    norms = {event.step: event.value for event in events.Scalars("health/gradient_norm")}
    assert norms == pytest.approx({record["step"]: record["gradient_norm"] for record in healths}, rel=1e-5)


def test_changed_settings_hold_after_a_resume_and_are_named(run: Run, capsys: Capture) -> None:
    folder = run("--model.schedule=cosine")
    before = weights(folder)
    capsys.readouterr()
    run("--ckpt_path=last", "--trainer.max_steps=6", "--model.learning_rate=1e-12")
    told = capsys.readouterr().err
    assert "model.learning_rate is 0.0002 in the checkpoint, 1e-12 now" in told
    assert "model.schedule is 'cosine' in the checkpoint, 'constant' now" in told
    assert "trainer.max_steps is 4 in the checkpoint, 6 now" in told
    assert "betas" not in told
    for name, tensor in weights(folder).items():
        assert torch.allclose(tensor, before[name], rtol=0, atol=1e-7), name


@pytest.mark.parametrize("given", ["best", "PATH"])
def test_code_in_a_checkpoint_is_not_run(refused: Refused, finished: Path, given: str) -> None:
    path = finished / "checkpoints" / "best.ckpt"
    touched = finished / "touched"
    torch.save(torch.load(path) | {"callbacks": Code(touched)}, path)
    assert f"{path} holds posix.mkdir, which could run code when the file is read" in refused(
        f"--ckpt_path={path if given == 'PATH' else given}", "--trainer.max_steps=6"
    )
    assert not touched.exists()


def test_a_state_not_to_be_read_is_not_saved(refused: Refused, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a callback of one's own may have it; the checkpoint of before stays."""
    before = (finished / "checkpoints" / "last.ckpt").read_bytes()
    monkeypatch.setattr(Tracker, "state_dict", lambda self: {"folder": finished})
    assert "best.new holds pathlib" in refused("--ckpt_path=last", "--trainer.max_steps=6", "--eval_every_steps=100")
    assert (finished / "checkpoints" / "last.ckpt").read_bytes() == before


@pytest.mark.parametrize("lost", ["[gloo/unbound_buffer.cc:78] in recv", "Application timeout caused pair closure"])
def test_a_rank_lost_while_one_saves_is_no_full_disk(
    finished: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    def save(self: pl.Trainer, path: Path) -> None:
        path.touch()
        raise RuntimeError(lost)

    monkeypatch.setattr(pl.Trainer, "save_checkpoint", save)
    with pytest.raises(RuntimeError, match=re.escape(lost)):
        RunFolder(finished, 2, 2, 2, "")._save(pl.Trainer(logger=False, barebones=True), "last")
    assert not list(finished.rglob("*.new"))


def test_an_infinite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(refused: Refused, tmp_path: Path) -> None:
    assert "earlier checkpoints are good" in refused(
        "--model.learning_rate=1e30", "--checkpoint_every_steps=1", "--trainer.max_steps=50"
    )
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())
    assert not list(tmp_path.rglob("*.new"))


def test_predictions_that_are_not_finite_are_named(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_weights(self: Pretraining, batch: object, index: int) -> None:
        with torch.no_grad():
            self.model.predictor.weights[1] = float("nan")

    monkeypatch.setattr(Pretraining, "on_train_batch_start", break_weights)
    assert "the loss is nan at training step 0, from the predictions k = 2: training stops" in refused()


def test_a_broken_gradient_is_not_saved(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the third step is finite, its gradient is not, and the checkpoint comes right behind it."""

    def break_gradient(self: Pretraining, optimizer: object) -> None:
        if self.global_step == 2:
            next(self.model.predictor.parameters()).grad[0] = float("nan")

    monkeypatch.setattr(Pretraining, "on_before_optimizer_step", break_gradient)
    assert "not finite after step 3: training stops" in refused("--checkpoint_every_steps=1", "--trainer.max_steps=50")
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 2
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A limit on file size, which a write meets as it meets a full disk: an OSError in the middle of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, former)


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(refused: Refused, finished: Path, full_disk: None) -> None:
    checkpoint = finished / "checkpoints" / "last.ckpt"
    before = checkpoint.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    assert f"is the disk full? Free space; continue with --run_dir {finished} --ckpt_path last" in refused(
        "--ckpt_path=last", "--trainer.max_steps=6", "--eval_every_steps=100"
    )
    assert checkpoint.read_bytes() == before
    assert not checkpoint.with_suffix(".new").exists()


def test_only_a_checkpoint_that_is_there_is_offered(refused: Refused, full_disk: None, tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    told = refused("--trainer.logger=false")
    assert "is the disk full? Free space; there is no checkpoint to continue from" in told
    assert "--ckpt_path" not in told


def test_the_best_is_offered_where_there_is_no_last(refused: Refused, finished: Path) -> None:
    (finished / "checkpoints" / "last.ckpt").unlink()
    for options in ([], ["--ckpt_path=last", "--trainer.max_steps=6"]):
        assert f"continue with --run_dir {finished} --ckpt_path best" in refused(*options)


@pytest.mark.parametrize("damage", ["cut off", "empty", "text", "of another program"])
def test_a_damaged_checkpoint_is_named_and_the_best_offered(refused: Refused, finished: Path, damage: str) -> None:
    path = finished / "checkpoints" / "last.ckpt"
    whole = path.read_bytes()
    path.write_bytes({"cut off": whole[: len(whole) // 2], "empty": b"", "text": b"weights: none\n"}.get(damage, whole))
    if damage == "of another program":
        torch.save({"weights": torch.zeros(3)}, path)
    told = refused("--ckpt_path=last", "--trainer.max_steps=6")
    assert str(path) in told
    assert f"{finished} has another: --ckpt_path best" in told
    assert event_names(finished) == ["started", "finished"]


BATCHES = "because its batches would change: {}; restore"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.batch_size=2", BATCHES.format("batch_size of all processes 4 -> 2")),
        ("--data.window_samples=3000", BATCHES.format("window_samples 3200 -> 3000")),
        ("--data.seed=5", BATCHES.format("seed 0 -> 5")),
        ("--data.num_workers=1", "data.num_workers=1 must be 0"),
        ("--model.encoder.init_args.dim=12", "model.encoder.dim is 8 in the checkpoint, 12 now"),
    ],
)
def test_other_models_or_batches_are_not_resumed(refused: Refused, finished: Path, option: str, message: str) -> None:
    assert message in refused("--ckpt_path=last", "--trainer.max_steps=6", option)
    assert event_names(finished) == ["started", "finished"]  # a refused start is no event of the run


def test_a_run_that_has_its_steps_says_so(run: Run, refused: Refused, finished: Path, capsys: Capture) -> None:
    run("--ckpt_path=last")
    assert "last.ckpt is of step 4, the last: raise --trainer.max_steps to go on" in capsys.readouterr().err
    assert "last.ckpt: --trainer.max_steps=3 must be at least 4" in refused("--ckpt_path=last", "--trainer.max_steps=3")
    assert event_names(finished) == ["started", "finished"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.batch_size=100000"], "data.batch_size=100000 windows of 3200 values needs at least 201 GB"),
        (["--data.window_samples=100000000", "--data.batch_size=20"], "(windows 8.0, queries 1.2, the table"),
        (  # the changed and the unchanged window
            ["--data.window_samples=100000000", "--data.batch_size=20", "--data.augmentation.pitch_cents=100"],
            "(windows 16.0, queries 1.2, the table",
        ),
        (
            ["--model.loss.num_negatives=10000000"],
            "negatives of --model.loss.init_args.num_negatives=10000000 34.6), but this machine has 9:",
        ),
    ],
)
def test_a_step_that_cannot_fit_is_refused_before_it_takes_memory(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr("cpc.pretraining.data.memory_bytes", lambda: 2**33)
    assert message in refused(*options)


def test_torchrun_without_options_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 GROUP_RANK=0 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none"
    for each in [*told.split(), "MASTER_ADDR=127.0.0.1"]:
        monkeypatch.setenv(*each.split("="))
    told = refused()
    assert "WORLD_SIZE=2 in the environment, but the options start 1 processes" in told
    assert all(f"--trainer.{name}" in told for name in ("devices", "num_nodes", "strategy"))
    assert not (tmp_path / "run").exists()


def test_a_rank_that_a_launcher_left_is_ignored_or_refused(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Lightning reads it when it is imported; a run then had no TensorBoard logs."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    options = {"max_steps": 1, "accelerator": "cpu"}
    make_trainer(devices=1, **options)
    assert rank_zero_only.rank == 0
    assert "LOCAL_RANK=1 in the environment is ignored" in capsys.readouterr().err
    words = "LOCAL_RANK=1 in the environment, without WORLD_SIZE, is no rank of several: unset it"
    refuses(words, make_trainer, devices=2, strategy="ddp", **options)


def test_torchrun_reports_the_message_as_the_cause(
    run: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As torchrun's own reader finds it in the file that it names; a place that cannot be written to is no error."""
    for name in ("missing/error.json", "error.json"):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / name))
        with pytest.raises(SystemExit, match="2"):
            run("--trainer.max_steps=0")
    failure = ProcessFailure(local_rank=1, pid=7, exitcode=2, error_file=str(tmp_path / "error.json"))
    assert failure.message == capsys.readouterr().err.splitlines()[-1]
    assert failure.message.startswith("cpc: error: ")
    assert "Traceback" not in ChildFailedError("cpc", {1: failure}).format_msg()
    assert abs(failure.timestamp - time.time()) < 60


def test_a_folder_that_cannot_be_written_to_is_named_before_anything_starts(refused: Refused, tmp_path: Path) -> None:
    """A file is in the way: the superuser may write to a read-only folder."""
    (tmp_path / "run").write_text("")
    assert f"--run_dir {tmp_path / 'run'} cannot be written to" in refused()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_says_how_to_go_on(
    run: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    step = Pretraining.training_step

    def interrupted_step(self: Pretraining, batch: object, index: int) -> object:
        if index == 0:
            signal.raise_signal(number)
        return step(self, batch, index)

    monkeypatch.setattr(Pretraining, "training_step", interrupted_step)
    if signal.getsignal(number) == signal.SIG_IGN:  # the tests run under nohup
        signal.signal(number, signal.SIG_DFL)
    handler = signal.getsignal(number)
    with pytest.raises(SystemExit) as exit_:
        run("--checkpoint_every_steps=100", "--trainer.max_steps=50")
    assert exit_.value.code == code
    assert signal.getsignal(number) is handler
    told = capsys.readouterr().err
    assert "interrupted at step 1 of 50, saved; continue with" in told
    assert "--ckpt_path last" in told
    monkeypatch.setattr(Pretraining, "training_step", step)
    folder = run("--ckpt_path=last", "--trainer.max_steps=3")
    assert records(folder)[-1]["step"] == 3
    assert event_names(folder) == ["started", "interrupted", "resumed", "finished"]


def test_sigterm_before_the_first_step_is_no_success(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    load = PretrainingData.train_dataloader

    def interrupted_load(self: PretrainingData) -> object:
        signal.raise_signal(signal.SIGTERM)
        return load(self)

    monkeypatch.setattr(PretrainingData, "train_dataloader", interrupted_load)
    with pytest.raises(SystemExit) as exit_:
        run()
    assert exit_.value.code == 143


def test_nohup_and_a_signal_at_the_last_step_change_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Pretraining.training_step

    def interrupted_step(self: Pretraining, batch: object, index: int) -> object:
        signal.raise_signal(signal.SIGTERM if self.global_step == 3 else signal.SIGHUP)
        return step(self, batch, index)

    monkeypatch.setattr(Pretraining, "training_step", interrupted_step)
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        folder = run()
    finally:
        signal.signal(signal.SIGHUP, former)
    assert event_names(folder) == ["started", "finished"]


# A run of its own process that waits in its third step, behind the checkpoint of the second, until it is let go.
WAITING = """
import sys, time
from pathlib import Path
from cpc.cli import main
from cpc.pretraining.module import Pretraining

folder, step = Path(sys.argv[1]), Pretraining.training_step

def training_step(self, batch, index):
    if self.global_step == 2:
        (folder / "waits").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    return step(self, batch, index)

Pretraining.training_step = training_step
main(sys.argv[2:])
"""


@pytest.fixture
def start_waiting(tmp_path: Path, command: Command) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts such a run with further options, and comes back when it waits; `tmp_path / "go"` lets it go."""
    started = []

    def start(*options: str, **how: object) -> subprocess.Popen[str]:
        words = command("--trainer.max_steps=60", *options)
        how = {"start_new_session": True, "text": True, "stderr": subprocess.PIPE} | how
        process = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path), *words], **how)
        started.append(process)
        while not (tmp_path / "waits").exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_one_process_trains_in_a_folder(refused: Refused, finished: Path) -> None:
    before = (finished / "bound.jsonl").read_bytes()
    with lock_run(finished):
        for options in ([], ["--ckpt_path=last"]):
            assert f"process {os.getpid()} on" in refused(*options)
    assert (finished / "bound.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_scheduler_finds_the_step_saved(start_waiting: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """Loader workers are of the group too, and the signal comes twice, as torchrun sends it on."""
    process = start_waiting("--data.num_workers=1")
    before = (tmp_path / "run" / "bound.jsonl").read_bytes()
    main(["monitor", str(tmp_path / "run"), f"--export={tmp_path / 'page.html'}"])
    assert (tmp_path / "run" / "bound.jsonl").read_bytes() == before
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    _, told = process.communicate(timeout=300)
    assert process.returncode == 143, told
    assert "interrupted at step 3 of 60, saved; continue with" in told
    assert "Traceback" not in told
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 3
    assert not (tmp_path / "run" / "lock").exists()


BROKEN_WORKER = """
import os, sys
from torch.utils.data import get_worker_info
from cpc.cli import main
from cpc.data import WindowDataset
read = WindowDataset.__getitems__
def break_off(self, windows):
    if get_worker_info() is not None and windows[0][1] > 100:
        FAULT
    return read(self, windows)
WindowDataset.__getitems__ = break_off
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ('raise OSError(5, "Input/output error", "train/x.wav")', "train/x.wav"),
        ("os.kill(os.getpid(), 9)", "was it killed, or is memory short? Lower --data.num_workers or --data.batch_size"),
    ],
)
def test_what_befalls_a_loader_process_ends_training(command: Command, fault: str, told: str) -> None:
    """Workers heed no signal: at the exit they would be waited for without end."""
    program = [sys.executable, "-c", BROKEN_WORKER.replace("FAULT", fault), *command("--data.num_workers=1")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


def test_the_error_of_a_loader_process_is_found_among_those_that_followed_and_the_search_has_an_end() -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with ours, pytest.raises(EOFError) as broken:
        ours.recv()
    assert _worker_error(broken.value) == "EOFError"
    after = RuntimeError("Please call `iter(combined_loader)` first.")  # as Lightning's teardown has it
    after.__context__ = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    assert _worker_error(after) == "DataLoader worker (pid(s) 7) exited unexpectedly"
    assert _worker_error(ConnectionError("of a source")) is None
    errors = [OSError(f"could not save {number}") for number in range(3)]
    for number, error in enumerate(errors):
        other = errors[(number + 1) % 3]
        error.__cause__, error.__context__ = (other, None) if number % 2 else (None, other)
    assert _worker_error(errors[0]) is None


def test_a_lock_whose_folder_is_gone_hides_no_error(tmp_path: Path) -> None:
    def train() -> None:
        with lock_run(tmp_path / "run"):
            shutil.rmtree(tmp_path / "run")
            raise ValueError("the real error")

    refuses("the real error", train)


def test_a_number_of_speakers_that_no_batch_has_is_told(run: Run, capsys: Capture) -> None:
    run("--data.speakers_per_batch=2", "--trainer.max_steps=1")
    assert "data.speakers_per_batch=2 has no effect without data.sampler=same_speaker" in capsys.readouterr().err


def test_the_lock_of_a_process_that_is_gone_is_told_and_taken(run: Run, finished: Path, capsys: Capture) -> None:
    (finished / "lock").write_text("process 7 on elsewhere, begun at noon,")  # what a kill -9 leaves
    run("--ckpt_path=last", "--trainer.max_steps=6")
    told = capsys.readouterr().err
    assert f"process 7 on elsewhere, begun at noon, was training in {finished} and crashed" in told
    assert event_names(finished) == ["started", "finished", "resumed", "finished"]
    assert not (finished / "lock").exists()


@pytest.mark.slow
def test_a_closed_terminal_finds_it_saved(start_waiting: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and refuses what is printed from then on."""
    ours, theirs = pty.openpty()
    terminal = os.ttyname(theirs)
    process = start_waiting(
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: os.close(os.open(terminal, os.O_RDWR)),  # which makes it the session's
    )
    os.close(theirs)
    os.close(ours)
    (tmp_path / "go").touch()
    assert process.wait(timeout=300) == 129
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 3
    assert event_names(tmp_path / "run") == ["started", "interrupted"]


def test_a_second_ctrl_c_stops_at_once_and_leaves_the_process_as_it_was(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted_step(self: Pretraining, batch: object, index: int) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Pretraining, "training_step", interrupted_step)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as exit_:
        run()
    assert exit_.value.code == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert event_names(tmp_path / "run") == ["started", "interrupted"]


def test_ctrl_c_is_given_back_by_failures(refused: Refused, tmp_path: Path, break_at: Callable[[int], None]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    break_at(1)
    refused()
    assert signal.getsignal(signal.SIGINT) is handler
    assert event_names(tmp_path / "run") == ["started", "failed"]


def test_what_is_wrong_with_batches_names_their_split(refused: Refused, manifest: Path, tmp_path: Path) -> None:
    whole = read_manifest(manifest)
    rows = enumerate(zip(whole.column("split"), whole.column("speaker"), strict=True))
    of_many = [f"{speaker}{row % 4}" if split == "train" else speaker for row, (split, speaker) in rows]
    Manifest(whole.root, whole.columns | {"speaker": of_many}).write(tmp_path / "manifest.csv")
    sampled = ["--data.sampler=same_speaker", "--model.loss.negatives=same_speaker", "--data.batch_size=8"]
    for options, message in (
        ([*sampled, "--data.speakers_per_batch=4"], "'valid': speakers_per_batch=4, but there are only 2 speakers"),
        ([*sampled, "--data.speakers_per_batch=3"], "split 'train': batch_size=8 with speakers_per_batch=3"),
        (["--data.batch_size=1", "--model.loss.negatives=mixed_excluding"], "'train': negatives='mixed_excluding'"),
    ):
        assert message in refused(*options, f"--data.manifest={tmp_path / 'manifest.csv'}")
