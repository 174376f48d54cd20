"""Real Ray clusters on this machine, in processes of their own, of which nothing is left."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster()
for num_cpus in sys.argv[1:]:
    cluster.add_node(num_cpus=int(num_cpus), include_dashboard=False)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
# Each Python process writes its stacks at SIGUSR1.
STACKS = """
import faulthandler, os, signal
faulthandler.register(signal.SIGUSR1, open(f"{os.path.dirname(__file__)}/stacks.{os.getpid()}", "w"))
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


def processes_of(folder: Path) -> list[str]:
    """Whatever runs with this folder in its environment: everything that a cluster there has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or is another user's
            continue
    return found


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """For processes with a Ray of their own."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # paths of sockets are short
    (folder / "sitecustomize.py").write_text(STACKS)
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    yield without | {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",  # else a token is written to the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else ranks starve on a busy machine
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(folder),
    }
    until = time.monotonic() + 20
    while processes_of(folder):
        assert time.monotonic() < until, processes_of(folder)
        time.sleep(0.2)
    shutil.rmtree(folder)


@pytest.fixture
def cluster(environment: dict[str, str]) -> Iterator[Callable[..., dict[str, str]]]:
    """A function that starts a cluster, given the CPUs of each machine; the environment that names it."""
    started: list[subprocess.Popen[str]] = []

    def start(*num_cpus: int) -> dict[str, str]:
        command = [sys.executable, "-c", CLUSTER, *map(str, num_cpus)]
        with open(os.devnull, "w") as nowhere:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": nowhere}
            started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        assert started[-1].stdout is not None
        return environment | {"RAY_ADDRESS": started[-1].stdout.readline().strip()}

    yield start
    for process in started:
        process.communicate(timeout=60)


@pytest.fixture
def cpc(tmp_path: Path) -> Run:
    """A function that runs a command of cpc in a folder of its own."""

    def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cpc.cli", *arguments]
        with subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                said = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                stacks = _stacks(Path(environment["PYTHONPATH"]))
                process.kill()
                pytest.fail(f"{arguments} has not ended; {process.communicate()[1]}\n{stacks}")
        return subprocess.CompletedProcess(command, process.returncode, *said)

    return run


def _stacks(folder: Path) -> str:
    """Where every Python process of a cluster waits."""
    files = list(folder.glob("stacks.*"))
    for file in files:
        with suppress(ProcessLookupError):
            os.kill(int(file.suffix[1:]), signal.SIGUSR1)
    time.sleep(2)
    return "\n".join(f"{file.name}\n{file.read_text()}" for file in files if file.stat().st_size)
