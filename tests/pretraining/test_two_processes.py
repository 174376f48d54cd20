"""Two real processes, started by torchrun's agent: each takes its own batches, the records hold those of both.

On one host, or on two: network namespaces with a cable between them.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpc.checkpoint import read_checkpoint, read_config
from cpc.data.store.atomic import read_records

OPTIONS = """--model.encoder=cpc.encoders.AudioEncoder --model.encoder.dim=8
    --model.context=cpc.contexts.GRU --model.context.init_args.dim=8
    --model.predictor=cpc.predictors.Bilinear --model.predictor.init_args.num_steps=3 --model.loss.num_negatives=10
    --data.window_samples=3200 --data.batch_size=4 --data.eval_batches=2 --trainer.callbacks=cpc.probes.OnlineProbe
    --trainer.accelerator=cpu --trainer.devices=2 --trainer.strategy=ddp
    --record_every_steps=2 --eval_every_steps=4 --checkpoint_every_steps=2""".split()
WITH_TIMEOUT = ["--trainer.strategy=lightning.pytorch.strategies.DDPStrategy", "--trainer.strategy.timeout=0:00:20"]
# A run in which something happens to one rank, or to both, at the start of a step.
SCRIPT = """
import os, signal, sys, time
from cpc.cli import main
from cpc.pretraining.module import Pretraining

step = Pretraining.training_step

def training_step(self, batch, index):
    where = (self.global_rank, self.global_step)
    {event}
    return step(self, batch, index)

Pretraining.training_step = training_step
{more}
main(sys.argv[1:])
"""


@pytest.fixture
def manifest(tmp_path: Path, write_corpus: Callable[..., Path]) -> Path:
    return write_corpus(tmp_path / "audio", train=12, valid=8)


def start(
    manifest: Path, run_dir: Path, *options: str, event: str = "pass", more: str = ""
) -> subprocess.CompletedProcess[str]:
    script = run_dir.parent / "script.py"
    script.write_text(SCRIPT.format(event=event, more=more))
    command = [sys.executable, str(script), "pretrain", *OPTIONS, f"--data.manifest={manifest}", f"--run_dir={run_dir}"]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)


SAVE = """
import lightning.pytorch as pl
save = pl.Trainer.save_checkpoint
def save_checkpoint(self, path, *args, **more):
    if self.global_step == 6 and self.is_global_zero:
        raise OSError(28, "No space left on device")
    save(self, path, *args, **more)
pl.Trainer.save_checkpoint = save_checkpoint
"""


def pretrain(manifest: Path, run_dir: Path, *options: str) -> list[dict]:
    done = start(manifest, run_dir, *options)
    assert done.returncode == 0, done.stderr
    return read_records(run_dir / "bound.jsonl")


def assert_equal(found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, abs=1e-10) if isinstance(value, list) else value), name


@pytest.mark.slow
def test_one_rank_of_four_windows_and_two_of_two_train_and_measure_the_same(tmp_path: Path, manifest: Path) -> None:
    """Through Lightning's DDP: candidates, draws and held-out batches are those of all ranks."""
    options = ["--trainer.max_steps=8", "--trainer.precision=64-true"]
    options += ["--data.sampler=same_speaker", "--model.loss.negatives=same_speaker_excluding"]
    single = ["--trainer.devices=1", "--trainer.strategy=auto"]
    one, two = (
        pretrain(manifest, tmp_path / name, *options, *others)
        # A rank's two may be of one file, and are encoded one after the other.
        for name, others in (("one", single), ("two", ["--data.batch_size=2", "--model.num_chunks=2"]))
    )
    assert len(one) == 8  # train every 2 steps, two strategies of the held-out bound every 4
    assert_equal(two, one)
    for run in ("one", "two"):  # by which cpc evaluate measures
        assert read_config(tmp_path / run)["provenance"]["data"]["init_args"]["batch_size"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("first", ["one", "two"])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path, manifest: Path, first: str) -> None:
    """The checkpoint of step 6 lies within the record due at step 8: its batches are shared by others from there on."""
    options = ["--trainer.precision=64-true", "--record_every_steps=4", "--checkpoint_every_steps=3"]
    ranks = {"one": ["--trainer.devices=1", "--trainer.strategy=auto"], "two": ["--data.batch_size=2"]}
    then = "two" if first == "one" else "one"
    whole = pretrain(manifest, tmp_path / "whole", *options, *ranks[first], "--trainer.max_steps=8")
    killed = "if self.global_step == 7: os.kill(os.getpid(), signal.SIGKILL)"
    start(manifest, tmp_path / "parts", *options, *ranks[first], "--trainer.max_steps=8", event=killed)
    going_on = [*options, *ranks[then], "--ckpt_path=last", "--trainer.max_steps=8"]
    assert_equal(pretrain(manifest, tmp_path / "parts", *going_on), whole)
    if then == "one":
        refused = start(manifest, tmp_path / "parts", *going_on, "--data.batch_size=3", "--trainer.max_steps=9")
        assert "batch_size of all processes 4 -> " in refused.stderr


@pytest.mark.slow
def test_both_ranks_killed_between_checkpoint_and_record_continue_exactly(tmp_path: Path, manifest: Path) -> None:
    """The checkpoint of step 3 holds, of each rank, its generators and its part of the record due at step 4."""
    options = ["--trainer.max_steps=8", "--checkpoint_every_steps=3", "--record_every_steps=4"]
    options += ["--model.context.init_args.num_layers=2", "--model.context.init_args.dropout=0.2"]
    whole = pretrain(manifest, tmp_path / "whole", *options)
    event = "if self.global_step == 3: os.kill(os.getpid(), signal.SIGKILL)"
    broken = start(manifest, tmp_path / "broken", *options, event=event)
    assert (broken.returncode, "ended by SIGKILL" in broken.stderr) == (2, True), broken.stderr
    assert not (tmp_path / "broken" / "bound.jsonl").exists()
    assert pretrain(manifest, tmp_path / "broken", *options, "--ckpt_path=last") == whole


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "number", "code"), [(0, "SIGINT", 130), (1, "SIGTERM", 143)])
def test_a_signal_stops_both_at_the_same_step(
    tmp_path: Path, manifest: Path, rank: int, number: str, code: int
) -> None:
    event = f"if (self.global_rank, self.global_step) == ({rank}, 2): signal.raise_signal(signal.{number})"
    stopped = start(manifest, tmp_path / "run", "--trainer.max_steps=60", event=event)
    assert stopped.returncode == code, stopped.stderr
    assert "interrupted at step 3 of 60, saved" in stopped.stderr
    continued = pretrain(manifest, tmp_path / "run", "--trainer.max_steps=4", "--ckpt_path=last")
    assert continued[-1]["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rank", "reason"),
    [
        ("raise FloatingPointError('the loss is nan')", 0, "the loss is nan"),
        ("raise ValueError('x.wav: cannot be decoded')", 1, "x.wav: cannot be decoded"),
        ("raise KeyError('a fault of ours')", 1, "ended with status 1; its error is printed above"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 0, "ended by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", 1, "the connection to another rank is lost"),
        ("disk", 0, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 2, "ended by SIGKILL"),
    ],
)
def test_a_failure_on_one_rank_ends_all_with_its_name_and_the_last_checkpoint(
    tmp_path: Path, manifest: Path, fault: str, rank: int, reason: str
) -> None:
    """At step 5, or at step 6 in the case of a full disk; every two steps are saved. Of two ranks, or of four."""
    num_ranks = 2 if rank < 2 else 4
    run_dir, failed_at = tmp_path / "run", tmp_path / "failed_at"
    is_disk, is_stop = fault == "disk", "STOP" in fault
    record_time = f"open({str(failed_at)!r}, 'w').write(str(time.time()))"
    event = f"if where == ({rank}, 5): {record_time}; {'pass' if is_disk else fault}"
    options = ["--trainer.max_steps=60", "--trainer.enable_progress_bar=false", f"--trainer.devices={num_ranks}"]
    options += WITH_TIMEOUT if is_stop else []
    broken = start(manifest, run_dir, *options, event=event, more=SAVE if is_disk else "")
    ended_at = time.time()
    assert broken.returncode == 2, broken.stderr
    assert ended_at - float(failed_at.read_text()) < (70 if is_stop else 40)  # torchrun gives a stopped rank 30 s
    last = broken.stderr.strip().splitlines()[-1]
    assert last.startswith(f"cpc: error: rank {0 if is_stop else rank} of {num_ranks}: {reason}"), broken.stderr
    assert last.endswith(f"continue with --run_dir {run_dir} --ckpt_path last")
    ending = read_records(run_dir / "events.jsonl")[-1]
    if (rank, "KILL" in fault) != (0, True):  # rank 0 writes the records
        assert ending["event"] == ("not_finite" if "nan" in fault else "failed")
        assert rank == 0 or ending["message"] == "the connection to another rank is lost"
    assert read_checkpoint(run_dir / "checkpoints" / "last.ckpt")["global_step"] == 4
    if "KILL" in fault:
        options = ["--trainer.max_steps=6", "--ckpt_path=last", f"--data.batch_size={2 * num_ranks}"]
        continued = pretrain(manifest, run_dir, *options)
        assert [record["step"] for record in continued if record["split"] == "train"] == [2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_lets_ranks_save(tmp_path: Path, manifest: Path, number: int, code: int) -> None:
    """A scheduler may send it twice, to the process or to its group."""
    command = [sys.executable, "-m", "cpc.cli", "pretrain", *OPTIONS, f"--data.manifest={manifest}"]
    running = subprocess.Popen(
        [*command, f"--run_dir={tmp_path / 'run'}", "--trainer.max_steps=100000"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    wait_until((tmp_path / "run" / "bound.jsonl").exists, 300)
    if number == signal.SIGINT:
        os.killpg(running.pid, number)
    else:
        os.kill(running.pid, number)
        time.sleep(0.05)
        os.kill(running.pid, number)
    _, said = running.communicate(timeout=120)
    assert running.returncode == code, said
    assert f"saved; continue with --run_dir {tmp_path / 'run'} --ckpt_path last" in said
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + seconds
        time.sleep(0.1)


ADDRESSES = ("10.213.77.1", "10.213.77.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Names of namespaces; each has the device `cable` with its address."""
    names = [f"cpc{os.getpid()}{which}" for which in "ab"]
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    try:
        for name in names:
            ip("netns", "add", name)
        ends = [part for name in names for part in ("name", "cable", "netns", name)]
        ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("cable", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this process may not make hosts: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.mark.slow
def test_a_network_that_is_lost_ends_both_hosts_by_name(tmp_path: Path, manifest: Path, hosts: list[str]) -> None:
    """For five seconds it is waited for; then it is lost for good, for longer than the time-out of the collectives."""
    run_dir, running = tmp_path / "run", []
    options = ["--trainer.devices=1", "--trainer.num_nodes=2", "--trainer.max_steps=10000", "--eval_every_steps=1000"]
    options += [f"--data.manifest={manifest}", f"--run_dir={run_dir}", *WITH_TIMEOUT]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "cable"}
    for number, host in enumerate(hosts):
        place = f"--nnodes=2 --nproc_per_node=1 --node_rank={number} --master_addr={ADDRESSES[0]} --master_port=29511"
        torchrun = ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run", *place.split()]
        command = [*torchrun, "-m", "cpc.cli", "pretrain", *OPTIONS, *options]
        with (tmp_path / f"{host}.log").open("w") as log:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def step() -> int:
        return max((record["step"] for record in read_records(run_dir / "bound.jsonl")), default=0)

    try:
        wait_until(lambda: step() >= 4, 120)
        ip("-n", hosts[1], "link", "set", "cable", "down")
        time.sleep(5)
        before = step()
        ip("-n", hosts[1], "link", "set", "cable", "up")
        wait_until(lambda: step() >= before + 10, 60)
        ip("-n", hosts[1], "link", "set", "cable", "down")
        wait_until(lambda: all(each.poll() is not None for each in running), 90)
    finally:
        for each in running:
            each.terminate()  # not killed: torchrun then ends its ranks
    for host in hosts:
        told = (tmp_path / f"{host}.log").read_text()
        assert "cpc: error: the connection to another rank is lost" in told, told
        assert f"continue with --run_dir {run_dir} --ckpt_path last" in told
    assert [event["event"] for event in read_records(run_dir / "events.jsonl")] == ["started", "failed"]
