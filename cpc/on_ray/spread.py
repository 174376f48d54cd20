"""Places in a Ray cluster, reserved all at once or not at all, and the work of many items on them, in their order."""

import os
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cpc.config.argument_rules import Range
from cpc.config.extras import import_extra
from cpc.native.allocator import keep_freed_memory

_WAIT_SECONDS = 30.0  # time to wait for places: another job may be about to end


def import_ray() -> Any:
    """Import the package `ray`, which then reads its settings; the user's environment takes precedence."""
    # Otherwise each Ray process under `uv run` packs the folder and syncs again.
    for name in ("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    return import_extra("ray", "ray", "a Ray cluster needs ray")


def enter(folder: str) -> None:
    """Make the user's current folder that of this process, which may be on another machine."""
    if not Path(folder).is_dir():
        raise ValueError(f"{socket.gethostname()} has no folder {folder}: all machines must see the same files")
    os.chdir(folder)


@contextmanager
def reserved(
    option: str, num_places: int, *, num_cpus: int = 1, num_gpus: int = 0, address: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Reserve places for actors, on as few machines as possible, and release them at the end.

    Without an address, the cluster is that of RAY_ADDRESS or on this machine. If there is no cluster, one is started
    here, and ended when the places are released. `option` is the user's option for `num_places`, for messages.

    Yields:
        For each place, the options of an actor that runs there.
    """
    Range(1).check(f"`{option}`", num_places)
    ray = import_ray()
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    is_ours = not ray.is_initialized()
    if is_ours:
        _check_address(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        bundle = {"CPU": num_cpus, "GPU": num_gpus}
        required = {resource: num * num_places for resource, num in bundle.items()}
        needs = f"`{option}`={num_places} needs {_format(required, required)}, but the Ray cluster has"
        existing = ray.cluster_resources()
        if any(num > existing.get(resource, 0) for resource, num in required.items()):
            raise ValueError(f"{needs} {_format(existing, required)}")
        group = placement_group([{resource: num for resource, num in bundle.items() if num}] * num_places, "PACK")
        try:
            if not group.wait(_WAIT_SECONDS):
                free = _format(ray.available_resources(), required)
                raise ValueError(f"{needs} {free} free, and {_format(bundle, required)} must be on one machine")
            resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}
            strategies = (PlacementGroupSchedulingStrategy(group, index) for index in range(num_places))
            yield [resources | {"scheduling_strategy": strategy} for strategy in strategies]
        finally:
            remove_placement_group(group)
    finally:
        if is_ours:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Raise an error if no cluster answers at an address; Ray would search for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # `auto`, `local`, or a mistake that Ray reports
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_WAIT_SECONDS).close()
    except OSError as error:
        reason = f"({error.strerror or error}): check `address` or RAY_ADDRESS"
        raise ConnectionError(f"no Ray cluster answers at {address} {reason}") from error


def _format(resources: Mapping[str, float], required: Mapping[str, float]) -> str:
    counts = [(resources.get(resource, 0), resource) for resource in required if required[resource]]
    return " and ".join(f"{count:g} {resource}{'' if count == 1 else 's'}" for count, resource in counts)


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
