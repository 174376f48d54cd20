"""Options of a command, derived from the signature and the docstring of the function that the command calls.

An option has the type and the default of its parameter; the entry under `Args:` is the help text. A parameter without a
default is positional, or a required option if it is keyword-only or in `NAMED`. The first parameter without a default
is always positional.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import yaml

from cpc.config.argument_rules import checked
from cpc.config.yaml_rules import check_yaml

COMMAND = "command"  # a parameter of this name takes all further arguments, including options
NAMED = ("data", "items", "task", "out", "run_dir")
MAY_BE_EMPTY = ("baselines",)
PYTHON_ONLY = ("progress", "num_workers", "held_out", "supervised")
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


class Options:
    """The parser of one command.

    Args:
        function: function that the command calls.
        prog: program and command in the usage message, before the options.
        words: description of the command; None: the first line of the docstring of the function.

    Attributes:
        typed: for each parameter, its form on the command line, such as `--name`.
        groups: for each parameter whose fields are options, the dataclass of these fields.
        takes_more: whether the function accepts options that are not in its signature.
    """

    def __init__(self, function: Callable[..., Any], prog: str | None = None, words: str | None = None) -> None:
        document = docstring_parser.parse(function.__doc__ or "")
        self.parser = argparse.ArgumentParser(prog, description=words or document.short_description, allow_abbrev=False)
        self._known = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        self.typed: dict[str, str] = {}
        self.groups: dict[str, Any] = {}
        self.takes_more = False
        texts, kinds = {line.arg_name: line.description for line in document.params}, get_type_hints(function)
        for position, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
            is_required = parameter.default is parameter.empty
            if parameter.kind is parameter.VAR_KEYWORD:
                self.takes_more = True
            elif groups := [kind for kind in get_args(kinds[name]) if isinstance(kind, type) and is_dataclass(kind)]:
                self.groups[name] = groups[0]
                self.add_fields(groups[0], [field.name for field in fields(groups[0])])
            elif is_required and (position == 0 or not (name in NAMED or parameter.kind is parameter.KEYWORD_ONLY)):
                settings = _argparse_settings(kinds[name]) | {"metavar": name}
                if name == COMMAND:
                    settings |= {"nargs": argparse.REMAINDER, "metavar": "COMMAND ..."}
                self.typed[name] = name
                self.parser.add_argument(name, help=_escape(texts.get(name)), **settings)
            elif name not in PYTHON_ONLY:
                self._add(name, kinds[name], texts.get(name), None if is_required else parameter.default, is_required)

    def add_fields(self, kind: type, names: Iterable[str], note: str | None = None) -> None:
        """Add an option for each of these fields of a class; `note` replaces the default at the end of its help."""
        lines = [line for base in kind.__mro__[::-1] for line in docstring_parser.parse(base.__doc__ or "").params]
        texts, kinds = {line.arg_name: line.description for line in lines}, get_type_hints(kind)
        for name in (name for name in names if name not in PYTHON_ONLY):
            default = getattr(kind, name, None) if note is None else None
            self._add(name, kinds[name], f"{(texts.get(name) or '').rstrip('.')}{note or ''}", default)

    def parse_alone(self, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse only the options that were added so far; return their values and the remaining arguments."""
        try:
            return self._known.parse_known_args(arguments)
        except argparse.ArgumentError as error:
            self.parser.error(str(error))

    def parse(self, arguments: list[str], note: str = "") -> dict[str, Any]:
        """Parse all arguments and return them by name; `note` ends the message about unknown arguments."""
        namespace, unknown = self.parser.parse_known_args(arguments)
        if unknown:
            self.parser.error(f"unrecognized arguments: {' '.join(unknown)}{note}")
        values = vars(namespace)
        for group, kind in self.groups.items():
            values[group] = kind(
                **{field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
            )
        return values

    def _add(self, name: str, kind: Any, text: str | None, default: Any = None, is_required: bool = False) -> None:
        settings = _argparse_settings(kind)
        if not settings:
            return
        if name in MAY_BE_EMPTY:
            settings["nargs"] = "*"
        text = re.sub(r"`(\w+)`", lambda match: self.typed.get(match[1], match[0]), text or "")
        if "nargs" in settings and "choices" in settings:
            settings["metavar"] = "NAME"
            text = f"{text.rstrip('.')}; one or more of {', '.join(settings['choices'])}"
        if default is not None and "type" in settings:
            is_one = isinstance(default, str) or not isinstance(default, Iterable)
            text = f"{text.rstrip('.')} (default: {default if is_one else ' '.join(map(str, default))})"
        self.typed[name] = f"--{name}"
        settings |= {"help": _escape(text), "default": argparse.SUPPRESS, "required": is_required}
        self.parser.add_argument(f"--{name}", **settings)
        self._known.add_argument(f"--{name}", **settings | {"required": False})


def filled(text: str) -> str:
    """Return a text that is not empty, since an empty `--out "$UNSET"` would mean the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give a value (is a variable of the shell unset?), or leave it out")
    return text


def path(text: str) -> Path:
    """Parse a path that is not empty."""
    return Path(filled(text))


def number_or_all(text: str) -> int | None:
    """Parse an integer, or `all` as None."""
    return None if text == "all" else int(text)


READERS: dict[type, Callable[[str], Any]] = {int: int, float: float, str: filled, Path: path}


def mapping(text: str) -> dict[str, Any]:
    """Parse a YAML mapping such as `{name: value}`."""
    try:
        check_yaml(text)
        value = yaml.safe_load(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a mapping of names to values, such as '{{name: 1}}'")
    return value


def _argparse_settings(kind: Any) -> dict[str, Any]:
    """Return the settings of argparse for a type of values; {} if such values cannot be typed on a command line."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for member in members:
        origin = get_origin(member)
        if origin is dict:
            return {"type": mapping, "metavar": "{NAME: VALUE}"}
        if inspect.isclass(origin) and issubclass(origin, Iterable):
            (element, *_) = get_args(member)
            int_or_all = {"type": number_or_all, "metavar": "INT|all"}
            return (int_or_all if NoneType in get_args(element) else _argparse_settings(element)) | {"nargs": "+"}
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


def prepare_from_command_line(
    prepare: Callable[..., Any], describe: Callable[..., str], published: dict[str, int] | None = None
) -> None:
    """Call a function that prepares a corpus with the arguments of the command line, and print a description.

    `describe` returns the text from the result, and from the numbers that the authors of the corpus have `published`.
    """
    values = Options(prepare).parse(sys.argv[1:])
    try:
        print(describe(checked(prepare)(**values), *([] if published is None else [published])))
    except (ValueError, ImportError, OSError) as error:
        sys.exit(f"error: {error}")
