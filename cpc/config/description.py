"""A part of a model as plain data, its class and its arguments, and back: the dialect of the YAML configs.

What is built may come from anywhere: classes of trusted packages alone, of cpc its parts alone (docs/records.md).
"""

import importlib
import inspect
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from torch import nn

_PARTS = ("model", "encoders", "contexts", "predictors", "losses", "candidates", "data")  # cpc's own that have parts


def describe(module: nn.Module) -> dict[str, Any]:
    """The class of a module and the arguments that build it again, parts described likewise.

    Every part keeps each `__init__` argument under an attribute of the same name, or as `NAME_part` where the name is
    a method's.

    Raises:
        ValueError: on a module that does not keep it, naming class and argument.
    """
    # FSDP2 gives a sharded part a class of its own, made of its mixin and the part's class.
    cls = next(cls for cls in type(module).__mro__ if not cls.__module__.startswith("torch.distributed"))
    init_args = {}
    for name in list(inspect.signature(cls.__init__).parameters)[1:]:
        kept = f"{name}_part" if hasattr(module, f"{name}_part") else name
        if not hasattr(module, kept):
            raise ValueError(
                f"{cls.__name__} keeps no attribute {name!r} of its argument, so that a saved model could not "
                "be built again: give it one, or wrap the module in a class of yours that takes and keeps its arguments"
            )
        value = getattr(module, kept)
        init_args[name] = describe(value) if isinstance(value, nn.Module) else value
    return {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": init_args}


def build(description: dict[str, Any], *, trusted_packages: tuple[str, ...] = ("cpc",), kind: type = nn.Module) -> Any:
    """Build a described part, freshly initialised.

    Args:
        description: as `describe` returns it.
        trusted_packages: packages whose classes it may name.
        kind: what the class must be a subclass of.

    Raises:
        ValueError: on a class outside the trusted packages, an unknown class, or arguments that it does not take.
    """
    path = description.get("class_path")
    if not _is_description(description) or not isinstance(path, str) or not isinstance(description["init_args"], dict):
        raise ValueError(f"{str(description)[:80]} does not describe a part: it needs a class_path and its init_args")
    cls = class_of(path, trusted_packages=trusted_packages, kind=kind)
    arguments = {
        name: build(value, trusted_packages=trusted_packages) if _is_description(value) else _as_given(value)
        for name, value in description["init_args"].items()
    }
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in arguments and not _is_of(arguments[name], parameter.annotation, parameter.default):
            raise ValueError(f"{path} takes {parameter}, not {name}={arguments[name]!r:.80}")
    try:
        return cls(**_with_options(cls, arguments))
    except ValueError:
        raise
    except Exception as error:  # what a part does not foresee breaks it in a dozen ways
        given, reason = str(description["init_args"])[:300], f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} does not take the arguments {given}: {reason}") from error


def class_of(path: str, *, trusted_packages: tuple[str, ...] = ("cpc",), kind: type = nn.Module) -> type:
    """The class of a path, if its package is trusted; of cpc itself parts alone, which open no other files.

    Raises:
        ValueError: on a class outside the trusted packages, an unknown one, or one of another kind.
    """
    module_name, _, class_name = path.rpartition(".")
    package, *inner = module_name.split(".")
    if package == "cpc" and inner[:1] not in [[part] for part in _PARTS]:
        raise ValueError(f"{path} is no part of a model: those are in cpc.{', cpc.'.join(_PARTS)}")
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


def _is_of(value: Any, annotation: Any, default: Any) -> bool:
    """Whether a number, word or flag has the type of an argument; other types show when they are used."""
    if value is default or value == default:
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(_is_of(value, each, default) for each in get_args(annotation))
    kinds = {
        int: (int,),
        float: (int, float),
        str: (str,),
        bool: (bool,),
        dict: (dict,),
        tuple: (tuple,),
        NoneType: (NoneType,),
    }
    of_value = kinds.get(get_origin(annotation) or annotation)
    return of_value is None or (isinstance(value, of_value) and isinstance(value, bool) == (annotation is bool))


def _with_options(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Options that have options of their own, from the dictionaries that JSON has of them."""
    for name, parameter in inspect.signature(cls).parameters.items():
        kinds = [each for each in get_args(parameter.annotation) if isinstance(each, type) and is_dataclass(each)]
        if kinds and isinstance(arguments.get(name), dict):
            given = {option: _as_given(value) for option, value in arguments[name].items()}
            arguments = arguments | {name: kinds[0](**given)}
    return arguments


def _as_given(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value
