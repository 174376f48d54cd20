"""Publish a model as a folder, and get it back: model.safetensors and config.json.

config.json names every part by class and arguments, in the dialect of the YAML configs, so a folder needs no code of
the run that wrote it.
"""

import hashlib
import importlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from cpc.model import CPC

FORMAT_VERSION = 1


def describe(module: nn.Module) -> dict[str, Any]:
    """The class of a module and the arguments that build it again, parts described likewise.

    Every `__init__` argument is kept under an attribute of the same name: that is the convention of all parts.
    """
    init_args = {}
    for name in list(inspect.signature(type(module).__init__).parameters)[1:]:
        value = getattr(module, name)
        init_args[name] = describe(value) if isinstance(value, nn.Module) else value
    return {"class_path": f"{type(module).__module__}.{type(module).__qualname__}", "init_args": init_args}


def build(description: dict[str, Any], *, trusted_packages: tuple[str, ...] = ("cpc",)) -> Any:
    """Build a described module, freshly initialised.

    Raises:
        ValueError: on a class outside the trusted packages, an unknown class, or arguments that it does not take.
    """
    path = description["class_path"]
    module_name, _, class_name = path.rpartition(".")
    if module_name.split(".")[0] not in trusted_packages:
        raise ValueError(
            f"the model names the class {path}, outside the trusted packages {', '.join(trusted_packages)}; if you "
            "trust its origin, pass trusted_packages with that package's name too"
        )
    try:
        cls = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"this version of cpc has no class {path}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ValueError(f"{path} is no torch module: a model is built of modules alone")
    arguments = {
        name: build(value, trusted_packages=trusted_packages) if _is_description(value) else _as_given(value)
        for name, value in description["init_args"].items()
    }
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ValueError(f"{path} does not take the arguments {sorted(arguments)}: {error}") from error


def save_pretrained(model: CPC, folder: str | Path, *, provenance: dict[str, Any] | None = None) -> None:
    """Write weights and description; an interrupted or failed save leaves an older model in place readable.

    Args:
        model: what to save.
        folder: made if it does not exist.
        provenance: facts to keep beside the architecture: corpus, steps, seed, bound.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights, config = folder / "model.safetensors", folder / "config.json"
    new_weights, new_config = folder / "model.safetensors.new", folder / "config.json.new"
    try:
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, new_weights)
        content = {
            "format_version": FORMAT_VERSION,
            "architecture": describe(model),
            "sample_rate_hz": model.encoder.sample_rate_hz,
            "hop_samples": model.encoder.hop_samples,
            "sha256": _sha256(new_weights),
            "provenance": provenance or {},
        }
        new_config.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(new_weights, weights)
        os.replace(new_config, config)
    finally:
        new_weights.unlink(missing_ok=True)
        new_config.unlink(missing_ok=True)


def load_pretrained(folder: str | Path, *, device: str = "cpu", trusted_packages: tuple[str, ...] = ("cpc",)) -> CPC:
    """Read a saved model back, in eval mode.

    Args:
        folder: as written by `save_pretrained`; a run folder that holds one under `model/` will do.
        device: where to put it.
        trusted_packages: packages whose classes a config.json may name.

    Raises:
        ValueError: naming the folder, if there is no model in it, or weights and description do not fit.
    """
    config = read_config(folder)
    folder = _model_folder(folder)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise ValueError(f"{folder} has a config.json but no model.safetensors: copy the whole model folder")
    if _sha256(weights) != config["sha256"]:
        raise ValueError(f"{weights} is not the file that config.json describes: truncated, or of another save")
    model = build(config["architecture"], trusted_packages=trusted_packages)
    found, expected = load_file(weights), model.state_dict()
    differing = sorted(found.keys() ^ expected.keys()) + [
        f"{name}: {tuple(found[name].shape)} in the file, {tuple(tensor.shape)} in the architecture"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if differing:
        raise ValueError(f"{weights} does not fit its architecture: {'; '.join(differing[:5])}")
    model.load_state_dict(found)
    return model.to(device).eval()


def read_config(folder: str | Path) -> dict[str, Any]:
    """The config.json of a model folder (or of a run folder that holds one).

    Raises:
        ValueError: if there is none, or it was written by a later version.
    """
    path = _model_folder(folder) / "config.json"
    if not path.exists():
        raise ValueError(
            f"{folder} holds no model: config.json and model.safetensors are looked for there and in its 'model' folder"
        )
    config = json.loads(path.read_text())
    version = config.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ValueError(f"{path} has format_version {version}, this cpc reads up to {FORMAT_VERSION}; upgrade cpc")
    return config


def _model_folder(folder: str | Path) -> Path:
    folder = Path(folder)
    return folder / "model" if (folder / "model" / "config.json").exists() else folder


def _is_description(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"class_path", "init_args"}


def _as_given(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
