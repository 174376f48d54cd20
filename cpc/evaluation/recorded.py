"""The data that a model was trained on, from its config.json."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cpc.config.description import build, class_of
from cpc.data.modality import Modality


def data_class(config: Mapping[str, Any], trusted_packages: tuple[str, ...] = ("cpc",)) -> type[Modality]:
    """Return the modality of a model's data; a ValueError if config.json names none, or a class that is not trusted."""
    return class_of(_saved_settings(config)["class_path"], trusted_packages=trusted_packages, kind=Modality)


def recorded_data(
    config: Mapping[str, Any], source: str | Path, *, trusted_packages: tuple[str, ...] = ("cpc",), **options: Any
) -> Modality:
    """Return the data of a model's run (in its config.json) with another source and other options, unless None."""
    settings, modality = _saved_settings(config), data_class(config, trusted_packages)
    changes = {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value is not None
    }
    legal = [field.name for field in fields(modality)]
    unknown = [name for name in changes if name not in legal]
    if unknown:
        raise ValueError(f"`{'`, `'.join(unknown)}` is not an option of {modality.name}, the data of this model")
    run_args = {name: value for name, value in settings["init_args"].items() if name not in modality.local_options}
    init_args = {**run_args, modality.source_option: str(source), **changes}
    return build({**settings, "init_args": init_args}, trusted_packages=trusted_packages, kind=Modality)


def _saved_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = config["provenance"].get("data", {})
    types = {"class_path": str, "init_args": dict}
    if settings.keys() != types.keys() or not all(isinstance(settings[name], kind) for name, kind in types.items()):
        raise ValueError("config.json does not describe the training data: it needs provenance.data")
    return settings
