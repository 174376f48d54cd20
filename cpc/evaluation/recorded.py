"""The data that a model was trained on, as its run noted them, to be measured again."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cpc.config.description import build, class_of
from cpc.data.modality import Modality


def data_class(config: Mapping[str, Any], trusted_packages: tuple[str, ...] = ("cpc",)) -> type[Modality]:
    """The modality of a model's data, from its config.json.

    Raises:
        ValueError: if config.json does not say it, or names a class that is no modality or not trusted.
    """
    return class_of(_noted(config)["class_path"], trusted_packages=trusted_packages, kind=Modality)


def recorded_data(
    config: Mapping[str, Any], source: str | Path, *, trusted_packages: tuple[str, ...] = ("cpc",), **options: Any
) -> Modality:
    """The data of a model as its run used them, with another source and options.

    Args:
        config: of the model (`cpc.checkpoint.read_config`).
        source: in place of the run's.
        trusted_packages: packages whose classes config.json may name.
        options: fields to replace; those that are None stay as the run had them.

    Raises:
        ValueError: as `data_class`; on an option that such data do not have.
    """
    saved_settings, kind = _noted(config), data_class(config, trusted_packages)
    given = {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value is not None
    }
    legal = [field.name for field in fields(kind)]
    foreign = [name for name in given if name not in legal]
    if foreign:
        raise ValueError(f"`{'`, `'.join(foreign)}`: this is a model of {kind.name}, whose data have no such option")
    of_the_run = {name: value for name, value in saved_settings["init_args"].items() if name not in kind.local_options}
    init_args = {**of_the_run, kind.source_option: str(source), **given}
    return build({**saved_settings, "init_args": init_args}, trusted_packages=trusted_packages, kind=Modality)


def _noted(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config["provenance"].get("data", {})
    kinds = {"class_path": str, "init_args": dict}
    if found.keys() != kinds.keys() or not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        raise ValueError(
            "the model's config.json does not say what data it was trained on: it was not exported by cpc pretrain. "
            'Write provenance.data, such as {"class_path": "cpc.data.Audio", "init_args": {"manifest": "DIR", '
            '"window_samples": 20480}}'
        )
    return found
