"""A thread pool that keeps the order and limits the pending items. Decoding and reading of headers release the GIL."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from cpc.config.argument_rules import Count, checked

Item = TypeVar("Item")
Result = TypeVar("Result")


@checked
def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], num_workers: Count) -> Iterator[Result]:
    """Yield `function(item)` for every item in order, by `num_workers` threads, of which few results are pending."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 4 * num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
