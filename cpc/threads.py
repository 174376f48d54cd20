"""Threads that carry their parts of a batch through many operations and wait for each other only at the end.

torch shares the work of every single operation among its threads. Each operation ends at a barrier, where threads spin
until the last one arrives; beside a busy process the last one waits for a core, hundreds of times a step. Parts that
run through whole networks by themselves wait once, and without spinning.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def shares(num: int) -> list[slice]:
    """Cut `num` items into a part for each thread that torch may use here; none is empty unless `num` is 0.

    A part itself is never cut again: the threads of `run_parts` have one thread each.
    """
    num_parts = max(1, min(num, torch.get_num_threads()))
    ends = [num * part // num_parts for part in range(num_parts + 1)]
    return [slice(start, end) for start, end in zip(ends[:-1], ends[1:], strict=True)]


def run_parts(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Call `function` on every part at the same time, each on a thread of its own, and return all results.

    Operations within a part use one thread. Gradient mode and autocast are those of the caller. Results do not depend
    on how the threads are scheduled, unless `function` draws from torch's global generator.

    Raises:
        Exception: that of the first part that failed, after all parts have ended.
    """
    if len(parts) == 1:
        return [function(parts[0])]
    has_grad, has_autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")

    def call(part: Part) -> Result:
        autocast = torch.autocast("cpu", dtype, enabled=has_autocast, cache_enabled=False)  # the cache is shared
        with torch.set_grad_enabled(has_grad), autocast:
            return function(part)

    pool = _pool(torch.get_num_threads())
    futures = [pool.submit(call, part) for part in parts]
    wait(futures)
    return [future.result() for future in futures]


@functools.cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """Start the threads; torch's number of threads belongs to the thread that sets it."""
    pool = ThreadPoolExecutor(num_threads, "cpc-part", initializer=torch.set_num_threads, initargs=(1,))
    has_started = Barrier(num_threads)
    wait([pool.submit(has_started.wait) for _ in range(num_threads)])
    torch.set_num_threads(num_threads)  # for threads that others start: they take the number that was set last
    return pool
