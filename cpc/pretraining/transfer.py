"""Start from the weights of a saved model."""

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
    """Take over the encoder of a saved model, and every other part that fits whole; say on stderr which do not.

    Bilinear predictors share the W_k of the steps that both have. The encoder brings its statistics of inputs along:
    its weights have learnt from inputs standardised by these.

    Args:
        model: a new one.
        folder: a model folder, a run folder that holds one, or a model of the Hub (`cpc.interop.hub`).

    Raises:
        ValueError: if there is no such model, its encoder does not fit, or it predicts classes.
    """
    if model.loss_part.predicts == "classes":
        raise ValueError("--init_from takes models that predict latents: tokens of another corpus have other numbers")
    packages = {path.partition(".")[0] for path in _class_paths(describe(model))}  # trusted: the config names them
    saved = load_pretrained(folder, trusted_packages=("cpc", *sorted(packages - {"cpc"})))
    for name, part in model.named_children():
        from_part = getattr(saved, name)
        difference = _difference(from_part, part)
        if name == "encoder" and difference is None and saved.encoder.geometry != part.geometry:
            difference = f"{saved.encoder.geometry} there, {part.geometry} here"  # the same shapes, other observations
        if difference is None:
            part.load_state_dict(from_part.state_dict())
            settings = _other_settings(from_part, part)
            if settings:
                print(f"--init_from {folder}: model.{name} is taken over, with {settings}", file=sys.stderr)
        elif name == "encoder":
            raise ValueError(f"--init_from {folder}: its encoder does not fit model.encoder: {difference}")
        elif name == "predictors" and _take_steps(from_part, part):
            told = f"in the steps that both have, any other starts anew, with {_other_settings(from_part, part)}"
            print(f"--init_from {folder}: model.{name} is taken over {told}", file=sys.stderr)
        else:
            print(f"--init_from {folder}: model.{name} starts anew: {difference}", file=sys.stderr)
    model.is_initialised.copy_(saved.is_initialised)


@torch.no_grad()
def _take_steps(saved: nn.ModuleList, new: nn.ModuleList) -> bool:
    """Take over W_1, W_2, ... as far as both have them, where they are all that bilinear predictors differ in."""
    pairs = [
        (there, here)
        for there, here in zip(saved, new, strict=False)
        if isinstance(there, Bilinear)
        and isinstance(here, Bilinear)
        and (there.context_dim, there.latent_dim) == (here.context_dim, here.latent_dim)
    ]
    if not len(pairs) == len(saved) == len(new):
        return False
    for there, here in pairs:
        here.weights[: there.num_steps] = there.weights[: here.num_steps]
    return True


def _class_paths(described: dict[str, Any]) -> Iterator[str]:
    yield described["class_path"]
    for value in described["init_args"].values():
        if isinstance(value, dict) and "class_path" in value:
            yield from _class_paths(value)


def _difference(saved: nn.Module, new: nn.Module) -> str | None:
    """The first tensor that one of them lacks, or has in another shape; None: there is none."""
    shapes = [{name: list(tensor.shape) for name, tensor in part.state_dict().items()} for part in (saved, new)]
    for name in shapes[0] | shapes[1]:
        there, here = (str(of_part.get(name, "missing")) for of_part in shapes)
        if there != here:
            return f"{name} is {there} there, {here} here"
    return None if type(saved) is type(new) else f"{type(saved).__name__} there, {type(new).__name__} here"


def _other_settings(saved: nn.Module, new: nn.Module) -> str:
    """Arguments that change no shape, such as dropout or the number of heads; empty: all are the same."""
    found = []
    for there, here in zip(_parts(saved), _parts(new), strict=True):
        old, now = (describe(part)["init_args"] for part in (there, here))
        changed = [name for name in now if now[name] != old.get(name)]
        found += [f"{name} {old.get(name)} there, {now[name]} here" for name in changed]
    return "; ".join(dict.fromkeys(found))


def _parts(module: nn.Module) -> list[nn.Module]:
    return list(module) if isinstance(module, nn.ModuleList) else [module]
