"""A thread pool that keeps the order and bounds what is in flight (decoding and header reads release the GIL)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], num_workers: int) -> Iterator[Result]:
    """Yields `function(item)` for every item, in the order of `items`, computed by `num_workers` threads.

    Unlike `ThreadPoolExecutor.map`, at most `4 * num_workers` items are in flight, so that a slow consumer bounds the
    memory and Ctrl-C or an exception ends the work at once.

    Raises:
        ValueError: if `num_workers` is less than 1.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers={num_workers}, but reading takes at least 1 thread; raise num_workers")
    in_flight: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            for item in items:
                in_flight.append(pool.submit(function, item))
                if len(in_flight) >= 4 * num_workers:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            for future in in_flight:
                future.cancel()
