"""`cpc pretrain` in-process, on a handful of real audio files: what it writes and what it refuses."""

import json
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

import cpc
from cpc.cli import main
from cpc.data.manifest import index_folder

SMALL = {
    "model": {
        "encoder": {"class_path": "cpc.encoders.AudioEncoder", "init_args": {"dim": 8}},
        "context": {"class_path": "cpc.contexts.GRU", "init_args": {"dim": 8}},
        "predictor": {"class_path": "cpc.predictors.Bilinear", "init_args": {"num_steps": 3}},
    },
    "data": {"window_samples": 3200, "batch_size": 4, "eval_batches": 2},
    "trainer": {"max_steps": 4, "accelerator": "cpu"},
    "record_every_steps": 2,
    "eval_every_steps": 2,
    "checkpoint_every_steps": 2,
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, write_audio: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        split = "train" if number < 8 else "valid"
        write_audio(folder / split / f"speaker{number % 2}" / f"{number}.wav", seconds=0.5, seed=number)
    index_folder(folder, split_level=0, speaker_level=1, progress=False)
    return folder


@pytest.fixture
def run(tmp_path: Path, manifest: Path) -> Callable[..., Path]:
    """Runs the small config with further options, in a folder of its own; the folder is given back."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(SMALL))

    def pretrain(*options: str) -> Path:
        main(
            [
                "pretrain",
                "--config",
                str(config),
                f"--data.manifest={manifest}",
                f"--run_dir={tmp_path / 'run'}",
                *options,
            ]
        )
        return tmp_path / "run"

    return pretrain


def records(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "bound.jsonl").read_text().splitlines()]


def test_a_run_leaves_everything_behind(run: Callable[..., Path]) -> None:
    folder = run()
    found = [(r["step"], r["split"], r["strategy"]) for r in records(folder)]
    held_out = [("valid", "mixed"), ("valid", "mixed_excluding")]
    assert found == [(step, *which) for step in (2, 4) for which in [("train", "mixed"), *held_out]]
    for record in records(folder):
        assert record["schema"] == 1
        for name in (
            "loss_nats",
            "num_candidates",
            "mi_ceiling_nats",
            "mi_bound_nats",
            "standard_error_nats",
            "accuracy",
        ):
            assert len(record[name]) == 3
        assert np.allclose(np.array(record["mi_ceiling_nats"]) - record["loss_nats"], record["mi_bound_nats"])
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert (folder / "checkpoints" / "best.ckpt").exists()
    assert list((folder / "tensorboard").glob("events*"))
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_steps"] == 4
    model = cpc.load_pretrained(folder)
    assert not model.training
    assert model.is_initialised
    assert model(torch.randn(2, 3200)).contexts.shape == (2, 20, 8)


def test_more_steps_continue_a_finished_run(run: Callable[..., Path]) -> None:
    folder = run()
    before = records(folder)
    run("--ckpt_path=last", "--trainer.max_steps=6")
    after = records(folder)
    assert after[: len(before)] == before
    assert [r["step"] for r in after[len(before) :]] == [6, 6, 6]


def test_gradient_accumulation_counts_optimiser_steps(run: Callable[..., Path]) -> None:
    folder = run("--trainer.accumulate_grad_batches=2")
    train = [r for r in records(folder) if r["split"] == "train"]
    assert [r["step"] for r in train] == [2, 4]
    assert train[0]["num_rows"][0] == 2 * 2 * 4 * 19  # steps, batches a step, windows, rows of k = 1


def test_bf16_autocast_with_clipping_and_adamw(run: Callable[..., Path]) -> None:
    folder = run("--trainer.precision=bf16-mixed", "--trainer.gradient_clip_val=1.0", "--model.optimiser=adamw")
    assert all(np.isfinite(r["loss_nats"]).all() for r in records(folder))


def test_decoding_on_the_fly_reads_the_same_audio(run: Callable[..., Path], tmp_path: Path) -> None:
    packed = records(run())
    (tmp_path / "run").rename(tmp_path / "packed")
    unpacked = records(run("--data.packed=false"))
    for a, b in zip(packed, unpacked, strict=True):
        assert a["num_rows"] == b["num_rows"]
        assert np.allclose(a["loss_nats"], b["loss_nats"], atol=0.05)  # statistics of all samples, and of windows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.pred_step=3"], "pred_step"),
        (["--model.negative=mixed"], "model.negative"),  # abbreviated
        (["--trainer.max_steps=-1"], "trainer.max_steps must be given"),
        (["--model.negatives=all"], "negatives='all' is not one of mixed"),
        (["--model.predictor.init_args.num_steps=20"], "data.window_samples=3200 gives 20 latents"),
        (["--data.eval_split=dev"], "no row of split 'dev', only of train, valid"),
        (["--data.manifest=nowhere"], "nowhere"),
        (["--model.negatives=same_speaker_excluding", "--data.batch_size=1"], "without a single negative"),
        (["--ckpt_path=last"], "there is no"),
        (["--record_every_steps=0"], "--record_every_steps=0 must be at least 1"),
        (["--model.learning_rate=-1"], "model.learning_rate=-1"),
    ],
)
def test_mistakes_end_before_training_with_their_name(
    run: Callable[..., Path], options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(*options)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "bound.jsonl").exists()


def test_a_folder_with_a_run_is_not_written_over(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = run()
    before = (folder / "bound.jsonl").read_bytes()
    with pytest.raises(SystemExit):
        run()
    assert "already holds a run: continue it with --ckpt_path last" in capsys.readouterr().err
    assert (folder / "bound.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_architecture_is_refused(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    with pytest.raises(SystemExit):
        run("--ckpt_path=last", "--trainer.max_steps=6", "--model.encoder.init_args.dim=12")
    assert "model.encoder.dim is 8 in the checkpoint, 12 here" in capsys.readouterr().err


def test_a_nan_stops_the_run_and_keeps_the_last_good_checkpoint(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("--model.learning_rate=1e30", "--checkpoint_every_steps=1", "--trainer.max_steps=50")
    assert "the last good checkpoint stands" in capsys.readouterr().err
    assert not list(Path(".").glob("**/last.new"))


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A limit on file size, which a write meets as it meets a full disk: an OSError in the middle of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, former)


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(
    run: Callable[..., Path], full_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run()
    checkpoint = folder / "checkpoints" / "last.ckpt"
    before = checkpoint.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(SystemExit):
        run("--ckpt_path=last", "--trainer.max_steps=6", "--eval_every_steps=100")
    assert "is the disk full? The checkpoint of an earlier step is kept" in capsys.readouterr().err
    assert checkpoint.read_bytes() == before
    assert not checkpoint.with_suffix(".new").exists()


def test_ctrl_c_saves_and_says_how_to_go_on(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cpc.pretraining.module import Pretraining

    step = Pretraining.training_step

    def interrupted_step(self: Pretraining, batch: object, index: int) -> object:
        if index == 0:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch, index)

    monkeypatch.setattr(Pretraining, "training_step", interrupted_step)
    folder = run("--checkpoint_every_steps=100", "--trainer.max_steps=50")
    assert "continue with" in capsys.readouterr().err
    monkeypatch.setattr(Pretraining, "training_step", step)
    run("--ckpt_path=last", "--trainer.max_steps=3")
    assert records(folder)[-1]["step"] == 3


def test_bad_audio_is_named(run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bad"
    rng = np.random.default_rng(0)
    for number in range(4):
        (folder / "train").mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / "train" / f"{number}.wav", 0.1 * rng.standard_normal(8000), 16000, subtype="FLOAT")
    samples = 0.1 * rng.standard_normal(8000)
    samples[100] = np.nan
    soundfile.write(folder / "train" / "broken.wav", samples, 16000, subtype="FLOAT")
    index_folder(folder, split_level=0, progress=False)
    with pytest.raises(SystemExit):
        run(f"--data.manifest={folder}", "--data.eval_split=train")
    assert "broken.wav" in capsys.readouterr().err
