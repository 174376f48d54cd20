"""`cpc.pretrain`: a pretraining from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from cpc.config.argument_rules import Count, checked
from cpc.config.description import class_of, describe
from cpc.data.modality import Modality
from cpc.data.store.untrusted import read_yaml
from cpc.pretraining.command import run_pretraining
from cpc.pretraining.run import Run

DEFAULT_DATA = "cpc.data.Audio"


@checked
def pretrain(
    config: str | Path | Mapping[str, Any],
    data: str | Path | Modality | Mapping[str, Any] | None = None,
    *,
    run_dir: str | Path | None = None,
    max_steps: Count | None = None,
    model: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Run one pretraining, as `cpc pretrain` does, and return its folder.

        run = cpc.pretrain("configs/small_speech.yaml", "recordings", run_dir="runs/mine", max_steps=200)
        run.figure()

    Args:
        config: a YAML file of configs/, or the same as a mapping. Parts of the model may also be objects, such as
            `{"model": {"encoder": cpc.encoders.AudioEncoder(dim=256), ...}}`. An object stands for its class and its
            arguments: the weights of the run are drawn from its seed.
        data: the source of the data, such as the folder of a manifest; or a modality, such as `cpc.data.Audio(...)`; or
            fields of the config's modality that differ.
        run_dir: folder of the run, new for a new run.
        max_steps: optimiser steps of the whole run.
        model: fields of the config's model that differ.
        trainer: options of the trainer that differ, such as `{"accelerator": "cpu", "precision": "bf16-mixed"}`.
        options: further options of `cpc pretrain`: seed_everything, ckpt_path, init_from, record_every_steps,
            eval_every_steps, checkpoint_every_steps, compile.

    Raises:
        ValueError: before training, if an option is unknown, invalid, or contradicts another (the message names them),
            or another process trains in the run's folder.
        KeyboardInterrupt: after an interrupt; the first finishes the step and saves.
    """
    content = read_yaml(config) if isinstance(config, (str, Path)) else _described(config)
    if not isinstance(content, dict):
        raise ValueError(f"{config} is not a mapping of options")
    given = {"data": _of_data(data, content), "model": model, "trainer": trainer, "run_dir": run_dir and str(run_dir)}
    given |= options
    if max_steps is not None:
        given["trainer"] = {**(trainer or {}), "max_steps": max_steps}
    return run_pretraining(_merge(content, _described({k: value for k, value in given.items() if value is not None})))


def _of_data(data: Any, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the data as a section of a config."""
    path = config.get("data", {}).get("class_path", DEFAULT_DATA)
    if data is None or isinstance(data, Mapping):
        return data if data is None or "class_path" in data else {"class_path": path, "init_args": data}
    if isinstance(data, Modality):
        return data.saved_settings | {"init_args": data.options}
    kind = class_of(path, trusted_packages=(path.partition(".")[0],), kind=Modality)
    return {"class_path": path, "init_args": {kind.source_option: str(data)}}


def _described(config: Any) -> Any:
    """Return a config with objects replaced by their class and arguments."""
    if isinstance(config, Mapping):
        return {name: _described(value) for name, value in config.items()}
    return describe(config) if isinstance(config, nn.Module) else config


def _merge(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with changes. A part of another class replaces the whole part."""
    merged = dict(config)
    for name, change in changes.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(change, Mapping):
            is_same_class = change.get("class_path", old.get("class_path")) == old.get("class_path")
            merged[name] = _merge(old, change) if is_same_class else change
        else:
            merged[name] = change
    return merged
