"""Settings of this process that make a CPU faster.

There are four settings. One is that of the allocator (`cpc.native.allocator`). Denormal numbers become zeros. On AMD
processors float32 matrix products use oneDNN, which is twice as fast as MKL there. Threads spin or sleep while they
wait, depending on the load of the machine.
"""

import atexit
import functools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

_matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def prepare_processor() -> None:
    """Make all settings; call this function before the first matrix product."""
    watch_cores()
    torch.set_flush_denormal(True)
    if has_slow_float32_products() and onednn_products_are_exact():
        _matmul.fp32_precision = "bf16"


def has_slow_float32_products() -> bool:
    """Return whether torch multiplies float32 matrices with MKL on an AMD processor."""
    return torch.backends.mkl.is_available() and "AMD" in str(torch.cpu.get_capabilities().get("cpu_name", ""))


@functools.cache
def onednn_products_are_exact() -> bool:
    """Return whether oneDNN multiplies float32 matrices in float32 on this processor.

    torch uses oneDNN only if bfloat16 is allowed inside the product. A processor without matrix units for bfloat16
    (AMX) still computes in float32. This function tests it by a product of numbers that bfloat16 cannot represent.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(512, 256, generator=generator), torch.rand(256, 512, generator=generator)
    before = _matmul.fp32_precision
    _matmul.fp32_precision = "bf16"
    try:
        product = a @ b
    finally:
        _matmul.fp32_precision = before
    error = (product - a.double() @ b.double()).abs().max() / product.max()
    return bool(error < 1e-6)  # with rounding to bfloat16 the error would be 1e-4


# Seconds per second that all threads together wait for a core. With another process that is busy half of the time the
# value is 0.28, and spinning is still faster. With a process that is always busy the value is 0.65 for spinning threads
# and 0.43 for sleeping threads (docs/decisions/pretraining.md).
SHARE_OF_BUSY_CORES = 0.35
SECONDS_BETWEEN_LOOKS = 0.5

_started = threading.Lock()  # held for ever by the first watching thread of this process
_exiting = threading.Event()


def watch_cores() -> bool:
    """Start a thread that checks twice a second whether threads wait for cores, and lets them spin or sleep.

    With GNU's OpenMP a thread that has finished its part of an operation spins until the last thread arrives, for up to
    300,000 turns: fastest on a quiet machine, but on a busy one it may spin on the core that the last thread needs. It
    spins for only 100 turns while a process has more OpenMP threads than cores (GOMP_SPINCOUNT in its manual). So idle
    threads are added while threads wait for cores. The threads of an operation, and so its result, do not change.

    Return False, without a thread, if the environment has `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT`, torch has one thread,
    or the system does not measure how long threads wait for a core (Linux does).
    """
    is_decided = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
    if is_decided or torch.get_num_threads() == 1 or not seconds_without_core():
        return False
    if _started.acquire(blocking=False):
        watching = threading.Thread(target=_watch, name="cpc-watch-cores", daemon=True)
        watching.start()
        atexit.register(_end, watching)
    return True


def _end(watching: threading.Thread) -> None:
    """End the watching thread before Python exits, since Python aborts if a thread is inside an operation of torch."""
    if watching.is_alive():  # a forked process has no watching thread
        _exiting.set()
        watching.join()


def _watch() -> None:
    while not _exiting.is_set():
        _wait_while(busy=False)
        with idle_threads():
            _wait_while(busy=True)


def _wait_while(busy: bool) -> None:
    """Return when the cores are no longer busy, or with `busy=False` no longer quiet; also when Python exits."""
    before, start = seconds_without_core(), time.monotonic()
    while not _exiting.wait(SECONDS_BETWEEN_LOOKS):
        after, end = seconds_without_core(), time.monotonic()
        waited = sum(seconds - before[thread] for thread, seconds in after.items() if thread in before)
        if (waited / (end - start) > SHARE_OF_BUSY_CORES) != busy:
            return
        before, start = after, end


def seconds_without_core() -> dict[int, float]:
    """Return the seconds that each thread of this process has waited for a core; empty if they are not counted."""
    waited = {}
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # the thread may have ended
                waited[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return waited


@contextmanager
def idle_threads() -> Iterator[None]:
    """Add idle OpenMP threads until there are more than cores; add none if torch uses one thread."""
    num_threads, num_cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if num_threads == 1:  # set after the watching began
        yield
        return
    num_teams = max(num_cores - num_threads, 0) // (num_threads - 1) + 1  # a team adds all its threads except the first
    formed, done = threading.Barrier(num_teams + 1), threading.Event()

    def team() -> None:
        torch.zeros(2**17).neg_()  # large enough that torch uses several threads, which form the team
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
