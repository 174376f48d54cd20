"""Rules for arguments, written as annotations: the range of a number, and the place that results are written to.

A function that is `checked` refuses other values before it does anything, and a dataclass does so by `check_fields`:
one rule for Python, the command line and configs. Every number must be finite, and no text may be empty.
"""

import inspect
import math
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
    """The numbers from `least` to `most`, both included; `is_open` leaves `least` out, which is then 0."""

    least: int | float = -math.inf
    most: int | float = math.inf
    is_open: bool = False

    def __repr__(self) -> str:
        least = "positive" if self.is_open else f"at least {self.least}"
        return least if self.most == math.inf else f"{least} and at most {self.most}"

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside.

        Raises:
            ValueError: naming the argument.
        """
        if not self.least <= value <= self.most or (self.is_open and value == self.least):
            raise ValueError(f"`{name}`={value} must be {self}")


@dataclass(frozen=True)
class Writable:
    """A file or a folder (None: either) that results can be written to; what is missing of its path can be made."""

    is_folder: bool | None

    def check(self, name: str, value: Any) -> None:
        """Refuse a place that cannot be written to: found before the work, not after it.

        Raises:
            ValueError: if there is something of another kind.
            OSError: if the system refuses; its reason and the folder are named.
        """
        path = Path(value)
        if path.exists() and not (path.is_file() if self.is_folder is False else path.is_dir()):
            if self.is_folder is not None or not path.is_file():
                found = "a folder" if path.is_dir() else "a file" if path.is_file() else "no regular file"
                wanted = "a folder" if self.is_folder else "a file"
                raise ValueError(f"`{name}`={path} is {found}, but {wanted} is written here: name another place")
        folder = path if path.is_dir() else next(each for each in path.absolute().parents if each.exists())
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reason = f"`{name}`={path} cannot be written: {error.strerror}; name another place"
            raise OSError(error.errno, reason, str(folder)) from error


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Positive = Annotated[float, Range(0, is_open=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
OutFile = Annotated[str | Path, Writable(is_folder=False)]
OutFolder = Annotated[str | Path, Writable(is_folder=True)]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse illegal arguments of a function before it is called.

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
    """Refuse illegal fields of a dataclass; its own defaults are legal.

    Args:
        instance: of the dataclass.
        prefix: of the names in messages, where fields belong to a section of a config.

    Raises:
        ValueError: naming the first.
    """
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    given = {field.name: values[field.name] for field in fields(instance) if values[field.name] is not field.default}
    check_values(type(instance), given, prefix)


def check_values(annotated: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse illegal values of what a function or class annotates.

    Args:
        annotated: the function or class.
        values: by name.
        prefix: of the names in messages.

    Raises:
        ValueError: naming the first.
        OSError: if a place for results cannot be written to.
    """
    kinds = _kinds(annotated)
    for name, value in values.items():
        rules = tuple(_rules(kinds.get(name)))
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str) and not each.strip():
                raise ValueError(f"`{prefix}{name}` is empty: give a value, or leave it out")
            if isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"`{prefix}{name}`={each} must be a finite number")
            for kind, rule in rules if each is not None else ():
                legal = {int: Integral, float: Real}.get(kind)
                if legal is not None and (isinstance(each, bool) or not isinstance(each, legal)):
                    raise ValueError(f"`{prefix}{name}`={each!r} must be a {'whole ' * (kind is int)}number")
                rule.check(prefix + name, each)


@cache
def _kinds(annotated: Any) -> dict[str, Any]:
    return get_type_hints(annotated, include_extras=True)


def _rules(kind: Any) -> Iterator[tuple[Any, Any]]:
    """The rules within an annotation, each with the type of what it is about."""
    for rule in getattr(kind, "__metadata__", ()):
        if isinstance(rule, Range | Writable):
            yield kind.__origin__, rule
    for member in get_args(kind):
        yield from _rules(member)
