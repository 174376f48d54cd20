"""Places in a Ray cluster, reserved all together or refused: nothing waits for machines that will not come."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cpc.config.extras import install_hint

_PATIENCE_SECONDS = 30.0  # for places that others are just leaving
_SETTINGS = {  # of Ray, read when it is imported; the user's own count
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else, under `uv run`, each process of Ray packs the folder and syncs anew
    "RAY_USAGE_STATS_ENABLED": "0",
}


def import_ray() -> Any:
    """The package `ray`.

    Raises:
        ValueError: if it is not installed.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"a Ray cluster needs ray: {install_hint('ray')}") from error
    return ray


@contextmanager
def reserved(
    option: str, num_places: int, *, num_cpus: int = 1, num_gpus: int = 0, address: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Reserve places for actors, on as few machines as hold them, and give them back at the end.

    Args:
        option: what the user calls `num_places`, for messages.
        num_places: how many.
        num_cpus: of each place.
        num_gpus: of each place.
        address: of the cluster; RAY_ADDRESS or the one that runs on this machine unless given. Without any, one is
            started here and ended with the places.

    Yields:
        Of each place, the options of an actor that lives there.

    Raises:
        ValueError: if ray is missing or the cluster does not have as much.
        ConnectionError: if there is no cluster at the address.
    """
    if num_places < 1:
        raise ValueError(f"`{option}`={num_places} must be at least 1")
    ray = import_ray()
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    is_ours = not ray.is_initialized()
    if is_ours:
        _check_address(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        of_each = {"CPU": num_cpus, "GPU": num_gpus}
        asked = {kind: number * num_places for kind, number in of_each.items()}
        needs = f"`{option}`={num_places} needs {_amount(asked, asked)}, but the Ray cluster has"
        advice = "ask for less, or name another cluster in RAY_ADDRESS"
        there = ray.cluster_resources()
        if any(number > there.get(kind, 0) for kind, number in asked.items()):
            raise ValueError(f"{needs} {_amount(there, asked)}: {advice}")
        group = placement_group([{kind: number for kind, number in of_each.items() if number}] * num_places, "PACK")
        try:
            if not group.wait(_PATIENCE_SECONDS):
                free = _amount(ray.available_resources(), asked)
                raise ValueError(f"{needs} {free} free, and {_amount(of_each, asked)} must be on one machine: {advice}")
            yield [
                {
                    "num_cpus": num_cpus,
                    "num_gpus": num_gpus,
                    "scheduling_strategy": PlacementGroupSchedulingStrategy(group, place),
                }
                for place in range(num_places)
            ]
        finally:
            remove_placement_group(group)
    finally:
        if is_ours:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Ray itself looks for a quarter of an hour for a cluster that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # `auto`, `local`, or a mistake that Ray names
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): check `address` or RAY_ADDRESS"
        ) from error


def _amount(resources: Mapping[str, float], asked: Mapping[str, float]) -> str:
    counts = [(resources.get(kind, 0), kind) for kind in asked if asked[kind]]
    return " and ".join(f"{count:g} {kind}{'' if count == 1 else 's'}" for count, kind in counts)
