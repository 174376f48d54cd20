"""Lightning's trainer, with those of its options that do something here."""

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

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")  # of shorter weights no loss and no bound is exact


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

    Evaluation, checkpoints and the folder are the run's own (`--eval_every_steps`, `--checkpoint_every_steps`,
    `--run_dir`), so Lightning's options for them are not offered.

    Args:
        max_steps: optimiser steps of the whole run (required).
        max_time: end earlier after that much time, as DD:HH:MM:SS.
        accelerator: cpu, gpu, auto, as Lightning names them.
        devices: processes per machine, or which devices.
        num_nodes: machines.
        strategy: how processes work together: ddp, for example. Latents of all of them are candidates.
        precision: of weights and products: 32-true, 64-true, bf16-mixed or 16-mixed.
        gradient_clip_val: largest norm (or value) of a step's gradients; null or 0: as they are.
        gradient_clip_algorithm: norm or value.
        accumulate_grad_batches: batches whose gradients make a step; it does not enlarge N (see `model.num_chunks`).
        sync_batchnorm: share batch norm's statistics between devices.
        deterministic: ask torch for deterministic operators alone.
        benchmark: let cuDNN choose its algorithms by timing them.
        detect_anomaly: name the operation whose gradient is not finite; slow.
        profiler: simple, advanced, or a profiler by class path.
        plugins: a cluster environment by class path, where Lightning does not find it.
        callbacks: more callbacks, such as `cpc.probes.OnlineProbe`.
        logger: in place of TensorBoard in the run's folder; false: none.
        enable_progress_bar: show a line with log N - L and speed.

    Raises:
        ValueError: on values that Lightning does not check, or refuses; if the environment has another number of
            processes than these options make.
    """
    if gradient_clip_val is not None and not gradient_clip_val >= 0:
        raise ValueError(
            f"trainer.gradient_clip_val={gradient_clip_val} must not be negative; null or 0: gradients stay whole"
        )
    if gradient_clip_algorithm is not None and not gradient_clip_val:
        raise ValueError(
            f"trainer.gradient_clip_algorithm={gradient_clip_algorithm} clips nothing without trainer.gradient_clip_val"
        )
    if accumulate_grad_batches < 1:
        raise ValueError(f"trainer.accumulate_grad_batches={accumulate_grad_batches} must be at least 1")
    if precision not in PRECISIONS:
        raise ValueError(
            f"trainer.precision={precision}: choose one of {', '.join(PRECISIONS)}; weights of 16 bits are too short "
            "for the loss and the bound"
        )
    of_machines = {"accelerator": accelerator, "devices": devices, "num_nodes": num_nodes, "strategy": strategy}
    try:
        made = pl.Trainer(
            **of_machines,
            precision=precision,
            max_steps=max_steps,
            max_time=max_time,
            max_epochs=1,  # the sampler counts the passes over the corpus
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
            logger=False if logger is None or logger is True else logger,  # `pretrain` adds the run's own
            limit_val_batches=0,  # RunFolder evaluates, saves and logs
            enable_checkpointing=False,
            log_every_n_steps=1,
            enable_progress_bar=False,  # `pretrain` adds its own
            enable_model_summary=False,
            use_distributed_sampler=False,  # the batch samplers know ranks
        )
    except (MisconfigurationException, ModuleNotFoundError, TypeError) as error:
        given = ", ".join(f"trainer.{name}={value}" for name, value in of_machines.items())
        raise ValueError(f"{error} Given: {given}; `cpc doctor` shows what this machine has") from error
    started = os.environ.get("WORLD_SIZE", "1")  # by torchrun, with RANK; Lightning leaves its own without
    if started not in ("1", str(made.world_size)) and "RANK" in os.environ:
        raise ValueError(
            f"WORLD_SIZE={started} in the environment, but the options make a trainer of {made.world_size}: each "
            "process would train by itself; give --trainer.devices (processes per machine), --trainer.num_nodes and "
            "--trainer.strategy ddp, or start a single process"
        )
    return made
