"""`cpc import`: convert checkpoints of CPC_audio (Riviere et al. 2020, arXiv:2002.02848) to models of cpc.

CPC_audio's ChannelNorm divides by the root of epsilon + the unbiased variance over D channels. The layer norm of cpc
uses the biased variance. To correct for this, the scale is multiplied by sqrt((D - 1) / D), and epsilon by (D - 1) / D.
Scores of CPC_audio are means over D, scores of cpc are sums. So the predictors are multiplied by 1 / D. A trained batch
norm is a scale and a shift of each channel, like cpc's norm `affine`.

D latent dim, C context dim, K prediction steps.
"""

import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpc.checkpoint import nonfinite_names, save_pretrained
from cpc.config.argument_rules import Choices, NewFolder, Range, checked
from cpc.contexts import GRU, LSTM
from cpc.data.store.untrusted import open_regular, read_json, read_torch_archive, reading
from cpc.data.tensors import check_count
from cpc.encoders import AudioEncoder
from cpc.encoders.convolution import NORM_EPSILON, Norm
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.pages.report import written
from cpc.predictors import Bilinear

describe_result = written
ARGUMENTS_NAME = "checkpoint_args.json"
_NUM_STEPS = 12  # default of nPredicts
_DEFAULTS = {"negativeSamplingExt": 128, "sizeWindow": 20480}
_LEGAL = {  # legal values of arguments; the shapes of the weights determine all others
    "encoder_type": ("cpc", None),
    "cpc_mode": ("none", None),
    "arMode": ("GRU", "LSTM", None),
    "normMode": ("layerNorm", "batchNorm", "ID", None),
}
_MOST_STEPS = 1024
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # first bytes of files of torch.save before 1.6
_EPSILON = 1e-5  # epsilon of CPC_audio's norms
_COUNTER = re.compile(r"gEncoder\.batchNorm\d\.num_batches_tracked")
Weights = dict[str, Tensor]


@checked
def import_checkpoint(checkpoint: str | Path, *, out: NewFolder) -> Path:
    """Write a checkpoint of CPC_audio as a model folder; encoder, GRU or LSTM, and predictors stay exactly equal.

    Predictors that are not linear in c, for example those that also read the speaker or several contexts, are not
    imported, and a message says so. No code of the file is run. Every byte is compared with its checksum, except in
    files of torch before 1.6, which have none. `checkpoint_args.json` is read if it lies beside the file. In CPC_audio
    a model with samplingType `sequential` carries its state over from file to file; the imported model starts each file
    with a new state.

    Args:
        checkpoint: `checkpoint_N.pt`, or a file with `config` and `weights`, the format of s3prl.
        out: a new folder for the model.

    Returns:
        The folder.

    Raises:
        ValueError: if `out` exists, or the file is damaged, is not a checkpoint of CPC_audio, holds a model that cpc
            does not have, or holds weights that are not finite.
        OSError: if there is no such file.
    """
    path = Path(checkpoint)
    checkpoint_data = _read(path)
    arguments = _arguments(path, checkpoint_data)
    for name, legal in _LEGAL.items():
        Choices(legal).check(f"{path}: {name}", arguments.get(name))
    weights = _remove_prefix(path, checkpoint_data.get("gEncoder", checkpoint_data.get("weights")))
    criterion = _remove_prefix(path, checkpoint_data.get("cpcCriterion") or {})
    kernel = _require(path, weights, "gEncoder.conv0.weight", num_axes=3)
    hidden = _require(path, weights, "gAR.baseNet.weight_hh_l0", num_axes=2)
    predictors = _linear_predictors(criterion, (len(kernel), hidden.shape[1]))
    legal_numbers = (0, arguments.get("nPredicts", len(predictors)))
    Choices(legal_numbers).check(f"{path}: the number of predictors", len(predictors))
    num_steps = len(predictors) or arguments.get("nPredicts", _NUM_STEPS)
    model = _build(path, weights, num_steps, arguments["negativeSamplingExt"])
    _copy_weights(model, path, weights)
    if predictors:
        _load(path, model.predictor.linear, {"weight": torch.cat(predictors) / len(kernel)})
    else:
        reason = "the predictors are not linear in c" if criterion else "there are no predictors"
        print(f"{path}: {reason}, so none are imported; the new model has untrained predictors", file=sys.stderr)
    if broken := nonfinite_names(model):
        raise ValueError(f"{path} holds values that are not finite, in {', '.join(broken[:5])}")
    data = {"manifest": "unknown", "window_samples": arguments["sizeWindow"]}
    plain = {name: value for name, value in arguments.items() if isinstance(value, bool | int | float | str | None)}
    provenance = {"data": {"class_path": "cpc.data.Audio", "init_args": data}, "cpc_audio": plain}
    save_pretrained(model.eval(), out, provenance=provenance)
    return Path(out)


def _read(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        start = file.read(len(_LEGACY))
    if zipfile.is_zipfile(path):
        checkpoint = read_torch_archive(path, "CPC_audio")
    elif start == _LEGACY:  # of torch before 1.6, without checksums
        with reading(path, "is damaged, or holds objects that could run code: only tensors and plain values are read"):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    else:
        raise ValueError(f"{path} cannot be read: cut off, damaged, or no checkpoint at all: it begins with {start!r}")
    if not isinstance(checkpoint, dict) or not {"gEncoder", "weights"} & set(checkpoint):
        raise ValueError(f"{path} is not a checkpoint of CPC_audio: it holds neither `gEncoder` nor `weights`")
    return checkpoint


def _arguments(path: Path, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    file = path.parent / ARGUMENTS_NAME
    config = checkpoint.get("config")
    if config is None and file.is_file():
        config = read_json(file)
    if not isinstance(config, dict | None):
        raise ValueError(f"{path}: the arguments are a {type(config).__name__}, but must be a mapping")
    arguments = _DEFAULTS | (config or {})
    for name in (*_DEFAULTS, "nPredicts"):
        check_count(f"{path}: {name}", arguments.get(name, 1), 1)
    Range(1, _MOST_STEPS).check(f"{path}: nPredicts", arguments.get("nPredicts", 1))
    return arguments


def _remove_prefix(path: Path, weights: Any) -> Weights:
    """Return the weights by name, without DataParallel's prefix `module.`."""
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise ValueError(f"{path} is not a checkpoint of CPC_audio: `gEncoder` or `weights` must map names to tensors")
    return {name.removeprefix("module."): value for name, value in weights.items()}


def _linear_predictors(criterion: Weights, shape: tuple[int, int]) -> list[Tensor]:
    """Return the linear predictor of each step; an empty list if a predictor is not linear."""
    names = [name for name in criterion if name.startswith("wPrediction.")]
    weights = [criterion.get(f"wPrediction.predictors.{k}.weight") for k in range(len(names))]
    linear = [weight for weight in weights if weight is not None and weight.shape == shape]
    return linear if len(linear) == len(names) else []


def _build(path: Path, weights: Weights, num_steps: int, num_negatives: int) -> CPC:
    """Build a model of the architecture that the shapes of the weights imply."""
    kernel, hidden = (weights[name] for name in ("gEncoder.conv0.weight", "gAR.baseNet.weight_hh_l0"))
    num_gates = hidden.shape[0] / max(hidden.shape[1], 1)
    contexts = {3: GRU, 4: LSTM}
    Choices(tuple(contexts)).check(f"{path}: the number of gates of the recurrent network", num_gates)
    num_layers = sum(name.startswith("gAR.baseNet.weight_hh_l") for name in weights)
    dim, norm = len(kernel), _norm(path, weights)
    epsilon = _EPSILON * (dim - 1) / dim if norm == "layer" and dim > 1 else NORM_EPSILON
    return CPC(
        AudioEncoder(dim=dim, norm=norm, norm_epsilon=epsilon),
        contexts[int(num_gates)](dim=hidden.shape[1], num_layers=num_layers),
        Bilinear(num_steps=num_steps),
        Contrastive(negatives="mixed", num_negatives=num_negatives),
    )


def _norm(path: Path, weights: Weights) -> Norm:
    scale = weights.get("gEncoder.batchNorm0.weight")
    if scale is None:
        return "none"
    if scale.ndim == 3:
        return "layer"
    if "gEncoder.batchNorm0.running_mean" in weights:
        return "affine"
    raise ValueError(f"{path}: cpc has no instance norm over time, because with it latents depend on the future")


@torch.no_grad()
def _copy_weights(model: CPC, path: Path, weights: Weights) -> None:
    """Copy every weight of encoder and context to the corresponding parameter of the model."""
    new = {
        name: weights[f"gAR.baseNet.{name}"]
        for name in model.context.layers.state_dict()
        if f"gAR.baseNet.{name}" in weights
    }
    copied = {f"gAR.baseNet.{name}" for name in new}
    _load(path, model.context.layers, new)
    norms = {"layer": ("weight", "bias"), "affine": ("weight", "bias", "running_mean", "running_var")}
    for index, layer in enumerate(model.encoder.layers):
        names = [f"gEncoder.conv{index}.weight", f"gEncoder.conv{index}.bias"]
        names += [f"gEncoder.batchNorm{index}.{name}" for name in norms.get(model.encoder.norm, ())]
        kernel = _require(path, weights, names[0], num_axes=3)
        bias, *norm = (_require(path, weights, name, num_values=model.encoder.dim) for name in names[1:])
        new = {"weight": kernel, "bias": bias}
        if model.encoder.norm == "layer":
            (scale, shift), dim = (weight.flatten() for weight in norm), model.encoder.dim
            new |= {"layer_norm.weight": scale * ((dim - 1) / dim) ** 0.5, "layer_norm.bias": shift}
        elif model.encoder.norm == "affine":
            gain, shift, mean, variance = norm
            scale = gain * torch.rsqrt(variance + _EPSILON)
            new |= {"scale": scale, "bias": (bias - mean) * scale + shift}
        _load(path, layer, new)
        copied |= set(names)
    unknown = sorted(name for name in set(weights) - copied if not _COUNTER.fullmatch(name))
    if unknown:
        raise ValueError(f"{path} holds weights that the model of cpc does not have: {', '.join(unknown[:5])}")
    model.is_initialised.fill_(True)


def _require(
    path: Path, weights: Weights, name: str, num_axes: int | None = None, num_values: int | None = None
) -> Tensor:
    """Return a weight. Raise an error if the checkpoint lacks it, or it has a wrong number of axes or values."""
    weight = weights.get(name)
    if weight is None or num_axes not in (None, weight.ndim) or num_values not in (None, weight.numel()):
        given = "is missing" if weight is None else f"has the shape {list(weight.shape)}, which it cannot have"
        raise ValueError(f"{path}: the weight {name} {given}: cpc does not have this model")
    return weight


def _load(path: Path, part: torch.nn.Module, new: Weights) -> None:
    try:
        part.load_state_dict(new)
    except RuntimeError as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise ValueError(f"{path}: the weights do not fit a {type(part).__name__} of cpc: {reason}") from error
