"""Application of a function to many items by workers of a Ray cluster; results come in the order of the items."""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from cpc.native.allocator import keep_freed_memory
from cpc.on_ray.places import enter, import_ray, reserved

_MOST_ATTEMPTS = 3  # number of attempts at an item, if its worker dies for lack of memory or with its machine

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    start: Callable[[], Callable[[Item], Result]],
    items: Sequence[Item],
    num_workers: int,
    *,
    num_gpus: int = 0,
    name: Callable[[Item], object] = str,
) -> Generator[Result, None, None]:
    """Yield `start()(item)` for every item, in the order of `items`, computed by `num_workers` processes.

    A worker, with one CPU and `num_gpus`, calls `start` once, which loads shared data, then works on one item at a
    time. If a worker dies, another worker repeats its item, so the function must write files atomically. Workers use
    the current folder of this process; all machines of the cluster must see the same files. Messages call an item
    `name(item)`.
    """
    with reserved("num_ray_workers", num_workers, num_gpus=num_gpus) as places:
        ray = import_ray()
        remote = ray.remote(max_restarts=-1, max_task_retries=_MOST_ATTEMPTS - 1)(_Worker)
        workers = [remote.options(**place).remote(start, os.getcwd()) for place in places[: len(items)]]
        idle = list(workers)
        waiting = iter(enumerate(items))
        running: dict[Any, tuple[int, Any]] = {}
        done: dict[int, Any] = {}
        try:
            for expected, item in enumerate(items):
                while expected not in done:
                    for worker, (index, next_item) in zip(idle, waiting):  # noqa: B905
                        running[worker.compute.remote(next_item)] = index, worker
                    idle = []
                    ready, _ = ray.wait(list(running))
                    for result in ready:
                        index, worker = running.pop(result)
                        done[index] = result
                        idle.append(worker)
                yield _value(ray, done.pop(expected), name(item))
        finally:  # otherwise Ray would retry the items, with messages, while the places are released
            for result in running:
                ray.cancel(result)
            for worker in workers:
                ray.kill(worker)


class _Worker:
    """A worker process with the settings of memory and processor that the command line uses."""

    def __init__(self, start: Callable[[], Callable[[Any], Any]], folder: str) -> None:
        self._start, self._folder = start, folder
        self._work: Callable[[Any], Any] | None = None

    def compute(self, item: Any) -> Any:
        if self._work is None:  # not in the constructor, whose exceptions Ray does not report clearly
            enter(self._folder)
            keep_freed_memory()
            if "torch" in sys.modules:
                from cpc.native.processor import prepare_processor

                prepare_processor()
            self._work = self._start()
        return self._work(item)


def _value(ray: Any, result: Any, name: object) -> Any:
    try:
        return ray.get(result)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        reason = f"was it killed, or is memory short? Ray: {' '.join(str(error).split())}"
        raise OSError(f"{name}: its Ray worker ended {_MOST_ATTEMPTS} times; {reason}") from error
