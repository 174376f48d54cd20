"""Save a model as a folder of model.safetensors and config.json, and load it; read the checkpoint a run resumes from.

Files may come from anywhere: reading one runs none of its code (docs/records.md).

config.json names every part by class and arguments, in the dialect of the YAML configs, so a folder needs no code of
the run that wrote it. It also has the sha256 of its weights: two files cannot be replaced at once, so new weights wait
beside the old ones until config.json names them.
"""

import hashlib
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpc.config.argument_rules import Writable
from cpc.config.description import build, describe
from cpc.data.store.atomic import write_json
from cpc.data.store.untrusted import open_regular, read_json, require_regular
from cpc.interop.hub import fetch_model, is_hub_name
from cpc.model import CPC

FORMAT_VERSION = 1
_WEIGHTS, _WAITING_WEIGHTS, _CONFIG = "model.safetensors", "model.safetensors.new", "config.json"
_ENTRIES = {"architecture": dict, "sha256": str, "provenance": dict}  # of a config.json that cpc reads, and their types
_SAVED = {  # in a checkpoint
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


def save_pretrained(model: CPC, folder: str | Path, *, provenance: dict[str, Any] | None = None) -> None:
    """Write weights and description; if this fails or is killed, the folder holds either the old model or the new one.

    Weights that ranks share (FSDP2's `fully_shard`) are gathered: all ranks call it at once, and the first one writes.

    Args:
        model: what to save.
        folder: made if it does not exist.
        provenance: facts to keep beside the architecture: corpus, steps, seed, bound.

    Raises:
        TypeError: if the architecture or the provenance holds what JSON does not know.
        ValueError: if a number in them is not finite.
    """
    weights = model.state_dict()
    if any(map(_is_sharded, weights.values())):
        weights = {name: each.full_tensor() if _is_sharded(each) else each for name, each in weights.items()}
        if dist.get_rank() > 0:
            return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _settle(folder)
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / _WAITING_WEIGHTS)
        content = {
            "format_version": FORMAT_VERSION,
            "architecture": describe(model),
            "modality": model.encoder.modality,
            **model.encoder.geometry,
            "sha256": _sha256(folder / _WAITING_WEIGHTS),
            "provenance": provenance or {},
        }
        write_json(content, folder / _CONFIG)
    finally:
        _settle(folder)


def _is_sharded(weight: Any) -> bool:
    return hasattr(weight, "full_tensor")  # to import its class, DTensor, takes two seconds


def load_pretrained(
    folder: str | Path,
    *,
    revision: str | None = None,
    device: str = "cpu",
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> CPC:
    """Read a saved model back, in eval mode.

    Args:
        folder: as written by `save_pretrained`; a run folder that holds one under `model/` will do; or a model of the
            Hugging Face Hub, as `ORG/NAME` or `ORG/NAME@REVISION` (`cpc.interop.hub.fetch_model`).
        revision: of the Hub's: a branch, tag or commit.
        device: where to put it, as torch names it: `cpu`, `cuda`, `cuda:1`.
        trusted_packages: packages whose classes a config.json may name.

    Raises:
        ValueError: naming the file, if there is no model in the folder, one of its files is damaged, weights and
            description do not fit, or a weight is not finite; naming the device, if it cannot be used.
        ConnectionError: if the Hub cannot be reached.
    """
    folder = model_folder_of(folder, revision)
    config = read_config(folder)
    weights = weights_of(folder)
    try:
        found = load_file(weights)
        with _Budget(weights.stat().st_size):
            model = build(config["architecture"], trusted_packages=trusted_packages)
    except SafetensorError as error:
        raise ValueError(f"{weights} cannot be read, damaged or another kind of file? {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / _CONFIG} does not describe a model that can be built: {error}") from error
    if not isinstance(model, CPC):
        raise ValueError(f"{folder / _CONFIG} describes a {type(model).__name__}, not a CPC model")
    try:
        facts = {"modality": model.encoder.modality, **model.encoder.geometry}
    except AttributeError as error:
        raise ValueError(f"{folder / _CONFIG} describes a model whose encoder is none: {error}") from error
    for name, fact in facts.items():
        if config.get(name, fact) != fact:
            raise ValueError(
                f"{folder / _CONFIG} has {name} {config[name]!r}, but its encoder {fact!r}: edited? Export again"
            )
    expected = model.state_dict()
    differing = sorted(found.keys() ^ expected.keys()) + [
        f"{name}: {_kind(found[name])} in the file, {_kind(tensor)} in the architecture"
        for name, tensor in expected.items()
        if name in found and _kind(found[name]) != _kind(tensor)
    ]
    if differing:
        raise ValueError(f"{weights} does not fit its architecture: {'; '.join(differing[:5])}")
    model.load_state_dict(found)
    broken = nonfinite_names(model)
    if broken:
        raise ValueError(f"{weights} holds values that are not finite, in {', '.join(broken[:5])}: export again")
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used: {reason}; `cpc doctor` shows what there is") from error


def read_config(folder: str | Path) -> dict[str, Any]:
    """The config.json of a model folder, of a run folder that holds one, or of a model of the Hub.

    Raises:
        ValueError: if there is none, it is damaged, or it was written by a later version.
    """
    path = model_folder_of(folder) / _CONFIG
    if not path.exists():
        raise ValueError(
            f"{folder} holds no model: config.json and model.safetensors are looked for there and in its 'model' folder"
        )
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
        raise ValueError(f"{path} lacks {', '.join(wrong)}: not written by cpc, or edited; export again")
    return config


def weights_of(model: str | Path) -> Path:
    """The weights that config.json names, which a killed save may have left waiting.

    Raises:
        ValueError: if they are not there, or others.
    """
    folder, sha256 = model_folder_of(model), read_config(model)["sha256"]
    candidates = [path for path in (folder / _WEIGHTS, folder / _WAITING_WEIGHTS) if path.exists()]
    if not candidates:
        raise ValueError(f"{folder} has a {_CONFIG} but no {_WEIGHTS}: copy the whole model folder")
    for path in candidates:
        if _sha256(path) == sha256:
            return path
    raise ValueError(
        f"{folder / _WEIGHTS} is not the file that {_CONFIG} describes: cut off, or of another export; copy both "
        "files of one export, or export the model again"
    )


def model_folder_of(model: str | Path, revision: str | None = None) -> Path:
    """Where config.json and the weights of a model lie, or would lie; a model of the Hub is fetched.

    Args:
        model: a model folder, a run folder that holds one under `model/`, or a name on the Hub (`cpc.interop.hub`).
        revision: of the Hub's.

    Raises:
        ValueError: if a folder has a revision; as `cpc.interop.hub.fetch_model`.
        ConnectionError: as there.
    """
    if is_hub_name(model):
        return fetch_model(str(model), revision)
    if revision is not None:
        raise ValueError(f"revision={revision!r} is of models on the Hub, and {model} is a folder: leave it out")
    folder = Path(model)
    return folder if (folder / _CONFIG).exists() else folder / "model"


def place_of_results(model: str | Path, name: str, out: str | Path | None) -> Path:
    """The file that results are written to: `out`, or one of this name in the model's folder.

    Raises:
        ValueError: if neither is a place to write to.
        OSError: if the system refuses to write there.
    """
    if out is None and is_hub_name(model):
        raise ValueError(f"{model} is a model of the Hub, which has no folder here for {name}: name a file by `out`")
    path = Path(model) / name if out is None else Path(out)
    Writable(is_folder=False).check("out", path)
    return path


def read_checkpoint(
    path: str | Path, *, entries: Mapping[str, type] = _SAVED, written_by: str = "cpc pretrain"
) -> dict[str, Any]:
    """What a run saved to go on from: every byte is compared with its checksum, tensors are mapped, no code is run.

    Args:
        path: of the file.
        entries: that it must hold, those within others after a dot, and their types; whole numbers are counts.
        written_by: the command whose runs save these.

    Raises:
        ValueError: naming the file, if it is damaged, holds more than tensors and plain values, or was not written by
            that command.
        OSError: if there is no such file.
    """
    found = read_torch_archive(path, written_by)
    values = {name: _entry(found, name) for name in entries}
    missing = [name for name, kind in entries.items() if not isinstance(values[name], kind)]
    if missing:
        raise ValueError(f"{path} was not written by {written_by}: it holds no {', '.join(missing)}")
    negative = [f"{name} {values[name]}" for name, kind in entries.items() if kind is int and values[name] < 0]
    if negative:
        raise ValueError(f"{path} was not written by {written_by}: it holds {', '.join(negative)}")
    return dict(found)


def _entry(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def read_torch_archive(path: str | Path, written_by: str) -> Any:
    """What `torch.save` wrote: every byte is compared with its checksum, tensors are mapped, no code is run.

    Args:
        path: of the file.
        written_by: whose files these are, for messages.

    Raises:
        ValueError: naming the file, if it is damaged, or holds more than tensors and plain values.
        OSError: if there is no such file.
    """
    require_regular(path)
    names: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type for member in archive.infolist()):  # torch compresses none
                raise zipfile.BadZipFile("a member is compressed")
            if archive.testzip() is not None:  # torch compares no checksums
                raise zipfile.BadZipFile("a checksum differs")
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        found = None if names else torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except UnpicklingError:
        names = names or ["objects"]
    except Exception as error:  # a damaged file breaks its reader in a dozen ways
        raise ValueError(f"{path} cannot be read: cut off, damaged, or no checkpoint at all") from error
    if names:
        raise ValueError(
            f"{path} holds {', '.join(names)}, by which reading it could run code: refused. A checkpoint of "
            f"{written_by} is made of tensors, numbers and text alone"
        )
    return found


def nonfinite_names(model: nn.Module) -> list[str]:
    """The names of the weights and statistics that are infinite or not a number.

    The laws of samplers may hold the logarithm of a probability of zero.
    """
    return [
        name
        for name, values in model.state_dict().items()
        if not (values.isfinite() | (values.isneginf() & name.startswith("loss_part.sampler."))).all()
    ]


def _settle(folder: Path) -> None:
    """Put waiting weights in place if config.json names them; otherwise their save has failed, and they go."""
    waiting = folder / _WAITING_WEIGHTS
    if waiting.exists():
        if (folder / _CONFIG).exists() and read_config(folder)["sha256"] == _sha256(waiting):
            os.replace(waiting, folder / _WEIGHTS)
        else:
            waiting.unlink()


class _Budget(TorchDispatchMode):
    """Ends the building of a model that asks for far more numbers, or tensors, than its file of weights accounts for.

    A bound, not an estimate: networks are built with classifiers that are cut off, samplers with tables of their own.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.left = 4 * num_bytes + 2**28  # numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Count what an operation without operands will allocate, before it does."""
        if not any(isinstance(arg, Tensor) for arg in args):
            sizes = next((arg for arg in args if isinstance(arg, list | tuple)), args)
            self.left -= max(math.prod(size for size in sizes if type(size) is int), 2**14)  # the cost of a tensor
            if self.left < 0:
                raise ValueError("its sizes ask for far more numbers than the file of its weights holds")
        return func(*args, **(kwargs or {}))


def _kind(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and type; weights of any precision are cast."""
    return tuple(tensor.shape), "floating point" if tensor.is_floating_point() else str(tensor.dtype)


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
