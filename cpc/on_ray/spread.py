"""One function over many items, by workers of a Ray cluster: the results of a plain `map`, in its order."""

import os
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cpc.native.allocator import keep_freed_memory
from cpc.on_ray.places import import_ray, reserved

_MOST_ATTEMPTS = 3  # at an item whose worker ends, by memory or by a machine that is lost

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
    """Yields `start()(item)` for every item, in the order of `items`, computed by `num_workers` processes.

    A worker calls `start` once and takes an item when it is done with the one before. What it computes may be computed
    again elsewhere when it ends in between: writing files must be atomic. Its current folder is that of this process,
    so that paths mean the same; all machines of the cluster must see the same files.

    Args:
        start: called by each worker, for what it needs for every item, such as a model.
        items: what `start()` takes.
        num_workers: CPUs of the cluster.
        num_gpus: of each worker.
        name: of an item, for messages.

    Raises:
        ValueError: as `reserved`.
        OSError: if a worker ends three times at the same item; it is named.
        Exception: whatever `start()` raises, at the first item that it raises for.
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
                    for worker, (number, next_item) in zip(idle, waiting):  # noqa: B905
                        running[worker.of.remote(next_item)] = number, worker
                    idle = []
                    ready, _ = ray.wait(list(running))
                    for result in ready:
                        number, worker = running.pop(result)
                        done[number] = result
                        idle.append(worker)
                yield _value(ray, done.pop(expected), name(item))
        finally:  # else Ray tries once more, and says so, while it takes the places from the workers
            for result in running:
                ray.cancel(result)
            for worker in workers:
                ray.kill(worker)


class _Worker:
    """A process that is set up as those of the command line are."""

    def __init__(self, start: Callable[[], Callable[[Any], Any]], folder: str) -> None:
        self._start, self._folder = start, folder
        self._work: Callable[[Any], Any] | None = None

    def of(self, item: Any) -> Any:
        if self._work is None:  # not before: Ray has no clear words for what a constructor raises
            if not Path(self._folder).is_dir():
                raise ValueError(
                    f"{socket.gethostname()} has no folder {self._folder}: all machines of a Ray cluster must see the "
                    "same files in the same places"
                )
            os.chdir(self._folder)
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
        said = " ".join(str(error).split())
        raise OSError(
            f"{name}: its Ray worker ended {_MOST_ATTEMPTS} times; was it killed, or is memory short? Ray says: {said}"
        ) from error
