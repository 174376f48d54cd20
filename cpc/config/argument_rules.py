"""Rules for arguments, written as annotations: choices, the range of a number, a path that can be written, a device.

`checked` makes a function or a constructor check its arguments before it runs, and a dataclass calls `check_fields`.
The same rules serve Python, the command line and configs. Choices are a `Literal`. Every number must be finite and have
at most 64 bits. No text of an option may be empty.
"""

import inspect
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
_UNREAD = (type, Callable)  # annotations whose inner types say nothing about a value


@dataclass(frozen=True)
class Choices:
    """The legal values of an argument: those of a `Literal`."""

    values: tuple[Any, ...]

    def check(self, label: str, value: Any) -> None:
        """Raise ValueError, with the label of the argument, if the value is none of the choices."""
        if value not in self.values:
            legal = ", ".join(map(str, self.values))
            raise ValueError(f"{label}={value!r} {'is not one of' if len(self.values) > 1 else 'must be'} {legal}")


@dataclass(frozen=True)
class Range:
    """A range of numbers from `least` to `most`, including both unless one of them is excluded.

    With `is_open`, `least` is excluded. With `is_below`, `most` is excluded. With `is_odd`, numbers are odd.
    """

    least: int | float = -math.inf
    most: int | float = math.inf
    is_open: bool = False
    is_below: bool = False
    is_odd: bool = False

    def __repr__(self) -> str:
        least = f"above {self.least}" if self.is_open else f"at least {self.least}"
        least = "odd and " * self.is_odd + ("positive" if self.is_open and self.least == 0 else least)
        most = f"{'below' if self.is_below else 'at most'} {self.most}"
        return most if self.least == -math.inf else least if self.most == math.inf else f"{least} and {most}"

    def check(self, label: str, value: Any) -> None:
        """Raise ValueError, with the label of the argument, if the value is outside the range."""
        is_end = (self.is_open and value == self.least) or (self.is_below and value == self.most)
        if is_end or not self.least <= value <= self.most or (self.is_odd and value % 2 == 0):
            raise ValueError(f"{label}={value} must be {self}")


@dataclass(frozen=True)
class Writable:
    """A file or folder (None: either) to which results can be written; missing parent folders can be created.

    With `is_new`, the path must not exist yet.
    """

    is_folder: bool | None
    is_new: bool = False

    def check(self, label: str, value: Any) -> None:
        """Check, before any work is done, that the path can be written: a ValueError, or an OSError with the reason."""
        path = Path(value)
        if self.is_new and path.is_dir():
            raise ValueError(f"{label}={path} already exists: name a new folder, or remove this one")
        if path.exists() and not (path.is_file() if self.is_folder is False else path.is_dir()):
            if self.is_folder is not None or not path.is_file():
                actual = "a folder" if path.is_dir() else "a file" if path.is_file() else "not a regular file"
                wanted = "a folder" if self.is_folder else "a file"
                raise ValueError(f"{label}={path} is {actual}, but must be {wanted}: name another place")
        folder = path if path.is_dir() else next(parent for parent in path.absolute().parents if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reason = f"{label}={path} cannot be written: {error.strerror}; name another place"
            raise OSError(error.errno, reason, str(folder)) from error


def check_device(label: str, value: Any) -> None:
    """Raise ValueError, with the label of the argument, unless `cpc.data.tensors.find_device` understands the value."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(value)):
        raise ValueError(f"{label}={value} must be auto, cpu, cuda or cuda:N")


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Odd = Annotated[int, Range(1, is_odd=True)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Positive = Annotated[float, Range(0, is_open=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Dropout = Annotated[float, Range(0, 1, is_below=True)]
Device = Annotated[str, check_device]
OutFile = Annotated[str | Path, Writable(is_folder=False)]
OutFolder = Annotated[str | Path, Writable(is_folder=True)]
NewFolder = Annotated[str | Path, Writable(is_folder=True, is_new=True)]


def plain(value: Any) -> Any:
    """Return numbers and arrays of numpy as numbers and lists of Python, also inside lists, tuples and dicts."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value.tolist() if type(value).__module__ == "numpy" else value  # importing numpy would slow `cpc --help`


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function check its arguments before it runs.

    The message of a constructor names its class, since the options of a part of a model have longer names in configs.

    Example:
        >>> @checked
        ... def play(num_episodes: Count) -> None: ...
        >>> play(0)
        Traceback (most recent call last):
        ValueError: `num_episodes`=0 must be at least 1
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        values = signature.bind(*args, **kwargs).arguments
        if function.__name__ == "__init__":
            _check(function, values, f"{type(args[0]).__name__}: {{}}")
        else:
            check_values(function, values)
        return function(*args, **kwargs)

    return call


def check_fields(instance: Any, prefix: str = "") -> None:
    """Check the fields of a dataclass, whose names have a prefix in messages; defaults are always valid."""
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    changed = {field.name: values[field.name] for field in fields(instance) if values[field.name] is not field.default}
    check_values(type(instance), changed, prefix)


def check_values(annotated: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Check values by name; names have a prefix in messages.

    `annotated` is a function or class with annotations, or a mapping of names to types.
    """
    _check(annotated, values, f"`{prefix}{{}}`")


def _check(annotated: Any, values: Mapping[str, Any], label: str) -> None:
    annotations = annotated if isinstance(annotated, Mapping) else _annotations(annotated)
    for name, value in values.items():
        rules, label_of_value = tuple(_rules(annotations.get(name))), label.format(name)
        if type(value).__module__ == "numpy":
            value = value.tolist() if rules or not getattr(value, "ndim", 1) else None  # arrays without rules are data
        if isinstance(value, str) and not value.strip():
            raise ValueError(f"{label_of_value} is empty: give a value, or leave it out")
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{label_of_value}={item} must be a finite number")
            for kind, rule in rules if item is not None else ():
                legal = {int: Integral, float: Real}.get(kind)
                if legal is not None and (isinstance(item, bool) or not isinstance(item, legal)):
                    raise ValueError(f"{label_of_value}={item!r} must be a {'whole ' * (kind is int)}number")
                getattr(rule, "check", rule)(label_of_value, item)
            if isinstance(item, int) and abs(item) >= 2**63:
                raise ValueError(f"{label_of_value}={item} is too large: give at most {2**63 - 1}")


_annotations = cache(partial(get_type_hints, include_extras=True))


def _rules(kind: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rules within an annotation, each with the type that it annotates."""
    for rule in getattr(kind, "__metadata__", ()):
        if rule is check_device or isinstance(rule, Choices | Range | Writable):
            yield kind.__origin__, rule
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield None, Choices(members)
    if origin is Literal or origin in _UNREAD or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return
    has_others = any(get_origin(member) is not Literal and member not in (NoneType, ...) for member in members)
    for member in members:
        if not (has_others and get_origin(member) is Literal):  # other values are legal too
            yield from _rules(member)
