"""Places in a Ray cluster: all are reserved at once or an error is raised. No call waits for missing machines."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpc.config.argument_rules import Range
from cpc.config.extras import import_extra

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
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): check `address` or RAY_ADDRESS"
        ) from error


def _format(resources: Mapping[str, float], required: Mapping[str, float]) -> str:
    counts = [(resources.get(resource, 0), resource) for resource in required if required[resource]]
    return " and ".join(f"{count:g} {resource}{'' if count == 1 else 's'}" for count, resource in counts)
