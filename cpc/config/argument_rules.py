"""Rules for arguments, written as annotations: the range of a number, a path that can be written, a device.

`checked` makes a function check its arguments before it runs, and a dataclass calls `check_fields`; the same rules
serve Python, the command line and configs. Every number must be finite, and no text may be empty.
"""

import inspect
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Range:
    """A range of numbers from `least` to `most`, including both. With `is_open`, `least` must be 0 and is excluded."""

    least: int | float = -math.inf
    most: int | float = math.inf
    is_open: bool = False

    def __repr__(self) -> str:
        least = "positive" if self.is_open else f"at least {self.least}"
        return least if self.most == math.inf else f"{least} and at most {self.most}"

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError, with the name of the argument, if the value is outside the range."""
        if not self.least <= value <= self.most or (self.is_open and value == self.least):
            raise ValueError(f"`{name}`={value} must be {self}")


@dataclass(frozen=True)
class Writable:
    """A file or folder (None: either) to which results can be written; missing parent folders can be created."""

    is_folder: bool | None

    def check(self, name: str, value: Any) -> None:
        """Check, before any work is done, that the path can be written.

        Raises:
            ValueError: if the path is a folder instead of a file, or a file instead of a folder.
            OSError: if the system does not allow it; the message has the reason and the folder.
        """
        path = Path(value)
        if path.exists() and not (path.is_file() if self.is_folder is False else path.is_dir()):
            if self.is_folder is not None or not path.is_file():
                actual = "a folder" if path.is_dir() else "a file" if path.is_file() else "not a regular file"
                wanted = "a folder" if self.is_folder else "a file"
                raise ValueError(f"`{name}`={path} is {actual}, but must be {wanted}: name another place")
        folder = path if path.is_dir() else next(parent for parent in path.absolute().parents if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reason = f"`{name}`={path} cannot be written: {error.strerror}; name another place"
            raise OSError(error.errno, reason, str(folder)) from error


@dataclass(frozen=True)
class DeviceName:
    """A name that `cpc.data.device.find_device` understands."""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError, with the name of the argument, if the value is not the name of a device."""
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(value)):
            raise ValueError(f"`{name}`={value} must be auto, cpu, cuda or cuda:N")


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Positive = Annotated[float, Range(0, is_open=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Device = Annotated[str, DeviceName()]
OutFile = Annotated[str | Path, Writable(is_folder=False)]
OutFolder = Annotated[str | Path, Writable(is_folder=True)]


def plain(value: Any) -> Any:
    """Return numbers and arrays of numpy as numbers and lists of Python, also inside lists, tuples and dicts."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value.tolist() if type(value).__module__ == "numpy" else value  # importing numpy would slow `cpc --help`


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function check its arguments before it runs.

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
        check_values(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def check_fields(instance: Any, prefix: str = "") -> None:
    """Check the fields of a dataclass; defaults are always valid.

    Args:
        instance: instance of the dataclass.
        prefix: prefix of names in messages, for fields that belong to a section of a config.

    Raises:
        ValueError: if a field is invalid. The message names the first invalid field.
    """
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    changed = {field.name: values[field.name] for field in fields(instance) if values[field.name] is not field.default}
    check_values(type(instance), changed, prefix)


def check_values(annotated: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Check values against the annotations of a function or class.

    Args:
        annotated: the function or class.
        values: values by name.
        prefix: prefix of names in messages.

    Raises:
        ValueError: if a value is invalid. The message names the first invalid value.
        OSError: if a file or folder for results cannot be written.
    """
    annotations = _annotations(annotated)
    for name, value in values.items():
        rules = tuple(_rules(annotations.get(name)))
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, str) and not item.strip():
                raise ValueError(f"`{prefix}{name}` is empty: give a value, or leave it out")
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"`{prefix}{name}`={item} must be a finite number")
            for kind, rule in rules if item is not None else ():
                legal = {int: Integral, float: Real}.get(kind)
                if legal is not None and (isinstance(item, bool) or not isinstance(item, legal)):
                    raise ValueError(f"`{prefix}{name}`={item!r} must be a {'whole ' * (kind is int)}number")
                rule.check(prefix + name, item)


@cache
def _annotations(annotated: Any) -> dict[str, Any]:
    return get_type_hints(annotated, include_extras=True)


def _rules(kind: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rules within an annotation, each with the type that it annotates."""
    for rule in getattr(kind, "__metadata__", ()):
        if isinstance(rule, Range | Writable | DeviceName):
            yield kind.__origin__, rule
    for member in get_args(kind):
        yield from _rules(member)
