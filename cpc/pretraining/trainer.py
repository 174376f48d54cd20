"""Lightning's trainer, with the options that have an effect in pretraining."""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from cpc.data.store.contents import later_ranks, say

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")  # 16-bit weights make the loss and the bound inexact


def make_trainer(
    max_steps: int = -1,
    max_time: str | timedelta | dict[str, int] | None = None,
    accelerator: str = "auto",
    devices: int | str | list[int] = "auto",
    num_nodes: int = 1,
    strategy: str | Strategy = "auto",
    precision: str = "32-true",
    gradient_clip_val: int | float | None = None,
    gradient_clip_algorithm: Literal["norm", "value"] | None = None,
    accumulate_grad_batches: int = 1,
    sync_batchnorm: bool = False,
    deterministic: bool | Literal["warn"] | None = None,
    benchmark: bool | None = None,
    detect_anomaly: bool = False,
    profiler: Profiler | str | None = None,
    plugins: ClusterEnvironment | list[ClusterEnvironment] | None = None,
    callbacks: list[Callback] | Callback | None = None,
    logger: Logger | Iterable[Logger] | bool | None = None,
    enable_progress_bar: bool = True,
) -> pl.Trainer:
    """Build the trainer of one endless epoch, which `max_steps` ends.

    The run has its own options for evaluation, checkpoints and the folder (`--eval_every_steps`,
    `--checkpoint_every_steps`, `--run_dir`), so Lightning's options for them are left out.

    Args:
        max_steps: optimiser steps of the whole run (required).
        max_time: time after which the run ends earlier, as DD:HH:MM:SS.
        accelerator: cpu, gpu or auto, as in Lightning.
        devices: number of processes per machine, or a list of devices.
        num_nodes: number of machines.
        strategy: Lightning's strategy for several processes, such as ddp. Candidates come from all processes.
        precision: precision of weights and products: 32-true, 64-true, bf16-mixed or 16-mixed.
        gradient_clip_val: largest norm (or value) of a step's gradients; null or 0 for no clipping.
        gradient_clip_algorithm: norm or value.
        accumulate_grad_batches: number of batches whose gradients are added up for a step; it does not change N (see
            `model.num_chunks`).
        sync_batchnorm: share batch norm's statistics between devices.
        deterministic: use only deterministic operators of torch.
        benchmark: let cuDNN choose its algorithms by timing them.
        detect_anomaly: name the operation whose gradient is not finite; slow.
        profiler: simple, advanced, or a profiler by class path.
        plugins: class path of a cluster environment, if Lightning does not detect it.
        callbacks: more callbacks, such as `cpc.probes.OnlineProbe`.
        logger: a logger in place of TensorBoard in the run's folder; false for no logger.
        enable_progress_bar: show a progress bar with log N - L and speed.

    Raises:
        ValueError: if a value is invalid, or the environment holds a WORLD_SIZE or a rank that does not fit the number
            of processes that these options start.
    """
    if gradient_clip_val is not None and not gradient_clip_val >= 0:
        raise ValueError(f"trainer.gradient_clip_val={gradient_clip_val} must not be negative; null or 0 does not clip")
    if gradient_clip_algorithm is not None and not gradient_clip_val:
        raise ValueError(
            f"trainer.gradient_clip_algorithm={gradient_clip_algorithm} has no effect without trainer.gradient_clip_val"
        )
    if accumulate_grad_batches < 1:
        raise ValueError(f"trainer.accumulate_grad_batches={accumulate_grad_batches} must be at least 1")
    if precision not in PRECISIONS:
        raise ValueError(
            f"trainer.precision={precision}: choose one of {', '.join(PRECISIONS)}; 16-bit weights make the loss and "
            "the bound inexact"
        )
    devices_options = {"accelerator": accelerator, "devices": devices, "num_nodes": num_nodes, "strategy": strategy}
    try:
        trainer = pl.Trainer(
            **devices_options,
            precision=precision,
            max_steps=max_steps,
            max_time=max_time,
            max_epochs=1,  # the sampler counts passes over the corpus
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
            accumulate_grad_batches=accumulate_grad_batches,
            sync_batchnorm=sync_batchnorm,
            deterministic=deterministic,
            benchmark=benchmark,
            detect_anomaly=detect_anomaly,
            profiler=profiler,
            plugins=plugins,
            callbacks=callbacks,
            logger=False if logger is None or logger is True else logger,  # `pretrain` adds the default logger
            limit_val_batches=0,  # RunFolder evaluates, saves and logs
            enable_checkpointing=False,
            log_every_n_steps=1,
            enable_progress_bar=False,  # `pretrain` adds the progress bar
            enable_model_summary=False,
            use_distributed_sampler=False,  # the batch samplers distribute over ranks
        )
    except (MisconfigurationException, ModuleNotFoundError, TypeError) as error:
        values = ", ".join(f"trainer.{name}={value}" for name, value in devices_options.items())
        raise ValueError(f"{error} Given: {values}; `cpc doctor` lists the devices of this machine") from error
    world_size = os.environ.get("WORLD_SIZE", "1")  # torchrun also sets RANK, Lightning does not
    if world_size not in ("1", str(trainer.world_size)) and "RANK" in os.environ:
        raise ValueError(
            f"WORLD_SIZE={world_size} in the environment, but the options start {trainer.world_size} processes, so "
            "that each process would train alone: give --trainer.devices (processes per machine), --trainer.num_nodes "
            "and --trainer.strategy ddp, or start a single process; unset WORLD_SIZE and RANK if another launcher has "
            "left them"
        )
    if left := ", ".join(later_ranks(is_launched=False)):
        if trainer.world_size > 1:
            raise ValueError(
                f"{left} in the environment is a rank without WORLD_SIZE, but the options start {trainer.world_size} "
                "processes: unset it"
            )
        rank_zero_only.rank = 0  # Lightning has read the variable, and would not log
        say(f"{left} in the environment is ignored: no launcher of several processes has set it")
    return trainer
