"""The device that computes, and checks of tensors that a caller passes, with uniform error messages.

`check_tensor` and `check_precision` read only dtypes and shapes. The other checks of tensors read values, so the caller
waits for the GPU.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpc.config.argument_rules import check_device, plain
from cpc.data.store.contents import say


def find_device(name: str) -> str:
    """Return the device of a name in the notation of torch; if it is a GPU, print a line with its name once.

    The name is `auto` (the GPU if there is one, otherwise the CPU), `cpu`, `cuda` or `cuda:N`.
    """
    check_device("`device`", name)
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


def fetch(x: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor to the host; the function that is returned waits until the copy is complete.

    It does not wait for work that was launched after this call.
    """
    if not x.is_cuda:
        return lambda: x
    copy = x.to("cpu", non_blocking=True)  # torch pins its memory
    arrived = torch.cuda.current_stream(x.device).record_event()

    def wait() -> Tensor:
        arrived.synchronize()
        return copy

    return wait


def moved(value: Any, device: torch.device) -> Any:
    """Copy the tensors of a value, also those inside of tuples, to a device; other values stay."""
    if isinstance(value, tuple):
        parts = [moved(each, device) for each in value]
        return getattr(type(value), "_make", tuple)(parts)
    return move(value, device) if isinstance(value, Tensor) else value


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# For each kind of values: a test of the dtype, and the conversion from another kind.
_KINDS: dict[str, tuple[Callable[[torch.dtype], bool], str]] = {
    "floats": (lambda dtype: dtype.is_floating_point, "{}.float()"),
    "integers": (lambda dtype: dtype in _INTEGERS, "{}.long()"),
    "booleans": (lambda dtype: dtype == torch.bool, "{} != 0"),
    "numbers": (lambda dtype: dtype != torch.bool, "{}.float()"),
}


def check_tensor(name: str, value: Any, kind: str, shape: Sequence[int | str]) -> None:
    """Raise a ValueError if an argument is not a tensor of this kind and shape. Values are not read.

    `kind` is `floats`, `integers`, `booleans`, or `numbers`, which may be floats or integers. `shape` has a size for
    each axis, or a letter for an axis of any size.
    """
    is_kind, conversion = _KINDS[kind]
    required = f"a tensor of {kind} of the shape [{', '.join(map(str, shape))}]"
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}; it must be {required}: pass torch.as_tensor({name})")
    has_shape = value.ndim == len(shape) and all(
        isinstance(size, str) or size == actual for size, actual in zip(shape, value.shape, strict=True)
    )
    if has_shape and is_kind(value.dtype):
        return
    remedy = f": pass {conversion.format(name)} if its values mean that" if has_shape else ""
    raise ValueError(f"{name} is {value.dtype} of the shape {list(value.shape)}; it must be {required}{remedy}")


def check_indices(name: str, value: Any, shape: Sequence[int | str], num: int, meaning: str) -> None:
    """Raise the errors of `check_tensor` and `check_range` for indices of `num` things; waits for the GPU."""
    check_tensor(name, value, "integers", shape)
    check_range(name, value, 0, num, meaning)


def check_range(name: str, value: Tensor, lowest: int, num: int, meaning: str) -> None:
    """Raise a ValueError on integers outside of `lowest` to `num - 1`; waits for the GPU.

    The integers are indices of `num` things, whose plural is `meaning`. `lowest` is -1 if that means a missing thing.
    """
    if value.numel() == 0:
        return
    least, most = (int(end) for end in value.aminmax())
    if least < lowest or most >= num:
        legal = f"0 to {num - 1}" + " (-1: none)" * (lowest < 0)
        raise ValueError(f"{name} run from {least} to {most}, but the {num} {meaning} have the numbers {legal}")


def check_finite(name: str, value: Tensor, least: int | float = -math.inf) -> None:
    """Raise a ValueError on values that are infinite, NaN, or below `least`; waits for the GPU."""
    is_legal = value.isfinite() if least == -math.inf else value.isfinite() & (value >= least)
    if not bool(is_legal.all()):
        floor = "" if least == -math.inf else f" and at least {least:g}"
        raise ValueError(f"{name} must be finite{floor} everywhere; it runs from {value.min():g} to {value.max():g}")


def check_count(name: str, value: Any, least: int) -> None:
    """Raise a ValueError if an argument is not a whole number of at least `least`."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


def check_precision(**tensors: Tensor) -> None:
    """Raise a ValueError if float64 is mixed with other dtypes: it would be rounded, or products would be slow."""
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if torch.float64 in dtypes and len(dtypes) > 1:
        named = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items())
        raise ValueError(f"{named}: float64 cannot be combined with other dtypes; convert it with .float()")


class FixedDtype(nn.Module):
    """A module whose tensors move to another device with the model, but keep their dtype when the model is cast.

    Without it `model.bfloat16()` would round the tables of a sampler: the proposal that it samples from would no longer
    be the proposal whose log probabilities it returns.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FixedDtype":
        def move_only(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            return changed if changed.dtype == tensor.dtype else tensor.to(changed.device)

        return super()._apply(move_only, recurse)
