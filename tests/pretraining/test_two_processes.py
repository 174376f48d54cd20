"""Two real processes through Lightning's DDP: each takes its own batches, the records hold those of both."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.data.manifest import index_folder

OPTIONS = [
    "--model.encoder=cpc.encoders.AudioEncoder",
    "--model.encoder.dim=8",
    "--model.context=cpc.contexts.GRU",
    "--model.context.init_args.dim=8",
    "--model.predictor=cpc.predictors.Bilinear",
    "--model.predictor.init_args.num_steps=3",
    "--model.num_negatives=10",
    "--data.window_samples=3200",
    "--data.batch_size=4",
    "--data.eval_batches=2",
    "--data.train_split=null",
    "--trainer.callbacks=cpc.probes.OnlineProbe",
    "--trainer.accelerator=cpu",
    "--trainer.devices=2",
    "--trainer.strategy=ddp",
    "--record_every_steps=2",
    "--eval_every_steps=4",
    "--checkpoint_every_steps=2",
]


def pretrain(manifest: Path, run_dir: Path, *options: str) -> list[dict]:
    command = [
        sys.executable,
        "-m",
        "cpc.cli",
        "pretrain",
        *OPTIONS,
        f"--data.manifest={manifest}",
        f"--run_dir={run_dir}",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (run_dir / "bound.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_ranks_share_the_work_and_resume(tmp_path: Path, write_audio: Callable[..., Path]) -> None:
    for number in range(12):
        write_audio(tmp_path / "audio" / "valid" / f"s{number % 3}" / f"{number}.wav", seconds=0.5, seed=number)
    index_folder(tmp_path / "audio", split_level=0, speaker_level=1, progress=False)
    whole = pretrain(tmp_path / "audio", tmp_path / "whole", "--trainer.max_steps=8")
    train = [record for record in whole if record["split"] == "train"]
    assert [record["step"] for record in train] == [2, 4, 6, 8]
    assert train[0]["num_rows"][0] == 2 * 2 * 4 * 19  # steps, ranks, windows, rows of k = 1
    held_out = [record for record in whole if record["split"] == "valid"]
    assert held_out[0]["num_rows"][0] == 2 * 2 * 4 * 19  # batches, ranks, windows, rows

    # A resumed run draws, on both ranks, what the uninterrupted one drew.
    pretrain(tmp_path / "audio", tmp_path / "halves", "--trainer.max_steps=6", "--model.schedule=constant")
    halves = pretrain(tmp_path / "audio", tmp_path / "halves", "--trainer.max_steps=8", "--ckpt_path=last")
    assert [r["loss_nats"] for r in halves if r["step"] == 8] == [r["loss_nats"] for r in whole if r["step"] == 8]
