"""The ranks of this machine, which torchrun's agent starts, watches and ends."""

import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import lightning.pytorch as pl
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import __main__
from cpc.pretraining.run_folder import LOST, STOP_SIGNALS, how_to_continue, is_connection_lost

_CAUSE_SECONDS = 2.0  # torchrun's agent looks ten times a second which rank ended first


def must_start_ranks(trainer: pl.Trainer) -> bool:
    """Return whether this process must start the ranks, because no launcher has started it as one of them."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return trainer.world_size > 1 and environment is not None and not environment.creates_processes_externally


def start_ranks(num_ranks: int, num_nodes: int, run_dir: Path) -> None:
    """Run this program again in every rank of this machine, and wait until all ranks have ended.

    If a rank fails, the agent sends SIGTERM to the others, and SIGKILL after TORCH_ELASTIC_SHUTDOWN_TIMEOUT seconds, 30
    by default. A stop signal is passed on as SIGTERM, with the same time to save. With several machines, MASTER_ADDR,
    MASTER_PORT and NODE_RANK say where ranks connect.
    """
    if num_nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= os.environ.keys():
        names = "MASTER_ADDR, MASTER_PORT and NODE_RANK"
        raise ValueError(f"`trainer.num_nodes`={num_nodes} needs torchrun, or {names} in the environment")
    if getattr(__main__, "__spec__", None) is None and not hasattr(__main__, "__file__"):
        problem = "ranks run this program again, which a notebook or `python -c` cannot"
        raise ValueError(f"{num_ranks * num_nodes} {problem}: set `trainer.devices` to 1, or use `cpc pretrain`")
    rendezvous: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
    if num_nodes > 1:
        endpoint = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        node = {"rank": int(os.environ["NODE_RANK"])}
        rendezvous = {"rdzv_backend": "static", "rdzv_endpoint": endpoint, "rdzv_configs": node}
    nodes = {"min_nodes": num_nodes, "max_nodes": num_nodes, "nproc_per_node": num_ranks, "max_restarts": 0}
    config = LaunchConfig(**nodes, **rendezvous, run_id="cpc", signals_to_handle="SIGQUIT")
    is_module = getattr(__main__, "__spec__", None) is not None
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    program = ["-m", __main__.__spec__.name] if is_module else [str(Path(sys.argv[0]).absolute())]
    stop_signals = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    stopped_by = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped_by
        stopped_by = number
        for each in stop_signals:  # a scheduler may send its signal twice
            signal.signal(each, signal.SIG_IGN)
        raise SignalException("stopped", signal.SIGTERM)

    for number, former in stop_signals.items():
        if former != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        elastic_launch(config, sys.executable)(*program, *sys.argv[1:])
    except SignalException:
        leave(128 + stopped_by)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if 128 < failure.exitcode:
            leave(failure.exitcode)
        raise OSError(f"rank {rank} of {num_ranks * num_nodes}: {_cause(failure, run_dir)}") from None
    finally:
        for number, former in stop_signals.items():
            signal.signal(number, former or signal.SIG_DFL)


def leave(code: int) -> NoReturn:
    """End as a process that a signal stopped, or with another exit status."""
    raise KeyboardInterrupt() if code == 128 + signal.SIGINT else SystemExit(code)


def _cause(failure: ProcessFailure, run_dir: Path) -> str:
    if failure.exitcode < 0:
        name = failure.signal_name()
        return f"ended by {name} (was it killed, or is memory short?); {how_to_continue(run_dir)}"
    if Path(failure.error_file).is_file():  # `cpc.cli` has written it
        return str(failure.message).removeprefix("cpc: error: ")
    return f"ended with status {failure.exitcode}; its error is printed above; {how_to_continue(run_dir)}"


def end_with_agent() -> None:
    """Let Linux send SIGTERM to this rank when torchrun's agent dies, even by SIGKILL; ranks are of another session."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG


def reason_to_show(error: Exception) -> str | None:
    """Return the message of an error that needs no traceback; None for other errors.

    A rank that has lost another rank waits, so that the other rank ends first and torchrun's agent reports its error.
    """
    if is_connection_lost(error):
        time.sleep(_CAUSE_SECONDS)
        return f"{LOST}: {str(error).splitlines()[0]}"
    return str(error) if isinstance(error, (ValueError, OSError, FloatingPointError)) else None
