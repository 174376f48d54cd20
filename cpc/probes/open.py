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
    """Open another source of the data that a model was trained on, for probes; None to read only single files.

    `config` is the model's config.json, and `data_options` are fields of the data that differ from the run's.
    Call `prepare` of the result before features are computed.

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
    """Build the architecture of a config.json with untrained weights, initialised as in training, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: CPC = build(config["architecture"], trusted_packages=trusted_packages)
    probe_data.initialise(model, seed)
    return model.to(probe_data.device).eval()


def check_names(option: str, names: Sequence[str], legal: Sequence[str]) -> None:
    """Raise ValueError if an option names a value that is not legal."""
    unknown = [name for name in names if name not in legal]
    if unknown or isinstance(names, str):
        raise ValueError(f"{option}={names!r} must be among {', '.join(legal)}")
