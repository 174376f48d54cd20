"""Options of a command, read from the signature and the docstring of the function that it calls.

A parameter's type decides how its option is read, its default is the option's, and its line under `Args:` is the help.
A parameter without a default is positional, or a required option if it is keyword-only or in `NAMED`; the first always
is positional.
"""

import argparse
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import yaml

from cpc.config.yaml_rules import check_yaml

COMMAND = "command"  # a parameter of this name takes all that follows, options too
NAMED = ("data", "items", "task", "out", "run_dir")
MAY_BE_EMPTY = ("baselines",)
PYTHON_ONLY = ("progress", "num_workers", "held_out", "supervised")
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


class Options:
    """The parser of one command.

    Args:
        function: what the command calls.
        prog: what the user types before the options.
        words: what the command does; the first line of the function's docstring if None.

    Attributes:
        typed: how each option is typed.
        groups: parameters whose fields are options of their own, and the dataclasses of these.
        takes_more: whether the function takes options that its signature does not name.
    """

    def __init__(self, function: Callable[..., Any], prog: str | None = None, words: str | None = None) -> None:
        document = docstring_parser.parse(function.__doc__ or "")
        self.parser = argparse.ArgumentParser(prog, description=words or document.short_description, allow_abbrev=False)
        self._alone = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        self.typed: dict[str, str] = {}
        self.groups: dict[str, Any] = {}
        self.takes_more = False
        texts, kinds = {line.arg_name: line.description for line in document.params}, get_type_hints(function)
        for position, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
            is_required = parameter.default is parameter.empty
            if parameter.kind is parameter.VAR_KEYWORD:
                self.takes_more = True
            elif of_fields := [each for each in get_args(kinds[name]) if isinstance(each, type) and is_dataclass(each)]:
                self.groups[name] = of_fields[0]
                self.add_fields(of_fields[0], [field.name for field in fields(of_fields[0])])
            elif is_required and (position == 0 or not (name in NAMED or parameter.kind is parameter.KEYWORD_ONLY)):
                reading = _reading(kinds[name]) | {"metavar": name}
                if name == COMMAND:
                    reading |= {"nargs": argparse.REMAINDER, "metavar": "COMMAND ..."}
                self.typed[name] = name
                self.parser.add_argument(name, help=_escape(texts.get(name)), **reading)
            elif name not in PYTHON_ONLY:
                self._add(name, kinds[name], texts.get(name), None if is_required else parameter.default, is_required)

    def add_fields(self, kind: type, names: Iterable[str], note: str | None = None) -> None:
        """Add an option for each of these fields of a class; `note` ends its help where a default would."""
        lines = [line for base in kind.__mro__[::-1] for line in docstring_parser.parse(base.__doc__ or "").params]
        texts, kinds = {line.arg_name: line.description for line in lines}, get_type_hints(kind)
        for name in (name for name in names if name not in PYTHON_ONLY):
            default = getattr(kind, name, None) if note is None else None
            self._add(name, kinds[name], f"{(texts.get(name) or '').rstrip('.')}{note or ''}", default)

    def parse_alone(self, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options that are known by now, and what is left: positional arguments, and options of others."""
        try:
            return self._alone.parse_known_args(arguments)
        except argparse.ArgumentError as error:
            self.parser.error(str(error))

    def parse(self, arguments: list[str], note: str = "") -> dict[str, Any]:
        """The arguments that were given, by name; `note` is added to the message about unknown ones."""
        given, unknown = self.parser.parse_known_args(arguments)
        if unknown:
            self.parser.error(f"unrecognized arguments: {' '.join(unknown)}{note}")
        values = vars(given)
        for group, kind in self.groups.items():
            values[group] = kind(**{each.name: values.pop(each.name) for each in fields(kind) if each.name in values})
        return values

    def _add(self, name: str, kind: Any, text: str | None, default: Any = None, is_required: bool = False) -> None:
        reading = _reading(kind)
        if not reading:
            return
        if name in MAY_BE_EMPTY:
            reading["nargs"] = "*"
        text = re.sub(r"`(\w+)`", lambda marked: self.typed.get(marked[1], marked[0]), text or "")
        if "nargs" in reading and "choices" in reading:
            reading["metavar"] = "NAME"
            text = f"{text.rstrip('.')}; any of {', '.join(reading['choices'])}"
        if default is not None and "type" in reading:
            text = f"{text.rstrip('.')} (default: {default if _is_one(default) else ' '.join(map(str, default))})"
        self.typed[name] = f"--{name}"
        settings = reading | {"help": _escape(text), "default": argparse.SUPPRESS, "required": is_required}
        self.parser.add_argument(f"--{name}", **settings)
        self._alone.add_argument(f"--{name}", **settings | {"required": False})


def whole(text: str) -> int:
    """Read a whole number of at most 64 bits: longer ones overflow where seeds and counts are used."""
    value = int(text)
    if abs(value) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text} is too large: give at most {2**63 - 1}")
    return value


def number(text: str) -> float:
    """Read a finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not finite: give a number")
    return value


def filled(text: str) -> str:
    """Read a text that is not empty: `--out "$UNSET"` would mean the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give a value (is a variable of the shell unset?), or leave it out")
    return text


def path(text: str) -> Path:
    """Read a path that is not empty."""
    return Path(filled(text))


def number_or_all(text: str) -> int | None:
    """Read `all` as None."""
    return None if text == "all" else whole(text)


READERS: dict[type, Callable[[str], Any]] = {int: whole, float: number, str: filled, Path: path}
for _kind, _reader in READERS.items():
    _reader.__name__ = _kind.__name__  # as argparse says it: invalid int value


def mapping(text: str) -> dict[str, Any]:
    """Read `{name: value}` as YAML does."""
    try:
        check_yaml(text)
        value = yaml.safe_load(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise argparse.ArgumentTypeError(f"{text!r} is no mapping of names to values, such as '{{name: 1}}'")
    return value


def _reading(kind: Any) -> dict[str, Any]:
    """How argparse reads values of a type: of a sequence one after another; {} if they cannot be typed."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for member in members:
        origin = get_origin(member)
        if origin is dict:
            return {"type": mapping, "metavar": "{NAME: VALUE}"}
        if inspect.isclass(origin) and issubclass(origin, Iterable):
            (element, *_) = get_args(member)
            of_all = {"type": number_or_all, "metavar": "INT|all"}
            return (of_all if NoneType in get_args(element) else _reading(element)) | {"nargs": "+"}
    first = str if str in members else members[0]
    if first is bool:
        return {"action": "store_true"}
    if get_origin(first) is Literal:
        return {"type": type(get_args(first)[0]), "choices": get_args(first)}
    if first not in READERS:
        return {}
    return {"type": READERS[first], "metavar": METAVARS[Path if Path in members else first]}


def _escape(text: str | None) -> str:
    return " ".join((text or "").rstrip(".").split()).replace("%", "%%")


def _is_one(default: Any) -> bool:
    return isinstance(default, str) or not isinstance(default, Iterable)


def prepare_from_command_line(
    prepare: Callable[..., Any], describe: Callable[..., str], published: dict[str, int] | None = None
) -> None:
    """Call a corpus's function with the arguments of the command line and print what there is to read.

    Args:
        prepare: its parameters become the options.
        describe: what it returned, in words, beside `published` if that is given.
        published: what its authors report of each split.
    """
    values = Options(prepare).parse(sys.argv[1:])
    try:
        print(describe(prepare(**values), *([] if published is None else [published])))
    except (ValueError, ImportError, OSError) as error:
        sys.exit(f"error: {error}")
