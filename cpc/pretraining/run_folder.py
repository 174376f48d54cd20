"""A run's folder: its records (docs/records.md), checkpoints (last, best), exported model and config.yaml."""

import math
import os
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from cpc.bounds import Bound
from cpc.checkpoint import read_checkpoint, save_pretrained
from cpc.data.batch import Batch
from cpc.data.store.atomic import append_record, drop_records_after, write_atomically
from cpc.data.store.fingerprints import describe_copies, merged
from cpc.data.tensors import describe_device
from cpc.losses.engine import rounding_of
from cpc.losses.ranks import gather_integers
from cpc.pretraining.module import Pretraining
from cpc.probes.tracker import Tracker, event_record

_HEALTH_NAMES = ("windows_per_second", "learning_rate", "gradient_norm", "gradient_norm_max")  # logged next to z and c
LOST = "the connection to another rank is lost"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a scheduler, a closed terminal


def _how_computed(trainer: pl.Trainer, module: Pretraining) -> str:
    """Return the device, how the products of the loss are rounded there, and how steps are compiled."""
    is_short = str(trainer.precision).startswith("bf16")
    compute = getattr(module.model.loss_part, "compute", "auto")
    rounding = rounding_of(compute, module.device.type, torch.bfloat16 if is_short else torch.float32)
    compiled = "" if module.compile_mode == "off" else f", compile {module.compile_mode}"
    on = f"on {describe_device(str(module.device))}, precision {trainer.precision}"
    return f"{on}, the loss's products in {rounding}{compiled}"


@dataclass(eq=False)
class RunFolder(Checkpoint):
    """A callback that writes records and checkpoints to the run's folder.

    A failed write does not destroy an earlier file. The module evaluates when a record is due, between the optimiser's
    step and the checkpoint. A checkpoint is therefore always written after the records of its step, and a resumed run
    neither repeats nor misses a record.

    The held-out bound is also measured, and `last.ckpt` written, at the end. The config is written when training
    starts, so that a failed start does not replace an older config. `init_from` and `init_trained_on`, the record of
    the observations that the initial weights were trained on, are saved with the model. A resumed run takes its random
    numbers from the checkpoint instead of `seeds`, which has them by the names of their options.
    """

    folder: Path
    record_every_steps: int
    eval_every_steps: int
    checkpoint_every_steps: int
    config_yaml: str
    init_from: str | None = None
    init_trained_on: dict[str, Any] | None = None
    seeds: dict[str, int | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._unused: list[str] = []  # differing options, which have no effect on a resumed run
        self.best_bound_nats = -math.inf
        self.stopped_by: int | None = None  # the stop signal of any rank
        self._stop_signal = 0  # the stop signal of this rank
        self._last_step = -1
        self._held_out_protocol: dict[str, Any] = {}
        self._trained_on: dict[str, Any] = {}
        self._held_out_copies: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best bound so far and its held-out batches, the source of the initial weights, and the seeds."""
        return {
            "best_bound_nats": self.best_bound_nats,
            "measured_on": self._held_out_protocol,
            "init_from": self.init_from,
            "init_trained_on": self.init_trained_on,
            "seeds": self.seeds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the best bound and the seeds of the checkpoint."""
        self.best_bound_nats = state_dict["best_bound_nats"]
        self._held_out_protocol = state_dict["measured_on"]
        init_from, seeds = state_dict.get("init_from"), state_dict.get("seeds", self.seeds)
        if self.init_from not in (None, init_from):
            self._unused.append(f"init_from {init_from} -> {self.init_from}")
        self._unused += [
            f"{name} {seeds[name]} -> {now}" for name, now in self.seeds.items() if seeds.get(name, now) != now
        ]
        self.init_from, self.seeds = init_from, seeds  # the values that the run really started with
        self.init_trained_on = state_dict.get("init_trained_on")

    def on_train_start(self, trainer: pl.Trainer, pl_module: Pretraining) -> None:
        """Drop the records that a resumed run will write again, and handle the stop signals."""
        self._last_step = trainer.global_step
        held_out, data = trainer.datamodule.held_out, pl_module.data
        protocol = data.of_all_ranks(trainer.world_size).held_out_protocol | {"num_batches": held_out.num_batches}
        if any(self._held_out_protocol.get(name, value) != value for name, value in protocol.items()):
            self.best_bound_nats = -math.inf  # because bounds on different batches cannot be compared
        self._held_out_protocol = protocol
        if trainer.is_global_zero:
            corpus = trainer.datamodule.corpus
            self._trained_on = merged(data.trained_on(corpus), self.init_trained_on)
            self._held_out_copies = data.held_out_copies(corpus, self._trained_on)
            if self._held_out_copies and self._held_out_copies["num_shared"]:
                copies = (
                    f"{describe_copies(self._held_out_copies)} of split {held_out.split!r} are copies of training data"
                )
                print(f"\n{copies}, so the held-out log N - L can exceed the truth", file=sys.stderr)
            self.folder.mkdir(parents=True, exist_ok=True)
            with write_atomically(self.folder / "config.yaml") as new:
                new.write_text(self.config_yaml, encoding="utf-8")
            if self._unused:
                unused = f"{'; '.join(self._unused)}; its weights and random numbers are in the checkpoint"
                print(f"no effect on a resumed run: {unused}", file=sys.stderr)
            for name in ("bound.jsonl", "probe.jsonl", "health.jsonl"):
                drop_records_after(self.folder / name, trainer.global_step)
        self._record_event(trainer, "resumed" if trainer.global_step else "started", _how_computed(trainer, pl_module))
        for number in STOP_SIGNALS:  # replaces Lightning's handlers; `pretrain` restores the earlier ones at the end
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._stop_after_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Pretraining, outputs: Any, batch: Batch, batch_index: int
    ) -> None:
        """Record, evaluate and save if it is due at this step; once per step, even under gradient accumulation."""
        step = trainer.global_step
        if step == self._last_step:
            return
        self._last_step = step
        # A signal may reach only one rank. All ranks must stop together, or the others would wait for ever.
        stop_signal = int(gather_integers(torch.tensor([self._stop_signal])).max())
        if stop_signal and step < trainer.max_steps:
            self.stopped_by, trainer.should_stop = stop_signal, True
        is_last = step == trainer.max_steps or (trainer.should_stop and self.stopped_by is None)  # `max_time` is over
        should_evaluate = step % self.eval_every_steps == 0 or is_last
        should_save = step % self.checkpoint_every_steps == 0 or is_last or trainer.should_stop
        if should_evaluate or should_save:
            pl_module.require_finite()
        trackers = [callback for callback in trainer.callbacks if isinstance(callback, Tracker)]
        if step % self.record_every_steps == 0 or is_last:
            self._record(trainer, pl_module.take_training_bound(), step)
            for tracker in trackers:
                self._record_health(trainer, tracker.record(trainer, pl_module, step, outputs, batch))
        if should_evaluate:
            self._record_evaluation(trainer, pl_module, *pl_module.evaluate())
        if should_save:
            self._save(trainer, "last")
        if should_evaluate or should_save:
            for tracker in trackers:
                tracker.restart_clock()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Record why the run ended."""
        events = {(KeyboardInterrupt, SIGTERMException): "interrupted", FloatingPointError: "not_finite"}
        event = next((name for kinds, name in events.items() if isinstance(exception, kinds)), "failed")
        message = f"{type(exception).__name__}: {exception}" if str(exception) else ""
        if trainer.world_size > 1 and is_connection_lost(exception):
            message = LOST
        with suppress(OSError):  # if the disk is full, the first error must be shown
            self._record_event(trainer, event, message)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record how the run ended, and print how to continue after a stop signal."""
        self._record_event(trainer, "finished" if self.stopped_by is None else "interrupted")
        if self.stopped_by is not None and trainer.is_global_zero:
            step = f"{trainer.global_step} of {trainer.max_steps}"
            print(f"\ninterrupted at step {step}, saved; {how_to_continue(self.folder)}", file=sys.stderr)

    def _stop_after_step(self, signal_number: int, frame: FrameType | None) -> None:
        """Stop after this step, or at once on a second Ctrl-C.

        A scheduler may send its signal twice, to the process and to its group, so only a second Ctrl-C counts.
        """
        self._stop_signal = signal_number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            os.write(2, b"\nstopping after this step; Ctrl-C stops at once\n")  # print is not reentrant
        except OSError:  # after SIGHUP the terminal is gone, and a print would end the run
            sys.stdout = sys.stderr = open(os.devnull, "w")

    def _record_evaluation(
        self, trainer: pl.Trainer, module: Pretraining, bounds: list[Bound], probe_records: list[dict[str, Any]]
    ) -> None:
        """Record held-out bounds and online probes of the same weights; save and export the best model."""
        step = trainer.global_step
        for bound in bounds:
            self._record(trainer, bound, step)
        for record in probe_records:
            if record["accuracy"] is not None:  # None without a labelled held-out example
                names = ("accuracy", "label_information_nats")
                prefix = f"probe/{record['task']}/{record['features']}"  # probes on z and c may share a task
                self._log(trainer, {f"{prefix}/{name}": record[name] for name in names}, step)
            if trainer.is_global_zero:
                append_record(self.folder / "probe.jsonl", record)
        if bounds[0].mean("mi_bound_nats") > self.best_bound_nats:
            self.best_bound_nats = bounds[0].mean("mi_bound_nats")
            self._save(trainer, "best")
            self._export(trainer, module, bounds)

    def _record(self, trainer: pl.Trainer, bound: Bound, step: int) -> None:
        prefix = f"{bound.split}/"
        module: Any = trainer.lightning_module
        if bound.strategy not in (module.model.loss_part.training_strategies[0], module.strategies[0]):
            prefix += f"{bound.strategy}/"
        names = ("loss_nats", "mi_bound_nats", "mi_ceiling_nats", "accuracy")
        metrics = {prefix + name: bound.mean(name) for name in names}
        for name in (*names, "standard_error_nats"):
            for direction, k, value in zip(bound.directions, bound.steps, getattr(bound, name), strict=True):
                metrics[f"{prefix}{direction and direction + '/'}k={k:02}/{name}"] = value
        self._log(trainer, metrics, step)
        if trainer.is_global_zero:
            append_record(self.folder / "bound.jsonl", self._bound_record(trainer, bound))

    def _bound_record(self, trainer: pl.Trainer, bound: Bound) -> dict[str, Any]:
        is_held_out = bound.split == trainer.datamodule.held_out.split
        copies = {"pretrained_on": self._held_out_copies} if is_held_out else {}
        return bound.record(trainer.global_step) | copies

    def _record_health(self, trainer: pl.Trainer, record: dict[str, Any]) -> None:
        names = [*_HEALTH_NAMES, *(f"{x}_{measure}" for x in "zc" for measure in ("variance", "effective_rank"))]
        metrics = {f"health/{name}": record[name] for name in names if record[name] is not None}
        self._log(trainer, metrics, record["step"])
        if trainer.is_global_zero:
            append_record(self.folder / "health.jsonl", record)

    @property
    def has_started(self) -> bool:
        """Whether training has started. Only then are events recorded, since the folder may hold another run."""
        return self._last_step >= 0

    def _record_event(self, trainer: pl.Trainer, event: str, message: str = "") -> None:
        if trainer.is_global_zero and self.has_started:
            append_record(self.folder / "events.jsonl", event_record(trainer.global_step, event, message))

    def _log(self, trainer: pl.Trainer, metrics: dict[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        """Write a new file, then rename it, so that a kill or a full disk does not damage the old checkpoint."""
        path = self.folder / "checkpoints" / f"{name}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        try:
            trainer.save_checkpoint(new)
            if trainer.is_global_zero:
                read_checkpoint(new)  # fails if the state of a callback cannot be loaded again
                os.replace(new, path)
        except (OSError, RuntimeError) as error:  # torch wraps a failed write in a RuntimeError
            if is_connection_lost(error):  # all ranks wait for each other before and after the write
                raise
            raise OSError(
                f"{path} could not be saved: {error}; is the disk full? Free space; {how_to_continue(self.folder)}"
            ) from error
        finally:
            if trainer.is_global_zero:
                new.unlink(missing_ok=True)

    def _export(self, trainer: pl.Trainer, module: Pretraining, bounds: list[Bound]) -> None:
        if trainer.is_global_zero:
            provenance = {
                "step": trainer.global_step,
                "data": module.data.of_all_ranks(trainer.world_size).saved_settings,
                "held_out": [self._bound_record(trainer, bound) for bound in bounds],
            }
            origin = {"init_from": self.init_from, "trained_on": self._trained_on or None}
            provenance |= {name: value for name, value in origin.items() if value is not None}
            save_pretrained(module.model, self.folder / "model", provenance=provenance)


def is_connection_lost(error: BaseException) -> bool:
    """Return whether a collective failed because another rank has ended or does not answer."""
    return (
        isinstance(error, RuntimeError)
        and re.search("(?i)gloo|nccl|timed out|timeout|connection", str(error)) is not None
    )


def how_to_continue(folder: Path) -> str:
    """Return the options that continue a run from its checkpoints, as advice in a message."""
    for name in ("last", "best"):
        if (folder / "checkpoints" / f"{name}.ckpt").exists():
            return f"continue with --run_dir {folder} --ckpt_path {name}"
    return f"there is no checkpoint to continue from: delete {folder} to start again"
