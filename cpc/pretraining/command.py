"""`cpc pretrain`: training by a LightningCLI, with a folder for the run."""

import logging
import re
import signal
import sys
import traceback
import warnings
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, get_args

import lightning.pytorch as pl
import torch
import yaml
from jsonargparse import get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from cpc.checkpoint import read_checkpoint, read_config
from cpc.config.argument_rules import Count, Range, check_values
from cpc.config.description import without_removed
from cpc.config.yaml_rules import check_yaml
from cpc.data.modality import Modality
from cpc.data.store.untrusted import read_yaml
from cpc.pretraining.data import PretrainingData
from cpc.pretraining.module import CompileMode, Pretraining
from cpc.pretraining.ranks import end_with_agent, leave, must_start_ranks, reason_to_show, start_ranks
from cpc.pretraining.run import Run
from cpc.pretraining.run_folder import STOP_SIGNALS, RunFolder, how_to_continue
from cpc.pretraining.run_lock import lock_run
from cpc.pretraining.trainer import NOT_OFFERED, Progress, make_trainer
from cpc.pretraining.transfer import start_from
from cpc.probes.online import OnlineProbe
from cpc.probes.tracker import Tracker

_KNOWN_WARNINGS = (
    ".*does not have many workers.*",  # reading packed data takes less time than receiving them from a worker
    "(?s).*'set_vital' is deprecated.*",  # torchdata 0.11 with torch 2.14
    ".*isinstance\\(treespec, LeafSpec\\).*",  # lightning 2.6 with torch 2.14
    "(?s).*was deprecated in v4.49.*",  # lightning 2.6 with jsonargparse 4.49 and later
    "(?s).*JsonargparseDeprecationWarning.*",  # jsonargparse's hint at such warnings
)


OPTION_TYPES: dict[str, Any] = {  # of the run itself; trainer, model and data have further options
    "seed_everything": Annotated[int, Range(0, 2**32 - 1)],
    "run_dir": str | None,
    "ckpt_path": str | None,
    "init_from": str | None,
    "record_every_steps": Count,
    "eval_every_steps": Count,
    "checkpoint_every_steps": Count,
    "compile": CompileMode,
}


class PretrainCommand(LightningCLI):
    """The parser of configs and options, which rejects unknown and abbreviated options."""

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the trainer, the model, and any `cpc.data.Modality`."""
        parser.add_class_arguments(pl.Trainer, "trainer", instantiate=False, skip=NOT_OFFERED, fail_untyped=False)
        parser.add_lightning_class_args(Pretraining, "model")
        parser.add_argument("--data", type=Modality, help="the training data, such as cpc.data.Audio")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the run's folder. Set the default loss and modality; their options need no class path."""
        parser.set_defaults(
            {"model.loss": {"class_path": "cpc.losses.Contrastive"}, "data": {"class_path": "cpc.data.Audio"}}
        )
        parser.add_argument("--run_dir", type=str, default=None, help="folder of the run, new for a new run (required)")
        parser.add_argument("--ckpt_path", type=str, default=None, help="continue: 'last', 'best' or a .ckpt file")
        parser.add_argument(
            "--init_from",
            type=str,
            default=None,
            help="start from the weights of a run, a model folder, or a model of the Hugging Face Hub",
        )
        parser.add_argument("--record_every_steps", type=int, default=50, help="record the training bound this often")
        parser.add_argument("--eval_every_steps", type=int, default=500, help="measure the held-out bound this often")
        parser.add_argument("--checkpoint_every_steps", type=int, default=500, help="save last.ckpt this often")
        parser.add_argument(
            "--compile",
            type=lambda value: "off" if value is False else value,  # YAML reads a bare `off` as a boolean
            choices=get_args(CompileMode),
            default="off",
            help="compute the model by torch.compile (default), or steps as CUDA graphs (reduce-overhead)",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the options, and check the run's own before anything is built."""
        super().parse_arguments(parser, args)
        values = {name: self.config[name] for name in OPTION_TYPES}
        check_values(OPTION_TYPES, {name: value for name, value in values.items() if not isinstance(value, bool)})


def run_pretraining(arguments: list[str] | dict[str, Any]) -> Run:
    """Run one pretraining, from the arguments of the command line or a config as a dictionary.

    Returns:
        The run's folder.

    Raises:
        ValueError: before training, if options contradict each other (the message names them), or another process
            trains in the run's folder.
        KeyboardInterrupt: after Ctrl-C; the first Ctrl-C finishes the step and saves.
        OSError: if one of several ranks fails.
        SystemExit: after SIGTERM or SIGHUP, which finish the step and save, with the exit status 128 + signal number.
    """
    end_with_agent()
    torch.set_flush_denormal(True)  # called before the first computation, so that every thread inherits the setting
    command = parse(arguments)
    config, trainer = command.config, command.trainer
    command.model.compile_mode = config.compile
    if trainer.max_steps < 1 or config.run_dir is None:
        raise ValueError("trainer.max_steps and --run_dir must be given: the number of steps, and the run's folder")
    run_dir = Path(config.run_dir)
    if must_start_ranks(trainer):
        start_ranks(trainer.num_devices, trainer.num_nodes, run_dir)
        return Run(run_dir)
    with lock_run(run_dir) if trainer.is_global_zero else nullcontext():
        checkpoint, first_step = _checkpoint_to_continue(run_dir, config.ckpt_path, command.model)
        # Only rank 0 checks, since other ranks may already see the folder that rank 0 has just made.
        if checkpoint is None and trainer.is_global_zero and _holds_run(run_dir):
            raise ValueError(f"{run_dir} already holds a run: {how_to_continue(run_dir)}, or name another --run_dir")
        _fit(command, run_dir, checkpoint, first_step)
    return Run(run_dir)


def _fit(command: PretrainCommand, run_dir: Path, checkpoint: Path | None, first_step: int) -> None:
    config, trainer = command.config, command.trainer
    Range(first_step).check(f"{checkpoint}: --trainer.max_steps", trainer.max_steps)
    if first_step == trainer.max_steps:
        print(f"{checkpoint} is of step {first_step}, the last: raise --trainer.max_steps to go on", file=sys.stderr)
        return
    init_trained_on = None
    if config.init_from is not None and checkpoint is None:
        start_from(command.model.model, config.init_from)
        init_trained_on = read_config(config.init_from)["provenance"].get("trained_on")
    new_run_config = config.clone()
    new_run_config.ckpt_path = None
    folder = RunFolder(
        run_dir,
        config.record_every_steps,
        config.eval_every_steps,
        config.checkpoint_every_steps,
        config_yaml=command.parser.dump(new_run_config, skip_none=False),
        init_from=config.init_from,
        init_trained_on=init_trained_on,
        seeds={"seed_everything": config.seed_everything, "model.seed": command.model.seed},
    )
    trainer.callbacks += [*([] if config.trainer.enable_progress_bar is False else [Progress()]), Tracker(), folder]
    if config.trainer.logger is None or config.trainer.logger is True:
        purge_step = None if checkpoint is None else first_step + 1  # drops logs of later steps
        trainer.logger = TensorBoardLogger(run_dir, name="tensorboard", version="", purge_step=purge_step)
    former_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        with _known_warnings_ignored():
            tasks = [probe.task for probe in trainer.callbacks if isinstance(probe, OnlineProbe)]
            data = PretrainingData(command.datamodule, tasks)
            trainer.fit(command.model, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into SystemExit
            raise KeyboardInterrupt from error
        if isinstance(error, SIGTERMException):  # the exit before the first step would have the status of success
            raise SystemExit(128 + signal.SIGTERM) from error
        raise
    except Exception as error:
        # The frames of the traceback refer to the loader's workers, which ignore signals, so the exit would wait for
        # the workers for ever.
        traceback.clear_frames(error.__traceback__)
        if (worker_error := _worker_error(error)) is not None:
            error = OSError(
                f"a loader worker ended: {worker_error}; was it killed, or is memory short? Lower `num_workers` or "
                f"`batch_size`; {how_to_continue(run_dir)}"
            )
        if trainer.world_size > 1 and folder.has_started and (reason := reason_to_show(error)):
            advice = how_to_continue(run_dir)
            raise OSError(reason if advice in reason else f"{reason}; {advice}") from error
        raise error
    finally:
        for number, handler in former_handlers.items():
            if handler is not None:  # None: a handler that was not set from Python, and was not replaced
                signal.signal(number, handler)
    if folder.stopped_by is not None:
        leave(128 + folder.stopped_by if trainer.is_global_zero else 0)  # the run ends with the status of rank 0


def _worker_error(error: BaseException | None) -> str | None:
    """Return the message of torch or multiprocessing about a dead loader worker; None for all other errors.

    The message may be in the cause or context of an error, since Lightning may fail after a worker.
    """
    seen: set[int] = set()  # causes and contexts of errors may form a cycle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = traceback.extract_tb(error.__traceback__)
        is_pipe_error = isinstance(error, (OSError, EOFError)) and frames and "multiprocessing" in frames[-1].filename
        if is_pipe_error or (isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")):
            return str(error).strip(" .") or type(error).__name__
        error = error.__cause__ or error.__context__
    return None


def _holds_run(run_dir: Path) -> bool:
    return any((run_dir / name).exists() for name in ("bound.jsonl", "checkpoints"))


def _checkpoint_to_continue(run_dir: Path, ckpt_path: str | None, module: Pretraining) -> tuple[Path | None, int]:
    """Return the checkpoint of `--ckpt_path` and its step; give the module what the run took from its data.

    The file is read here because Lightning gives no clear message for a damaged file, and opens the data before it.
    """
    if ckpt_path is None:
        return None, 0
    known = {name: run_dir / "checkpoints" / f"{name}.ckpt" for name in ("last", "best")}
    path = known.get(ckpt_path, Path(ckpt_path))
    if not path.exists():
        advice = how_to_continue(run_dir) if _holds_run(run_dir) else "check --run_dir"
        raise ValueError(f"--ckpt_path {ckpt_path}: there is no {path}; {advice}")
    try:
        checkpoint = read_checkpoint(path)
        module.take_from_data(checkpoint["cpc"].get("from_data", {}))
        return path, checkpoint["global_step"]
    except ValueError as error:
        others = [name for name, other in known.items() if other.exists() and other != path]
        advice = f"; {run_dir} has another: --ckpt_path {others[0]}" if others else ""
        raise ValueError(f"--ckpt_path {ckpt_path}: {error}{advice}") from error


def parse(arguments: list[str] | dict[str, Any]) -> PretrainCommand:
    """Build module, data and trainer from the arguments of the command line or a config as a dictionary."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    set_loader("checked_yaml", _load_checked, exceptions=(yaml.YAMLError,))
    configs = ArgumentParser(add_help=False, allow_abbrev=False)
    configs.add_argument("-c", "--config", action="append", default=[])
    for config in configs.parse_known_args(arguments)[0].config if isinstance(arguments, list) else ():
        if Path(config).is_file():
            without_removed(read_yaml(Path(config)))  # these errors are clearer than those of jsonargparse
    if isinstance(arguments, dict):
        arguments = without_removed(arguments)
    else:
        for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
            name, _, value = option.partition("=")
            if name.startswith("--model.loss."):
                without_removed({"init_args": {name.rpartition(".")[2]: value or following}})
    own_arguments, sys.argv = sys.argv, sys.argv[:1]  # LightningCLI warns about arguments in sys.argv
    try:
        with _known_warnings_ignored():
            return PretrainCommand(
                Pretraining,
                run=False,
                args=arguments,
                save_config_callback=None,
                seed_everything_default=0,
                auto_configure_optimizers=False,
                parser_kwargs={
                    "allow_abbrev": False,
                    "prog": "cpc pretrain",
                    "parser_mode": "checked_yaml",
                    "exit_on_error": isinstance(arguments, list),
                },
                trainer_class=make_trainer,
            )
    except ArgumentError as error:  # of a dictionary; wrong arguments of the command line end the process
        raise ValueError(" ".join(str(error).split())) from error
    except RuntimeError as error:  # torch could not allocate a tensor
        size = re.search(r"tried to allocate (\d+) bytes|overflow", str(error))
        if size is None:
            raise
        memory = f"{int(size[1]) / 1e9:.0f} GB" if size[1] else "more than 2^64 bytes"
        advice = "lower the widths of model.encoder, model.context, model.predictor and model.loss"
        raise ValueError(f"a tensor of the model takes {memory}, which this machine lacks: {advice}") from error
    finally:
        sys.argv = own_arguments


def typed_option(name: str) -> str:
    """Return the option of an argument that a message names: `loss.compute`, or an argument of the data, `seed`."""
    part, _, argument = name.partition(".")
    if part in ("encoder", "context", "predictor", "loss"):
        return f"--model.{part}.init_args.{argument}"
    if name in OPTION_TYPES or name.startswith(("model.", "data.", "trainer.")):
        return f"--{name}"
    return f"--trainer.{name}" if name in signature(pl.Trainer).parameters else f"--data.{name}"


def _load_checked(text: str) -> Any:
    """Check the YAML of a config or a value, and read it as jsonargparse does, without removed options."""
    check_yaml(text)
    return without_removed(get_loader("yaml")(text))


@contextmanager
def _known_warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in _KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message)
        yield
