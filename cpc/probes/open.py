"""The data and the untrained model of a probe, from a model's config.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cpc.config.description import build
from cpc.data.probe_data import ProbeData
from cpc.evaluation import recorded_data
from cpc.model import CPC
from cpc.probes.store import Extraction


def open_probe_data(
    config: Mapping[str, Any],
    model: CPC,
    source: str | Path | None,
    extraction: Extraction | None = None,
    train_split: str | None = "train",
    *,
    trusted_packages: tuple[str, ...] = ("cpc",),
    data_options: Mapping[str, Any] | None = None,
) -> ProbeData:
    """Open the data that a model was trained on, or another source of such data, for probes.

    Call `prepare` of the result before features are computed.

    Args:
        config: the model's config.json.
        model: the model.
        source: source of the data; None if only files outside a corpus will be read.
        extraction: how features are computed and kept.
        train_split: `train_split` of `ProbeData`.
        trusted_packages: packages whose classes config.json may name.
        data_options: fields of the data that differ from the run's.

    Raises:
        ValueError: if config.json does not describe the data, the data cannot be probed, or the source cannot be read.
    """
    extraction = extraction or Extraction()
    cache_dir = None if extraction.cache_dir is None else str(extraction.cache_dir)
    options = {"cache_dir": cache_dir, "skip_bad": extraction.skip_bad, **(data_options or {})}
    data = recorded_data(config, source or "unknown", trusted_packages=trusted_packages, **options)
    data.check_encoder(model.encoder)
    where = {"train_split": train_split, "device": extraction.device, "precision": extraction.precision}
    outside = data.probe_data(model.encoder, None, **where)  # refuses data that cannot be probed before they are opened
    return outside if source is None else data.probe_data(model.encoder, data.open(model.encoder), **where)


def build_untrained(
    config: Mapping[str, Any], probe_data: ProbeData, trusted_packages: tuple[str, ...], seed: int
) -> CPC:
    """Build the architecture of a model with untrained weights, initialised as in training, in eval mode.

    Args:
        config: the model's config.json.
        probe_data: the data of the initialisation; the model goes to their device.
        trusted_packages: packages whose classes config.json may name.
        seed: seed of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: CPC = build(config["architecture"], trusted_packages=trusted_packages)
    probe_data.initialise(model, seed)
    return model.to(probe_data.device).eval()


def check_names(option: str, names: Sequence[str], legal: Sequence[str]) -> None:
    """Check that an option names only legal values.

    Raises:
        ValueError: if a value is not legal. The message names the option and the legal values.
    """
    unknown = [name for name in names if name not in legal]
    if unknown or isinstance(names, str):
        raise ValueError(f"{option}={names!r} must be among {', '.join(legal)}")
