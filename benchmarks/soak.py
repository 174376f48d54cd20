"""A small training run that is killed at random moments until it is done, compared with an undisturbed run.

python -m benchmarks.soak [--minutes 60] [--seed 0]

A recurrent model with dropout on made sounds, one loader worker, a record every step, a checkpoint every 20. About a
quarter of the time goes into the undisturbed run. Then the other one is started, again and again: SIGKILL, SIGTERM, or
SIGKILL of its loader worker, after a random time or in the middle of a checkpoint's writing. At the end the weights
must be the same, bit for bit, and so must the records. Attempts are forked from one process that has imported all.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: attempts are forked, and a forked pool of threads hangs

import argparse
import json
import multiprocessing
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile

from cpc import cli
from cpc.checkpoint import read_checkpoint
from cpc.data.audio.index import index_folder
from cpc.data.store.atomic import read_records
from cpc.pretraining import command as _imported_before_the_forks  # noqa: F401

OPTIONS = (
    "--model.encoder=cpc.encoders.AudioEncoder",
    "--model.encoder.dim=16",
    "--model.context=cpc.contexts.GRU",
    "--model.context.init_args.dim=16",
    "--model.context.init_args.num_layers=2",
    "--model.context.init_args.dropout=0.1",  # so that the global generator matters
    "--model.predictor=cpc.predictors.Bilinear",
    "--model.predictor.init_args.num_steps=4",
    "--model.loss.num_negatives=20",
    "--model.learning_rate=0.003",
    "--model.schedule=cosine",
    "--data.window_samples=3200",
    "--data.batch_size=4",
    "--data.eval_batches=2",
    "--data.num_workers=1",
    "--data.augmentation={pitch_cents: 300, noise_snr_db: [5, 20], time_drop_ms: 20}",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--record_every_steps=1",
    "--eval_every_steps=100",
    "--checkpoint_every_steps=20",
)
KILLS = ("SIGKILL", "SIGTERM", "SIGKILL of the loader worker")
END_SECONDS = 30.0  # within which a disturbed attempt must have ended
WARMUP_STEPS = 100


class Kill(NamedTuple):
    """A kill of an attempt and its outcome.

    Attributes:
        kind: one of `KILLS`.
        moment: what the run was doing.
        exit_code: exit code; negative after a signal that was not caught.
        seconds: seconds until the process had ended.
        repeated: number of steps that were recorded and are not in the checkpoint.
        survived: whether the process ended in time, with the expected exit code and message, and left a readable
            checkpoint (if there was one).
        last_line: last line of the log.
    """

    kind: str
    moment: str
    exit_code: int | None
    seconds: float
    repeated: int
    survived: bool
    last_line: str


class Training:
    """A run in a folder, which can be started, killed, and started again.

    Args:
        folder: folder of the run; the log is next to it.
        corpus: folder of the sounds.
        num_steps: number of steps of the whole run.
    """

    def __init__(self, folder: Path, corpus: Path, num_steps: int) -> None:
        self.folder, self._corpus, self._num_steps = folder, corpus, num_steps
        self.log = folder.with_suffix(".log")

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to resume from."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def writing(self) -> Path:
        """The checkpoint that is being written."""
        return self.checkpoint.with_suffix(".new")

    @property
    def last_step(self) -> int:
        """The last recorded step; 0 without records."""
        records = read_records(self.folder / "health.jsonl")
        return records[-1]["step"] if records else 0

    @property
    def num_events(self) -> int:
        """The number of events, which grows by one when an attempt begins to train."""
        return len(read_records(self.folder / "events.jsonl"))

    @property
    def saved_step(self) -> int:
        """The step of the checkpoint; 0 without a checkpoint."""
        return read_checkpoint(self.checkpoint)["global_step"] if self.checkpoint.exists() else 0

    def start(self) -> Any:
        """Start another attempt from the last checkpoint, or from the beginning without a checkpoint."""
        if not self.checkpoint.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        again = ["--ckpt_path=last"] if self.checkpoint.exists() else []
        options = [*OPTIONS, f"--data.manifest={self._corpus}", f"--trainer.max_steps={self._num_steps}"]
        arguments = ["pretrain", *options, f"--run_dir={self.folder}", *again]
        process = multiprocessing.get_context("fork").Process(target=_attempt, args=(arguments, self.log))
        process.start()
        return process

    def outcome(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the weights after the last step, and all records of the bound."""
        return read_checkpoint(self.checkpoint)["state_dict"], read_records(self.folder / "bound.jsonl")


def _attempt(arguments: list[str], log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    cli.main(arguments)


def make_corpus(folder: Path) -> Path:
    """Write eighteen files of half a second of noise, each with another hum."""
    for number in range(18):
        generator = np.random.default_rng(number)
        hum = np.sin(2 * np.pi * generator.uniform(90, 250) * np.arange(9600) / 16000)
        path = folder / ("train" if number < 12 else "valid") / f"speaker{number % 3}" / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.1 * hum + 0.02 * generator.standard_normal(9600), 16000)
    index_folder(folder, split_level=0, speaker_level=1, progress=False)
    return folder


def disturb(run: Training, process: Any, kind: str, during_checkpoint: bool, after_seconds: float) -> Kill | None:
    """Kill an attempt and wait for its end; return None if the attempt finished all its steps."""
    num_starts, start = run.num_events, time.monotonic()
    left_by_earlier_kill = _written_at(run.writing)

    def is_writing() -> bool:
        return _written_at(run.writing) not in (None, left_by_earlier_kill)

    while time.monotonic() < start + after_seconds and process.is_alive():
        time.sleep(0.01)
    waits_until = time.monotonic() + 20
    while process.is_alive() and time.monotonic() < waits_until:
        workers = _children(process.pid)
        if (workers or "worker" not in kind) and (is_writing() or not during_checkpoint):
            break
        time.sleep(0.0005)
    if not process.is_alive():
        return None
    moment = "a checkpoint is written" if is_writing() else "training" if run.num_events > num_starts else "starting"
    victims = _children(process.pid) if "worker" in kind else [process.pid]
    for victim in victims:
        os.kill(victim, signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
    killed_at = time.monotonic()
    while process.exitcode is None and time.monotonic() < killed_at + END_SECONDS:  # join would wait for its worker
        time.sleep(0.01)
    ended = process.exitcode is not None
    if not ended:
        process.kill()
        process.join()
    if process.exitcode == 0:
        return None  # SIGTERM came in the last step
    last_line = (run.log.read_text(errors="replace").strip().splitlines() or [""])[-1]
    expected = {
        "SIGKILL": process.exitcode == -signal.SIGKILL,
        "SIGTERM": process.exitcode in (128 + signal.SIGTERM, -signal.SIGTERM),  # the latter before Python listens
        "SIGKILL of the loader worker": process.exitcode == 2 and "a loader worker ended" in last_line,
    }[kind]
    repeated = 0 if moment == "starting" else run.last_step - run.saved_step
    seconds = time.monotonic() - killed_at
    return Kill(kind, moment, process.exitcode, seconds, repeated, ended and expected, last_line)


def _written_at(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _children(process: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def undisturbed(run: Training) -> float:
    """Train without a kill, and return the seconds."""
    start = time.monotonic()
    process = run.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the undisturbed run ended with {process.exitcode}:\n{run.log.read_text()}")
    return time.monotonic() - start


def soak(minutes: float, seed: int, folder: Path) -> tuple[list[Kill], dict[str, Any]]:
    """Run both trainings, and return all kills and the figures."""
    begin, choose = time.monotonic(), random.Random(seed)
    corpus = make_corpus(folder / "corpus")
    start_seconds = undisturbed(Training(folder / "start", corpus, 1))
    step_seconds = (undisturbed(Training(folder / "warmup", corpus, WARMUP_STEPS)) - start_seconds) / WARMUP_STEPS
    num_steps = max(WARMUP_STEPS, int(15 * minutes / max(step_seconds, 1e-3)))
    whole, broken = (Training(folder / name, corpus, num_steps) for name in ("whole", "broken"))
    undisturbed(whole)
    kills: list[Kill] = []
    until = begin + 60 * minutes
    while True:
        process = broken.start()
        if time.monotonic() > until:
            process.join()
        else:
            mean = start_seconds + max(0.5, 20 * step_seconds)
            kill = disturb(broken, process, choose.choice(KILLS), choose.random() < 0.3, choose.uniform(0, 2 * mean))
            if kill is not None:
                kills.append(kill)
                print("  ".join(f"{name} {value}" for name, value in kill._asdict().items()), flush=True)
                continue
        if process.exitcode != 0:
            raise RuntimeError(f"an attempt ended by itself with {process.exitcode}:\n{broken.log.read_text()}")
        break
    (weights, records), (expected_weights, expected_records) = broken.outcome(), whole.outcome()
    same = weights.keys() == expected_weights.keys() and all(
        weights[name].equal(value) for name, value in expected_weights.items()
    )
    figures = {
        "steps": num_steps,
        "kills": len(kills),
        "survived": sum(kill.survived for kill in kills),
        "repeated_steps": sum(kill.repeated for kill in kills),
        "most_repeated_steps": max((kill.repeated for kill in kills), default=0),
        "most_seconds_to_end": round(max((kill.seconds for kill in kills), default=0.0), 2),
        "weights_equal": same,
        "records_equal": records == expected_records,
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }
    return kills, figures


def table(kills: list[Kill]) -> list[str]:
    """Return a table by kind and moment of survived attempts and repeated steps."""
    tried = Counter((kill.kind, kill.moment) for kill in kills)
    lines = [f"{'kill':30}{'while':26}{'survived':12}{'repeated steps: mean':>22}{'most':>6}"]
    for (kind, moment), count in sorted(tried.items()):
        of = [kill for kill in kills if (kill.kind, kill.moment) == (kind, moment)]
        repeated = [kill.repeated for kill in of]
        survived = f"{sum(kill.survived for kill in of)} of {count}"
        lines.append(f"{kind:30}{moment:26}{survived:12}{sum(repeated) / count:22.1f}{max(repeated):6}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills, figures = soak(options.minutes, options.seed, Path(folder))
    print("\n".join(table(kills)))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
