"""For an exact resume: states of random generators, and differences between saved and current settings."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators as tensors and plain values, which a checkpoint can hold."""
    kind, key, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, key.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to these states."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states.get("cuda") is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def differences(saved: Any, current: Any, name: str = "model") -> Iterator[str]:
    """Yield the differences of two descriptions as text; None and an empty container are equal."""
    if all(value is None or (isinstance(value, dict | list | tuple) and not value) for value in (saved, current)):
        return
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted(saved.keys() | current.keys()):
            inner = name if key == "init_args" else f"{name}.{key}".lstrip(".")
            yield from differences(saved.get(key), current.get(key), inner)
    elif tuple(saved) != tuple(current or ()) if isinstance(saved, tuple | list) else saved != current:
        yield f"{name} is {saved!r} in the checkpoint, {current!r} now"
