"""kill -9 in the middle of a run, with real processes and loader workers: the resumed run is the uninterrupted one."""

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.data.store.atomic import read_records

# Dropout, so that the global generator matters.
OPTIONS = r"""--model.encoder=cpc.encoders.AudioEncoder --model.encoder.dim=16 --model.context=cpc.contexts.GRU
    --model.context.init_args.dim=16 --model.context.init_args.num_layers=2 --model.context.init_args.dropout=0.1
    --model.predictor=cpc.predictors.Bilinear --model.predictor.init_args.num_steps=4 --model.loss.num_negatives=20
    --model.learning_rate=0.003 --model.schedule=cosine
    --data.window_samples=3200 --data.batch_size=4 --data.eval_batches=2 --data.num_workers=2
    --data.augmentation={pitch_cents:\ 300,noise_snr_db:\ [5,20],time_drop_ms:\ 20}
    --trainer.max_steps=60 --trainer.callbacks=cpc.probes.OnlineProbe --trainer.accelerator=cpu
    --record_every_steps=5 --eval_every_steps=15 --checkpoint_every_steps=7"""


@pytest.fixture
def manifest(tmp_path: Path, write_corpus: Callable[..., Path]) -> Path:
    return write_corpus(tmp_path / "audio", num_speakers=3, seconds=0.6, train=12, valid=6)


def command(manifest: Path, run_dir: Path, *more: str) -> list[str]:
    inputs = [f"--data.manifest={manifest}", f"--run_dir={run_dir}"]
    return [sys.executable, "-m", "cpc.cli", "pretrain", *shlex.split(OPTIONS), *inputs, *more]


def outcome(run_dir: Path) -> tuple[str, str, str]:
    weights = hashlib.sha256((run_dir / "model" / "model.safetensors").read_bytes()).hexdigest()
    return (run_dir / "bound.jsonl").read_text(), (run_dir / "probe.jsonl").read_text(), weights


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, manifest: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    uninterrupted = subprocess.Popen(command(manifest, whole), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    victim = subprocess.Popen(command(manifest, broken), stderr=subprocess.DEVNULL, start_new_session=True)
    checkpoint = broken / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 300
    while not (checkpoint.exists() and len(recorded_steps(broken)) >= 3):  # some steps behind a checkpoint
        assert victim.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run did not get to its first checkpoint"
        time.sleep(0.01)
    victim.kill()
    victim.wait()
    assert max(recorded_steps(broken)) < 60
    with (broken / "bound.jsonl").open("a") as file:
        file.write('{"schema": 1, "step": 59, "torn')  # what a kill in mid-write leaves

    # Its loader workers live on for seconds: the lock must not be theirs.
    again = subprocess.run(command(manifest, broken, "--ckpt_path=last"), capture_output=True)
    assert again.returncode == 0, again.stderr.decode()
    assert f"process {victim.pid} on" in again.stderr.decode()
    assert b"crashed; taking over its stale lock" in again.stderr
    _, error = uninterrupted.communicate(timeout=300)
    assert uninterrupted.returncode == 0, error.decode()
    assert outcome(broken) == outcome(whole)
    assert healths(broken) == healths(whole)
    assert [step for step, *_ in healths(whole)] == list(range(5, 61, 5))
    events = [record["event"] for record in read_records(broken / "events.jsonl")]
    assert events == ["started", "resumed", "finished"]


def recorded_steps(run_dir: Path) -> list[int]:
    path = run_dir / "bound.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["step"] for line in lines]


def healths(run_dir: Path) -> list[tuple[float, ...]]:
    """What no clock has a say in: checkpoints every 7 steps cut the intervals of 5 between two records."""
    names = ("step", "learning_rate", "gradient_norm", "gradient_norm_max", "z_variance", "c_effective_rank")
    return [tuple(record[name] for name in names) for record in read_records(run_dir / "health.jsonl")]
