"""Ranks in a Ray cluster give the results of ranks of one machine, and all end when one fails."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shown import command_blocks, small

from cpc.checkpoint import read_checkpoint
from cpc.data.audio.index import index_folder
from cpc.data.store.atomic import read_records
from cpc.on_ray.launch import group_by_node

Run = Callable[..., subprocess.CompletedProcess[str]]
Cluster = Callable[..., dict[str, str]]

PRETRAIN = """pretrain --model.encoder=cpc.encoders.AudioEncoder --model.encoder.dim=8
    --model.context=cpc.contexts.GRU --model.context.init_args.dim=8
    --model.predictor=cpc.predictors.Bilinear --model.predictor.init_args.num_steps=3
    --data.manifest=audio --data.window_samples=3200 --data.batch_size=2 --data.eval_batches=2
    --trainer.accelerator=cpu --trainer.strategy=ddp --trainer.enable_progress_bar=false
    --record_every_steps=2 --eval_every_steps=4 --checkpoint_every_steps=2""".split()
# A rank to which something happens at the start of a step.
EVENT = """
import os, signal
from lightning.pytorch import Callback

class Event(Callback):
    def __init__(self, rank: int, number: int):
        self.rank, self.number = rank, number

    def on_train_batch_start(self, trainer, *more):
        if (trainer.global_rank, trainer.global_step) == (self.rank, 5):
            print(f"event of rank {self.rank}", flush=True)
            os.kill(os.getpid(), self.number)
"""


def test_ranks_are_grouped_by_machine() -> None:
    assert group_by_node("baba") == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match="`num_ranks`=3 are distributed over 2 machines of the Ray cluster as 2, 1"):
        group_by_node("aba")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_ranks", "2", "probe", "--seed", "1"], "only pretrain runs in ranks: write cpc ray --num_ranks 2 pre"),
        (["--num_ranks", "2"], "only pretrain runs in ranks"),
        (["--num_ranks", "2", "--gpus_per_rank", "2", "pretrain"], "_per_rank=2 must be at least 0 and at most 1"),
        (["pretrain", "--num_ranks", "2"], "required: --num_ranks"),
        (["--num_ranks", "2", "pretrain", "--trainer.devices=2"], "--trainer.devices=2 follows from --num_ranks"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, refusal: Callable[..., str]) -> None:
    assert message in refusal(["ray", *arguments])


@pytest.fixture
def folder(tmp_path: Path, write_corpus: Callable[..., Path], environment: dict[str, str]) -> Path:
    write_corpus(tmp_path / "audio", train=12, valid=8)
    (Path(environment["PYTHONPATH"]) / "event.py").write_text(EVENT)
    return tmp_path


@pytest.mark.slow
def test_two_ranks_on_two_machines_train_as_those_of_one(folder: Path, cluster: Cluster, cpc: Run) -> None:
    environment = cluster(1, 1)
    local = cpc(environment, *PRETRAIN, "--run_dir=local", "--trainer.max_steps=8", "--trainer.devices=2")
    done = cpc(environment, "ray", "--num_ranks", "2", *PRETRAIN, "--run_dir=there", "--trainer.max_steps=8")
    assert (local.returncode, done.returncode) == (0, 0), done.stderr
    for name in ("bound.jsonl", "model/model.safetensors"):
        assert (folder / "there" / name).read_bytes() == (folder / "local" / name).read_bytes()
    config = (folder / "there" / "config.yaml").read_text()
    assert "devices: '1'\n  num_nodes: 2\n" in config
    assert "MEMBER: 1/2" in done.stderr
    refused = cpc(environment, "ray", "--num_ranks", "3", *PRETRAIN)
    assert "--num_ranks=3 needs 3 CPUs, but the Ray cluster has 2 CPUs" in refused.stderr
    refused = cpc(environment, "ray", "--num_ranks", "1", "--cpus_per_rank", "2", *PRETRAIN)
    assert "has 2 CPUs free, and 2 CPUs must be on one machine" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "number", "code", "said"),
    [
        (1, signal.SIGKILL, 2, "cpc: error: rank 1 of 2: ended by SIGKILL"),
        (1, signal.SIGTERM, 143, "interrupted at step 6 of 60, saved; continue with --run_dir run --ckpt_path last"),
    ],
)
def test_what_happens_to_a_rank_ends_all(
    folder: Path, cluster: Cluster, cpc: Run, rank: int, number: int, code: int, said: str
) -> None:
    event = ["--trainer.callbacks=event.Event", f"--trainer.callbacks.rank={rank}"]
    event.append(f"--trainer.callbacks.number={number}")
    ranks = ["ray", "--num_ranks", "2", *PRETRAIN, "--run_dir=run", "--trainer.max_steps=60", *event]
    ended = cpc(cluster(2), *ranks)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    events = read_records(folder / "run" / "events.jsonl")
    step = read_checkpoint(folder / "run" / "checkpoints" / "last.ckpt")["global_step"]
    assert step == (6 if code == 143 else 4)
    assert events[-1]["event"] == ("interrupted" if code == 143 else "failed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_lets_ranks_save(folder: Path, environment: dict[str, str], number: int) -> None:
    command = [sys.executable, "-m", "cpc.cli", "ray", "--num_ranks", "2", *PRETRAIN]
    launcher = subprocess.Popen(
        [*command, "--run_dir=run", "--trainer.max_steps=100000"],
        env=environment,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    until = time.monotonic() + 300
    while not (folder / "run" / "bound.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.2)
    os.kill(launcher.pid, number)
    _, said = launcher.communicate(timeout=120)
    assert launcher.returncode == 143, said
    assert "saved; continue with --run_dir run --ckpt_path last" in said
    assert (folder / "run" / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(
    "arguments", [["ray", "--num_ranks", "2", "pretrain", "--config", "x"], ["data", "index", "DIR"]]
)
def test_a_missing_extra_is_named(
    arguments: list[str],
    audio_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    if arguments[0] == "data":
        arguments = ["data", "index", str(audio_folder), "--out", str(tmp_path / "x.csv"), "--num_ray_workers", "2"]
    assert "a Ray cluster needs ray: install it with `uv sync --extra ray`" in refusal(arguments)
    assert not (tmp_path / "x.csv").exists()


def test_an_address_without_a_cluster_is_named(refusal: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert f"no Ray cluster answers at {address} (Connection refused): check --address" in refusal(
        ["ray", "--num_ranks", "2", "--address", address, "pretrain"]
    )


# A rank has a processor of its own and no GPU.
PLACES = {"DIR": "own", "32": "2", "8": "1", "1": "0", "64": "2", "16": "2", "cuda": "cpu"}


@pytest.mark.slow
def test_ranks_and_files_are_shared_out(
    own_audio: Path, cluster: Callable[..., dict[str, str]], cpc: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    _, _, (pretrain,), (index, embed) = command_blocks("docs/scale.md")
    index_folder(own_audio, speaker_level=0, progress=False)
    manifest = own_audio / "manifest.csv"
    expected = manifest.read_bytes()
    environment = cluster(2)
    for words in (pretrain, [*index, "--speaker_level", "0", "--overwrite"], embed):
        done = cpc(environment, *small(words, PLACES))
        assert done.returncode == 0, done.stderr
    config = Path("runs/960/config.yaml").read_text()
    assert "devices: '2'\n  num_nodes: 1\n" in config
    records = read_records(Path("runs/960/bound.jsonl"))
    assert {record["step"] for record in records if record["split"] == "valid"} == {2}
    assert manifest.read_bytes() == expected
    assert len(list(Path("features").rglob("*.npy"))) == 60
