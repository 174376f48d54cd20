"""Threads that carry their parts of a batch through many operations and wait for each other only at the end.

torch shares the work of every single operation among its threads. Each operation ends at a barrier, where threads spin
until the last one arrives; beside a busy process the last one waits for a core, hundreds of times a step. Parts that
run through whole networks by themselves wait once, and without spinning.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def shares(num: int, most: int | None = None) -> list[slice]:
    """Cut `num` items into parts of equal size, give or take one: as many as torch has threads here, or at most `most`.

    There is at least one part, and an empty one only if `num` is 0. Within a part torch has one thread, so that parts
    are not cut again.
    """
    num_parts = max(1, min(num if most is None else min(num, most), torch.get_num_threads()))
    ends = [num * part // num_parts for part in range(num_parts + 1)]
    return list(itertools.starmap(slice, itertools.pairwise(ends)))


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
    pool = ThreadPoolExecutor(num_threads, "cpc-part", initializer=_use_one_thread)
    has_started = Barrier(num_threads)
    wait([pool.submit(has_started.wait) for _ in range(num_threads)])
    torch.set_num_threads(num_threads)  # of this thread, and of those that others start: they take the last one set
    return pool


def _use_one_thread() -> None:
    torch.get_num_threads()  # the first question gives a thread the process's number, which would undo the next line
    torch.set_num_threads(1)  # of this thread
