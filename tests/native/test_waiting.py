import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from cpc.native import processor

NUM_THREADS = 2
needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < NUM_THREADS, reason="threads have no cores"
)

SWITCHES = """
import os, resource, torch
from cpc.native.processor import idle_threads

net = torch.nn.Sequential(*(torch.nn.Conv1d(64, 64, 3, padding=1) for _ in range(8)))
x = torch.randn(8, 64, 400, generator=torch.Generator().manual_seed(0))

def work():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(5):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before, loss.detach(), gradients

work()
spinning, loss, gradients = work()
num_threads = len(os.listdir("/proc/self/task"))
with idle_threads():
    asleep, same_loss, same_gradients = work()
spinning_again, _, _ = work()
assert torch.equal(loss, same_loss) and torch.equal(gradients, same_gradients)
assert len(os.listdir("/proc/self/task")) == num_threads, "idle threads have ended"
assert asleep > 3 * max(spinning, spinning_again), (spinning, asleep, spinning_again)
"""

ENDS_IN_AN_OPERATION = """
import threading, torch
from cpc.native import processor

in_operation, zeros = threading.Event(), torch.zeros

def signal_then_zeros(*size):  # only the idle threads call torch.zeros here
    in_operation.set()
    return zeros(2**27)

processor._wait_while = lambda busy: busy and processor._exiting.wait()
torch.zeros = signal_then_zeros
assert processor.watch_cores()
in_operation.wait()
"""

UNTIL_ASLEEP = """
import subprocess, sys, threading, time
from cpc.native.processor import watch_cores

def has_idle_threads():
    return any(thread.name == "cpc-idle" for thread in threading.enumerate())

assert watch_cores() and watch_cores(), "the second call finds the first one's thread"
x, end = torch.ones(2**18), time.monotonic() + 100
num_processes = 2 * len(os.sched_getaffinity(0))
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]
try:
    while not has_idle_threads() and time.monotonic() < end:
        x.neg_()
    assert has_idle_threads()
finally:
    for process in busy:
        process.kill()
        process.wait()
"""


def run(program: str) -> None:
    told = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment = told | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(NUM_THREADS))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@needs_two_cores
def test_idle_threads_let_the_others_sleep_and_change_no_number_as_beside_busy_processes() -> None:
    """A thread that sleeps gives its core up at every wait; one that spins does so hardly ever."""
    run(SWITCHES + UNTIL_ASLEEP)


@needs_two_cores
def test_python_exits_while_idle_threads_start() -> None:
    """Python would abort if a daemon thread were inside an operation of torch when Python exits."""
    run(ENDS_IN_AN_OPERATION)


def test_looks_end_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks a second apart; thread 7 waits as listed, thread 8 has ended or is new, which says nothing."""
    waits = iter(itertools.accumulate([0.0, 0.5, 0.4, 0.36, 0.34, 0.1, 0.2, 0.36]))
    clock = itertools.count()
    monkeypatch.setattr(processor, "SECONDS_BETWEEN_LOOKS", 0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    others = itertools.cycle([{8: 99.0}, {}])
    monkeypatch.setattr(processor, "seconds_without_core", lambda: {7: next(waits)} | next(others))
    processor._wait_while(busy=True)  # 0.5, 0.4 and 0.36 are busy; ends at 0.34
    assert next(clock) == 5
    processor._wait_while(busy=False)  # from here on: 0.2, then 0.36
    assert next(clock) == 9
    if sys.platform.startswith("linux"):  # only Linux tells
        monkeypatch.undo()
        assert processor.seconds_without_core()[os.getpid()] >= 0


@pytest.mark.parametrize("environment", [{"OMP_WAIT_POLICY": "PASSIVE"}, {"GOMP_SPINCOUNT": "10"}, {}])
def test_nothing_is_watched_where_the_environment_decides(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, set_num_threads: Callable[[int], None]
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    set_num_threads(2 if environment else 1)
    before = threading.active_count()
    assert not processor.watch_cores()
    assert threading.active_count() == before


def test_one_thread_has_no_idle_threads(set_num_threads: Callable[[int], None]) -> None:
    """A user may call torch.set_num_threads(1) after the watching began."""
    set_num_threads(1)
    before = threading.active_count()
    with processor.idle_threads():
        assert threading.active_count() == before
