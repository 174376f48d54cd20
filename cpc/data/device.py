"""The device that computes: found by its name, and reached without making the host wait."""

from typing import Any

import torch
from torch import Tensor

from cpc.config.argument_rules import DeviceName
from cpc.data.store.contents import say


def find_device(name: str) -> str:
    """Return the device of a name in the notation of torch; if it is a GPU, print a line with its name once.

    The name is `auto` (the GPU if there is one, otherwise the CPU), `cpu`, `cuda` or `cuda:N`.
    """
    DeviceName().check("`device`", name)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ValueError(f"`device`={name} cannot be used: {reason}; `cpc doctor` lists the devices") from error
    if device != "cpu":
        say(f"computing on {describe_device(device)}")
    return device


def describe_device(device: str) -> str:
    """Return a device for people, such as `cuda (NVIDIA H200)`."""
    return device if device == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})"


def move(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; a copy to a GPU goes through pinned memory, so that the host does not wait."""
    is_upload = x.device.type == "cpu" and device.type == "cuda"  # `cuda` and `cuda:0` differ, and only a CPU pins
    return (x.pin_memory() if is_upload else x).to(device, non_blocking=True)


def moved(value: Any, device: torch.device) -> Any:
    """Copy the tensors of a value, also those inside of tuples, to a device; other values stay."""
    if isinstance(value, tuple):
        parts = [moved(each, device) for each in value]
        return getattr(type(value), "_make", tuple)(parts)
    return move(value, device) if isinstance(value, Tensor) else value
