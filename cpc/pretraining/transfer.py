"""Initialisation from the weights of a saved model."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpc.checkpoint import load_pretrained
from cpc.config.description import describe
from cpc.model import CPC
from cpc.predictors import Bilinear


def start_from(model: CPC, folder: str | Path) -> None:
    """Copy the encoder of a saved model and every other part that fits; print the other parts on stderr.

    Bilinear predictors copy the W_k of the steps that both models have. The encoder's input statistics are also copied,
    because its weights were trained on inputs that these statistics standardise; so are the names and units of its
    channels, unless the new encoder has some.
    """
    if model.loss_part.predicts == "classes":
        raise ValueError("--init_from needs a model that predicts latents: tokens of another corpus differ")
    packages = {path.partition(".")[0] for path in _class_paths(describe(model))}  # the config names these classes
    saved = load_pretrained(folder, trusted_packages=("cpc", *sorted(packages - {"cpc"})))
    for name, part in model.named_children():
        saved_part = getattr(saved, name)
        difference = _difference(saved_part, part)
        if name == "encoder" and difference is None and saved.encoder.geometry != part.geometry:
            # Encoders of different observations may have tensors of equal shapes.
            difference = f"{saved.encoder.geometry} in the saved model, {part.geometry} here"
        units = getattr(saved_part, "units", None)
        if name == "encoder" and difference is None and units and part.units not in (None, units):
            difference = f"units {units} in the saved model, {part.units} here; leave units out to convert recordings"
        steps, new_steps = (each.predictor_steps for each in (saved, model))
        if name == "predictors" and difference is None and steps != new_steps:
            # Predictors of equally many other steps have tensors of equal shapes.
            difference = f"steps {steps} in the saved model, {new_steps} here"
        if difference is None:
            part.load_state_dict(saved_part.state_dict())
            for argument in getattr(part, "from_data", ()):
                setattr(part, argument, getattr(part, argument) or getattr(saved_part, argument))
            settings = _changed_settings(saved_part, part)
            if settings:
                print(f"--init_from {folder}: model.{name} is copied, with {settings}", file=sys.stderr)
        elif name == "encoder":
            raise ValueError(f"--init_from {folder}: its encoder does not fit model.encoder: {difference}")
        elif name == "predictors" and _copy_shared_steps(saved, model):
            details = f"in shared steps; other steps start anew, with {_changed_settings(saved_part, part)}"
            print(f"--init_from {folder}: model.{name} is copied {details}", file=sys.stderr)
        else:
            print(f"--init_from {folder}: model.{name} starts anew: {difference}", file=sys.stderr)
    model.is_initialised.copy_(saved.is_initialised)


@torch.no_grad()
def _copy_shared_steps(saved: CPC, new: CPC) -> bool:
    """Copy the shared W_k and return True if all predictors are bilinear, differ only in their steps, and share one."""
    pairs = [
        (old_part, new_part)
        for old_part, new_part in zip(saved.predictors, new.predictors, strict=False)
        if isinstance(old_part, Bilinear)
        and isinstance(new_part, Bilinear)
        and (old_part.context_dim, old_part.latent_dim) == (new_part.context_dim, new_part.latent_dim)
    ]
    if not len(pairs) == len(saved.predictors) == len(new.predictors):
        return False
    steps, new_steps = saved.predictor_steps, new.predictor_steps
    shared = [step for step in new_steps if step in steps]
    for old_part, new_part in pairs:
        for step in shared:
            new_part.weights[new_steps.index(step)] = old_part.weights[steps.index(step)]
    return bool(shared)


def _class_paths(description: dict[str, Any]) -> Iterator[str]:
    yield description["class_path"]
    for value in description["init_args"].values():
        if isinstance(value, dict) and "class_path" in value:
            yield from _class_paths(value)


def _difference(saved: nn.Module, new: nn.Module) -> str | None:
    """Return the first difference: another class, or a tensor that is missing or has another shape; None if all fit."""
    saved_shapes, new_shapes = (
        {name: str(list(tensor.shape)) for name, tensor in part.state_dict().items()} for part in (saved, new)
    )
    for name in saved_shapes | new_shapes:
        there, here = (shapes.get(name, "missing") for shapes in (saved_shapes, new_shapes))
        if there != here:
            return f"{name} is {there} in the saved model, {here} here"
    return None if type(saved) is type(new) else f"{type(saved).__name__} in the saved model, {type(new).__name__} here"


def _changed_settings(saved: nn.Module, new: nn.Module) -> str:
    """Return the arguments that differ, such as dropout or the number of heads; empty if all are equal."""
    changes = []
    for saved_part, new_part in zip(_parts(saved), _parts(new), strict=True):
        old, now = (describe(part)["init_args"] for part in (saved_part, new_part))
        changes += [
            f"{name} {old.get(name)} in the saved model, {now[name]} here" for name in now if now[name] != old.get(name)
        ]
    return "; ".join(dict.fromkeys(changes))


def _parts(module: nn.Module) -> list[nn.Module]:
    return list(module) if isinstance(module, nn.ModuleList) else [module]
