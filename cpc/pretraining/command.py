"""`cpc pretrain`: LightningCLI's fit under our name, with the run's folder around it."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from cpc.pretraining.data import AudioData
from cpc.pretraining.module import Pretraining
from cpc.pretraining.progress import Progress
from cpc.pretraining.run_folder import RunFolder

_KNOWN_WARNINGS = (
    ".*does not have many workers.*",  # the packed cache is read faster than a worker could send it
    "(?s).*'set_vital' is deprecated.*",  # torchdata 0.11 with torch 2.14
    ".*isinstance\\(treespec, LeafSpec\\).*",  # lightning 2.6 with torch 2.14
    "(?s).*was deprecated in v4.49.*",  # lightning 2.6 with jsonargparse 4.49 and later
    "(?s).*JsonargparseDeprecationWarning.*",  # and what jsonargparse says of such warnings
)


class PretrainCommand(LightningCLI):
    """Parses configs and options; unknown and abbreviated options are refused before anything runs."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The options of the run's folder."""
        parser.add_argument("--run_dir", type=str, default=None, help="the run's folder, new for a new run (required)")
        parser.add_argument("--ckpt_path", type=str, default=None, help="continue: 'last', 'best' or a .ckpt file")
        parser.add_argument("--record_every_steps", type=int, default=50, help="record the training bound this often")
        parser.add_argument("--eval_every_steps", type=int, default=500, help="measure the held-out bound this often")
        parser.add_argument("--checkpoint_every_steps", type=int, default=500, help="save last.ckpt this often")


def pretrain(arguments: list[str] | dict[str, Any]) -> Path:
    """Run one pretraining; `arguments` are the command line's, or a config as a dictionary.

    Returns:
        The run's folder.

    Raises:
        ValueError: before training, on options that cannot work together; they are named.
    """
    torch.set_flush_denormal(True)  # before the first product, so that every thread inherits it
    command = parse(arguments)
    config = command.config
    for name in ("record_every_steps", "eval_every_steps", "checkpoint_every_steps"):
        if config[name] < 1:
            raise ValueError(f"--{name}={config[name]} must be at least 1")
    if command.trainer.max_steps < 1:
        raise ValueError("trainer.max_steps must be given: the schedule and the sampler need the number of steps")
    if config.run_dir is None:
        raise ValueError("--run_dir must name the run's folder")
    run_dir = Path(config.run_dir)
    checkpoint = _checkpoint_to_continue(run_dir, config.ckpt_path)

    for_a_new_run = config.clone()
    for_a_new_run.ckpt_path = None
    folder = RunFolder(
        run_dir,
        config.record_every_steps,
        config.eval_every_steps,
        config.checkpoint_every_steps,
        config_yaml=command.parser.dump(for_a_new_run, skip_none=False),
    )
    trainer: pl.Trainer = command.trainer
    trainer.callbacks += [Progress(), folder]
    if not trainer.loggers:
        trainer.logger = TensorBoardLogger(run_dir, name="tensorboard", version="")
    with _known_warnings_ignored():
        # Own checkpoints hold generator states, which torch's weights-only reader refuses.
        trainer.fit(command.model, command.datamodule, ckpt_path=checkpoint, weights_only=False)
    return run_dir


def _checkpoint_to_continue(run_dir: Path, ckpt_path: str | None) -> Path | None:
    holds_run = any((run_dir / name).exists() for name in ("bound.jsonl", "checkpoints"))
    if ckpt_path is None:
        if holds_run and rank_zero_only.rank == 0:  # other ranks find what rank 0 has just begun
            raise ValueError(
                f"{run_dir} already holds a run: continue it with --ckpt_path last, or name another --run_dir"
            )
        return None
    known = {name: run_dir / "checkpoints" / f"{name}.ckpt" for name in ("last", "best")}
    path = known.get(ckpt_path, Path(ckpt_path))
    if not path.exists():
        raise ValueError(
            f"--ckpt_path {ckpt_path}: there is no {path}; "
            + (
                "that run had not saved yet: start anew with another --run_dir, or delete the folder"
                if holds_run
                else "check --run_dir"
            )
        )
    return path


def parse(arguments: list[str] | dict[str, Any]) -> PretrainCommand:
    """Build module, data module and trainer from the command line's arguments or a config's dictionary."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    own_arguments, sys.argv = sys.argv, sys.argv[:1]  # LightningCLI warns of arguments beside those it is given
    try:
        with _known_warnings_ignored():
            return PretrainCommand(
                Pretraining,
                AudioData,
                run=False,
                args=arguments,
                save_config_callback=None,
                seed_everything_default=0,
                auto_configure_optimizers=False,
                parser_kwargs={"allow_abbrev": False, "prog": "cpc pretrain"},
                trainer_defaults={
                    "max_epochs": 1,  # one endless epoch: the sampler counts the passes over the corpus
                    "logger": False,
                    "log_every_n_steps": 1,  # RunFolder logs
                    "enable_checkpointing": False,
                    "enable_progress_bar": False,
                    "enable_model_summary": False,
                    "use_distributed_sampler": False,  # the batch samplers know ranks
                    "limit_val_batches": 0,  # RunFolder evaluates
                },
            )
    finally:
        sys.argv = own_arguments


@contextmanager
def _known_warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in _KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message)
        yield
