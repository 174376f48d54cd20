"""How torch's threads wait for each other: spinning on a quiet machine, asleep beside other work.

torch shares each operation among its threads. With GNU's OpenMP a thread that is done spins until the last one has
arrived, for up to 300,000 turns: nothing is faster on a quiet machine. Beside another busy process it spins on the core
that the last one waits for. GNU's OpenMP spins for 100 turns only while a process has more of its threads than cores
(GOMP_SPINCOUNT in its manual). So while threads of this process wait for cores, idle threads are added, and end after
that. Operations are shared among as many threads as before, so no number changes.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

# Seconds that all threads together wait for a core, in each second. Beside a process that is busy half of the time they
# are 0.28, and spinning is still faster. Beside one that is always busy they are 0.65 for spinning threads and 0.43
# for sleeping ones (docs/decisions/pretraining.md).
SHARE_OF_BUSY_CORES = 0.35
SECONDS_BETWEEN_LOOKS = 0.5

_started = threading.Lock()  # held for ever by the first watch of this process
_sleeping = threading.Event()


def watch_cores() -> bool:
    """Look twice a second whether threads of this process wait for cores, and let them spin or sleep accordingly.

    Returns:
        Whether a thread watches the cores. It does not if the environment has `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT`,
        if torch has one thread, or if the system does not count how long threads wait for a core (Linux does).
    """
    is_decided = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
    if is_decided or torch.get_num_threads() == 1 or not seconds_without_core():
        return False
    if _started.acquire(blocking=False):
        threading.Thread(target=_watch, name="cpc-watch-cores", daemon=True).start()
    return True


def threads_sleep() -> bool:
    """Whether threads that wait are asleep at present, rather than spinning."""
    return _sleeping.is_set()


def _watch() -> None:
    while True:
        _wait_while(busy=False)
        with idle_threads():
            _sleeping.set()
            _wait_while(busy=True)
        _sleeping.clear()


def _wait_while(busy: bool) -> None:
    """Return as soon as cores are no longer as `busy` says."""
    before, start = seconds_without_core(), time.monotonic()
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        after, end = seconds_without_core(), time.monotonic()
        waited = sum(seconds - before[thread] for thread, seconds in after.items() if thread in before)
        if (waited / (end - start) > SHARE_OF_BUSY_CORES) != busy:
            return
        before, start = after, end


def seconds_without_core() -> dict[int, float]:
    """How long each thread of this process could run and had no core, so far; empty where the system does not tell."""
    found = {}
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
                found[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


@contextmanager
def idle_threads() -> Iterator[None]:
    """Let OpenMP have more threads in this process than there are cores: teams of their own that do nothing."""
    num_threads, num_cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    num_teams = max(num_cores - num_threads, 0) // (num_threads - 1) + 1  # a team adds all of its threads but the first
    formed, done = threading.Barrier(num_teams + 1), threading.Event()

    def team() -> None:
        torch.zeros(2**17).neg_()  # large enough to be shared among threads, which form the team
        formed.wait()
        done.wait()

    leaders = [threading.Thread(target=team, name="cpc-idle", daemon=True) for _ in range(num_teams)]
    for leader in leaders:
        leader.start()
    formed.wait()
    try:
        yield
    finally:
        done.set()
        for leader in leaders:
            leader.join()
