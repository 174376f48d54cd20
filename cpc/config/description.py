"""Conversion of a part of a model to plain data and back. The data are its class and arguments, as in YAML configs.

Descriptions may come from untrusted files. So only classes of trusted packages are built; of the classes of cpc, only
parts of models (docs/records.md).
"""

import importlib
import inspect
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from torch import nn

from cpc.config.argument_rules import plain

# subpackages of cpc with parts of models
_PARTS = ("model", "encoders", "contexts", "predictors", "losses", "candidates", "data")
# Arguments that losses no longer have: the value that means what every loss now does, and the reason.
_REMOVED: dict[str, tuple[Any, str]] = {
    "exchange": ("gather", "latents of all ranks are always gathered"),
    "anchor": (False, "only critics of `cpc calibrate` are trained with InfoNCE-anchor"),
    "anchor_weight": (0.3, "only critics of `cpc calibrate` are trained with InfoNCE-anchor"),
}


def describe(module: nn.Module) -> dict[str, Any]:
    """Return the class of a module and the arguments that rebuild it; modules among the arguments are described too.

    A module must store each `__init__` argument in an attribute of the same name, or `NAME_part` if a method has that
    name.
    """
    # FSDP2 replaces the class of a sharded module by a subclass with its mixin.
    cls = next(cls for cls in type(module).__mro__ if not cls.__module__.startswith("torch.distributed"))
    init_args = {}
    for name in list(inspect.signature(cls.__init__).parameters)[1:]:
        attribute = f"{name}_part" if hasattr(module, f"{name}_part") else name
        if not hasattr(module, attribute):
            raise ValueError(f"{cls.__name__} does not store its argument {name!r} in an attribute of this name")
        value = getattr(module, attribute)
        init_args[name] = describe(value) if isinstance(value, nn.Module) else plain(value)
    return {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": init_args}


def build(description: dict[str, Any], *, trusted_packages: tuple[str, ...] = ("cpc",), kind: type = nn.Module) -> Any:
    """Build a described part, freshly initialised.

    Args:
        description: description from `describe`.
        trusted_packages: packages whose classes the description may name.
        kind: required base class.

    Raises:
        ValueError: if a class is unknown or outside the trusted packages, or does not accept the arguments; the errors
            of `without_removed`.
    """
    description = without_removed(description)
    path = description.get("class_path")
    if not _is_description(description) or not isinstance(path, str) or not isinstance(description["init_args"], dict):
        raise ValueError(f"{str(description)[:80]} does not describe a part: it needs class_path and init_args")
    cls = class_of(path, trusted_packages=trusted_packages, kind=kind)
    arguments = {
        name: build(value, trusted_packages=trusted_packages) if _is_description(value) else _lists_as_tuples(value)
        for name, value in description["init_args"].items()
    }
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in arguments and not _has_type(arguments[name], parameter.annotation, parameter.default):
            raise ValueError(f"{path} takes {parameter}, not {name}={arguments[name]!r:.80}")
    try:
        return cls(**_build_options(cls, arguments))
    except ValueError:
        raise
    except Exception as error:  # invalid arguments may raise any exception
        init_args, reason = str(description["init_args"])[:300], f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} does not take the arguments {init_args}: {reason}") from error


def without_removed(config: Any) -> Any:
    """Return a config or description without the arguments that losses of cpc no longer have."""
    if not isinstance(config, dict):
        return config
    config = {name: without_removed(value) for name, value in config.items()}
    init_args = config.get("init_args")
    if isinstance(init_args, dict) and str(config.get("class_path", "cpc.losses.")).startswith("cpc.losses."):
        for name in _REMOVED.keys() & init_args.keys():
            given, (kept, reason) = init_args.pop(name), _REMOVED[name]
            if str(given).lower() != str(kept).lower():  # the command line gives text
                raise ValueError(f"`loss.{name}`={given!r} is no longer an option, since {reason}: leave it out")
    return config


def class_of(path: str, *, trusted_packages: tuple[str, ...] = ("cpc",), kind: type = nn.Module) -> type:
    """Return the class of a path in a trusted package. In cpc only parts of models are allowed, which open no files."""
    module_name, _, class_name = path.rpartition(".")
    package, *inner = module_name.split(".")
    if package == "cpc" and inner[:1] not in [[part] for part in _PARTS]:
        raise ValueError(f"{path} is not a part of a model: parts are in cpc.{', cpc.'.join(_PARTS)}")
    if package not in trusted_packages:
        raise ValueError(
            f"the model names the class {path}, outside the trusted packages {', '.join(trusted_packages)}; if you "
            f"trust its origin, give `trusted_packages` {' '.join(trusted_packages)} {package}"
        )
    try:
        cls = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no class {path}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, kind)) or inspect.isabstract(cls):
        raise ValueError(f"{path} is not a {kind.__name__}")
    return cls


def _is_description(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"class_path", "init_args"}


def _has_type(value: Any, annotation: Any, default: Any) -> bool:
    """Return whether a plain value fits its annotation; annotations of other types, or with rules, fit all."""
    if value is default or value == default:
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(_has_type(value, member, default) for member in get_args(annotation))
    kind = get_origin(annotation) or annotation
    if kind not in (int, float, str, bool, dict, tuple, NoneType):
        return True
    return isinstance(value, int | float if kind is float else kind) and isinstance(value, bool) == (kind is bool)


def _build_options(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with dictionaries from JSON replaced by the dataclasses that the class expects."""
    for name, parameter in inspect.signature(cls).parameters.items():
        members = get_args(parameter.annotation)
        dataclasses = [member for member in members if isinstance(member, type) and is_dataclass(member)]
        if dataclasses and isinstance(arguments.get(name), dict):
            values = {option: _lists_as_tuples(value) for option, value in arguments[name].items()}
            arguments = arguments | {name: dataclasses[0](**values)}
    return arguments


def _lists_as_tuples(value: Any) -> Any:
    """Return a list as a tuple, because JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value
