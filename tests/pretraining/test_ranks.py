"""Two ranks of a program that takes no time to start: how they end, and what is said of it."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import refuses
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from cpc.pretraining import ranks
from cpc.pretraining.ranks import end_with_agent, start_ranks

# Rank 1 does something; rank 0 waits until it is ended.
PROGRAM = """
import json, os, pathlib, signal, sys, time
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
if os.environ["RANK"] == "1":
    {event}
elif {waits}:
    time.sleep(100)
"""
ERROR_FILE = (
    "pathlib.Path(os.environ['TORCHELASTIC_ERROR_FILE']).write_text("
    "json.dumps({'message': 'cpc: error: x.wav: is empty', 'timestamp': 0})); sys.exit(2)"
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ranks, "__main__", SimpleNamespace(__spec__=None, __file__=""))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "program.py"), str(tmp_path)])
    return tmp_path / "program.py"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"rank 1 of 2: ended by SIGKILL \(was it killed"),
        (ERROR_FILE, "^rank 1 of 2: x.wav: is empty$"),
    ],
)
def test_the_rank_that_ends_first_ends_all_by_name(program: Path, event: str, message: str) -> None:
    program.write_text(PROGRAM.format(event=event, waits=True))
    with pytest.raises(OSError, match=message):
        start_ranks(2, 1, program.parent)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (3, OSError, "rank 1 of 2: ended with status 3; its error is printed above"),
        (143, SystemExit, "143"),
        (130, KeyboardInterrupt, "^$"),
    ],
)
def test_the_exit_code_of_a_rank_is_that_of_all(
    program: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[BaseException], message: str
) -> None:
    def fail(*_: str) -> None:
        raise ChildFailedError("", {1: ProcessFailure(local_rank=1, pid=7, exitcode=code, error_file="none")})

    monkeypatch.setattr(ranks, "elastic_launch", lambda *_: fail)
    with pytest.raises(error, match=message):
        start_ranks(2, 1, program.parent)


def test_ranks_that_finish_are_no_error(program: Path) -> None:
    program.write_text(PROGRAM.format(event="pass", waits=False))
    start_ranks(2, 1, program.parent)
    assert {path.name for path in program.parent.iterdir()} == {"program.py", "0", "1"}


def test_a_signal_is_passed_on_and_the_former_handlers_return(program: Path) -> None:
    program.write_text(PROGRAM.format(event="time.sleep(100)", waits=True))

    def send() -> None:
        while not all((program.parent / rank).exists() for rank in "01"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    former = signal.getsignal(signal.SIGTERM)
    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(SystemExit, match="143"):
        start_ranks(2, 1, program.parent)
    sender.join()
    assert signal.getsignal(signal.SIGTERM) == former


def test_ranks_end_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    rank = f"import ctypes, os, signal, sys, time\n{inspect.getsource(end_with_agent)}"
    rank += f"end_with_agent()\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)"
    agent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {rank!r}], start_new_session=True)"
    running = subprocess.Popen([sys.executable, "-c", agent], env=os.environ | {"TORCHELASTIC_RUN_ID": "x"})
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    running.kill()
    running.wait()
    status, until = Path("/proc", (tmp_path / "pid").read_text(), "stat"), time.monotonic() + 20
    while status.exists() and status.read_text().split()[2] != "Z" and time.monotonic() < until:
        time.sleep(0.02)
    assert time.monotonic() < until


def test_a_notebook_is_not_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ranks, "__main__", SimpleNamespace(__spec__=None))
    refuses(r"2 ranks run this program again.*set `trainer.devices` to 1", start_ranks, 2, 1, tmp_path)


def test_several_machines_need_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NODE_RANK", raising=False)
    refuses(r"`trainer.num_nodes`=2 needs torchrun, or MASTER_ADDR.* in the environment", start_ranks, 2, 2, tmp_path)
