"""Models as folders with model.safetensors and config.json: saving and loading. Also reads the checkpoints of runs.

Files may be untrusted: reading them never runs code from them (docs/records.md).

config.json describes every part by class and arguments, as YAML configs do, so loading a folder needs no code of the
run that wrote it. It also contains the sha256 of the weights. Two files cannot be replaced in one atomic step. So new
weights are written next to the old weights, and replace the old weights after config.json contains the new sha256.
"""

import hashlib
import math
import os
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpc.config.argument_rules import Choices, Writable
from cpc.config.description import build, describe
from cpc.contexts.context import time_constants
from cpc.data.store.atomic import write_json
from cpc.data.store.contents import say
from cpc.data.store.untrusted import open_regular, read_json, read_torch_archive, reading
from cpc.data.tensors import find_device
from cpc.interop.hub import fetch_model, is_hub_name, looks_like_hub_name
from cpc.model import CPC
from cpc.pretrained import FOLDER, is_shipped, shipped_names

FORMAT_VERSION = 1
_WEIGHTS, _NEW_WEIGHTS, _CONFIG = "model.safetensors", "model.safetensors.new", "config.json"
_ENTRIES = {"architecture": dict, "sha256": str, "provenance": dict}  # required entries of config.json and their types
_CHECKPOINT_ENTRIES = {
    "global_step": int,
    "epoch": int,
    "pytorch-lightning_version": str,
    "state_dict": dict,
    "loops.fit_loop": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "cpc.architecture": dict,
    "cpc.settings": dict,
    "cpc.num_workers": int,
    "cpc.ranks": list,
}


def save_pretrained(
    model: CPC, folder: str | Path, *, provenance: dict[str, Any] | None = None, dtype: torch.dtype | None = None
) -> None:
    """Write weights and description; if this fails or is killed, the folder holds either the old or the new model.

    Sharded weights (`fully_shard` of FSDP2) are gathered: all ranks must call this function, and the first rank writes.

    Args:
        model: model to save.
        folder: output folder, created if needed.
        provenance: facts that are stored with the architecture, such as corpus, steps, seed and bound.
        dtype: type in which weights and statistics are stored, such as torch.float16, which halves the file;
            `load_pretrained` converts them back. Time constants keep their own types. None: all keep their own types.

    Raises:
        TypeError: if the architecture or the provenance contains values that JSON cannot represent.
        ValueError: if a number in them is not finite, or a finite weight is too large for `dtype`.
    """
    weights = model.state_dict()
    sharded = {name for name, weight in weights.items() if hasattr(weight, "full_tensor")}  # DTensor imports slowly
    if sharded:
        weights = {name: weight.full_tensor() if name in sharded else weight for name, weight in weights.items()}
        if dist.get_rank() > 0:
            return
    if dtype is not None:
        exact = time_constants(model)
        weights = {
            name: weight if name in exact else _converted(weight, name, dtype) for name, weight in weights.items()
        }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _finish_save(folder)
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / _NEW_WEIGHTS)
        content = {
            "format_version": FORMAT_VERSION,
            "architecture": describe(model),
            "modality": model.encoder.modality,
            **model.encoder.geometry,
            "sha256": _sha256(folder / _NEW_WEIGHTS),
            "provenance": provenance or {},
        }
        write_json(content, folder / _CONFIG)
    finally:
        _finish_save(folder)


def load_pretrained(
    folder: str | Path,
    *,
    revision: str | None = None,
    device: str = "cpu",
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> CPC:
    """Load a saved model in eval mode.

    Args:
        folder: folder written by `save_pretrained`; a run folder that contains such a folder as `model/`; the name of a
            model that ships with cpc (`cpc models` lists them); or a model on the Hugging Face Hub, as `ORG/NAME` or
            `ORG/NAME@REVISION` (`cpc.interop.hub.fetch_model`).
        revision: branch, tag or commit on the Hub.
        device: device of the model: `cpu`, `cuda`, `cuda:N` or `auto` (the GPU if there is one).
        trusted_packages: packages whose classes config.json may name.

    Raises:
        ValueError: if the folder holds no model, a file is damaged, weights and description do not match, a weight is
            not finite, or the device cannot be used. The message names the file or the device.
        ConnectionError: if the Hub cannot be reached.
    """
    folder = model_folder_of(folder, revision)
    config = read_config(folder)
    weights = weights_of(folder)
    with reading(weights):
        state = load_file(weights)
    with reading(folder / _CONFIG, "does not describe a model that can be built"):
        with _Budget(weights.stat().st_size):
            model = build(config["architecture"], trusted_packages=trusted_packages, kind=CPC)
        facts = {"modality": model.encoder.modality, **model.encoder.geometry}
    for name, fact in facts.items():
        Choices((fact,)).check(f"{folder / _CONFIG}: {name}", config.get(name, fact))
    expected = model.state_dict()
    differing = sorted(state.keys() ^ expected.keys()) + [
        f"{name}: {_shape_and_type(state[name])} in the file, {_shape_and_type(tensor)} in the architecture"
        for name, tensor in expected.items()
        if name in state and _shape_and_type(state[name]) != _shape_and_type(tensor)
    ]
    if differing:
        raise ValueError(f"{weights} does not fit its architecture: {'; '.join(differing[:5])}")
    model.load_state_dict(state)
    broken = nonfinite_names(model)
    if broken:
        raise ValueError(f"{weights} holds values that are not finite, in {', '.join(broken[:5])}: export again")
    return model.to(find_device(device)).eval()


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return config.json of a model folder, a run or a model on the Hub; a ValueError if it is missing or damaged."""
    path = model_folder_of(folder) / _CONFIG
    if not path.exists():
        needed = "it needs config.json and model.safetensors; `cpc models` lists the models that need no folder"
        raise ValueError(f"{folder} holds no model: {needed}")
    config = read_json(path)
    version = config.get("format_version") if isinstance(config, dict) else None
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"{path} has format_version {version}, this cpc reads up to {FORMAT_VERSION}; upgrade cpc")
    wrong = [f"{name} ({kind.__name__})" for name, kind in _ENTRIES.items() if not isinstance(config.get(name), kind)]
    data = config["provenance"].get("data", {}) if not wrong else {}
    if not isinstance(data, dict):
        wrong = ["provenance.data (dict)"]
    elif "class_path" in data and not isinstance(data.get("init_args"), dict):
        wrong = ["provenance.data.init_args (dict)"]
    if wrong:
        raise ValueError(f"{path} lacks {', '.join(wrong)}: cpc did not write it, or it was edited; export again")
    return config


def weights_of(model: str | Path) -> Path:
    """Return the file of the weights that config.json describes; after a killed save it may have a temporary name."""
    folder, sha256 = model_folder_of(model), read_config(model)["sha256"]
    candidates = [path for path in (folder / _WEIGHTS, folder / _NEW_WEIGHTS) if path.exists()]
    for path in candidates:
        if _sha256(path) == sha256:
            return path
    given = "is not the file" if candidates else "is missing, the file"
    raise ValueError(f"{folder / _WEIGHTS} {given} that {_CONFIG} describes: copy both of one export")


def model_folder_of(model: str | Path, revision: str | None = None) -> Path:
    """Return the folder of config.json and the weights, which may not exist; a model on the Hub is downloaded.

    A model is a model folder, a run folder with a model in `model/`, the name of a shipped model (`cpc.pretrained`), or
    a name on the Hub (`cpc.interop.hub`), where `revision` is a branch, tag or commit.
    """
    if is_hub_name(model):
        return fetch_model(str(model), revision)
    if revision is not None:
        raise ValueError(f"revision={revision!r} is only for models on the Hub, and {model} is none: omit it")
    if is_shipped(model):
        return FOLDER / model
    if str(model) in shipped_names():
        say(f"{model} is the local folder, not the model that ships with cpc, which is in {FOLDER / model}")
    folder = Path(model)
    if looks_like_hub_name(model) and not folder.exists():
        why = f"it is not looked for on the Hub, since {folder.parts[0]} is a local folder"
        raise ValueError(f"there is no folder {model}, and {why}")
    is_run = (folder / "model" / _CONFIG).exists() and not (folder / _CONFIG).exists()
    return folder / "model" if is_run else folder


def is_named(model: str | Path) -> bool:
    """Return whether this is the name of a shipped model or of a model on the Hub, and no local folder."""
    return is_shipped(model) or is_hub_name(model)


def place_of_results(model: str | Path, name: str, out: str | Path | None) -> Path:
    """Return the file for results: `out`, or the file `name` in the folder of the model."""
    if out is None and is_named(model):
        where = "ships with cpc" if is_shipped(model) else "is a model of the Hub"
        raise ValueError(f"{model} {where}, and has no local folder for {name}: name a file with `out`")
    path = Path(model) / name if out is None else Path(out)
    Writable(is_folder=False).check("`out`", path)
    return path


def read_checkpoint(
    path: str | Path, *, entries: Mapping[str, type] = _CHECKPOINT_ENTRIES, written_by: str = "cpc pretrain"
) -> dict[str, Any]:
    """Read the checkpoint from which a run resumes; see `read_torch_archive`.

    `entries` are the required entries and their types, with dots for nested entries; integers must not be negative.
    `written_by` is the command that writes these checkpoints, for messages.
    """
    checkpoint = read_torch_archive(path, written_by)
    values = {name: reduce(_entry, name.split("."), checkpoint) for name in entries}
    wrong = [
        name
        for name, kind in entries.items()
        if not isinstance(values[name], kind) or (kind is int and values[name] < 0)
    ]
    if wrong:
        raise ValueError(f"{path} was not written by {written_by}: it lacks {', '.join(wrong)}, or a count is negative")
    return dict(checkpoint)


def _entry(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def nonfinite_names(model: nn.Module) -> list[str]:
    """Return the names of weights and statistics that are infinite or not a number.

    Minus infinity is allowed in samplers, which may store the log of a probability of zero.
    """
    return [
        name
        for name, values in model.state_dict().items()
        if not (values.isfinite() | (values.isneginf() & name.startswith("loss_part.sampler."))).all()
    ]


def _converted(weight: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    if not weight.is_floating_point():
        return weight
    converted = weight.to(dtype)
    if not torch.equal(converted.isfinite(), weight.isfinite()):
        raise ValueError(f"{name} has values up to {weight.abs().max():g}, too large for {dtype}: keep another type")
    return converted


def _finish_save(folder: Path) -> None:
    """Rename new weights if config.json names them; otherwise the save has failed, and they are deleted."""
    new_weights = folder / _NEW_WEIGHTS
    if new_weights.exists():
        if (folder / _CONFIG).exists() and read_config(folder)["sha256"] == _sha256(new_weights):
            os.replace(new_weights, folder / _WEIGHTS)
        else:
            new_weights.unlink()


class _Budget(TorchDispatchMode):
    """A limit on the numbers and tensors that building a model allocates, relative to the size of its weights.

    The limit is generous: some networks are built with classifiers that are later removed, and samplers build tables.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_left = 4 * num_bytes + 2**28  # numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Count the numbers that an operation without tensor operands allocates, before it runs."""
        if not any(isinstance(arg, Tensor) for arg in args):
            sizes = next((arg for arg in args if isinstance(arg, list | tuple)), args)
            num = math.prod(size for size in sizes if type(size) is int)
            self.num_left -= max(num, 2**14)  # cost of a tensor, in numbers, besides its own numbers
            if self.num_left < 0:
                raise ValueError("its sizes need far more numbers than the file of weights holds")
        return func(*args, **(kwargs or {}))


def _shape_and_type(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Return shape and type of a tensor; all floating-point types count as equal, because loading casts them."""
    return tuple(tensor.shape), "floating point" if tensor.is_floating_point() else str(tensor.dtype)


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
