"""What features are read from: the data of a model's run, and the same architecture untrained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cpc.config.description import build
from cpc.data.probe_data import ProbeData
from cpc.evaluation import recorded_data
from cpc.model import CPC


def open_probe_data(
    config: Mapping[str, Any],
    model: CPC,
    source: str | Path | None,
    *,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    trusted_packages: tuple[str, ...] = ("cpc",),
    data_options: Mapping[str, Any] | None = None,
    **where: Any,
) -> ProbeData:
    """Open the data that a model was trained on, or another source of such data, for probes.

    Args:
        config: the model's config.json.
        model: the model.
        source: in place of the run's; None: only files outside a corpus are read.
        cache_dir: of packed data; beside the source unless given.
        skip_bad: go on without files that cannot be used.
        trusted_packages: packages whose classes config.json may name.
        data_options: fields of the data, in place of the run's.
        where: `train_split`, `device` and `precision` of `ProbeData`.

    Raises:
        ValueError: if config.json does not say what the data were, they cannot be probed, or the source cannot be read.
    """
    options = {"cache_dir": None if cache_dir is None else str(cache_dir), "skip_bad": skip_bad, **(data_options or {})}
    data = recorded_data(config, source or "unknown", trusted_packages=trusted_packages, **options)
    data.check_encoder(model.encoder)
    outside = data.readouts(model.encoder, None, **where)  # refuses data that cannot be probed before they are opened
    return outside if source is None else data.readouts(model.encoder, data.open(model.encoder), **where)


def build_untrained(
    config: Mapping[str, Any], probe_data: ProbeData, trusted_packages: tuple[str, ...], seed: int
) -> CPC:
    """The architecture of a model with other weights, initialised as training would, in eval mode.

    Args:
        config: the model's config.json.
        probe_data: of the data; the model goes to their device.
        trusted_packages: packages whose classes config.json may name.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: CPC = build(config["architecture"], trusted_packages=trusted_packages)
    probe_data.initialise(made, seed)
    return made.to(probe_data.device).eval()


def check_names(option: str, given: Sequence[str], legal: Sequence[str]) -> None:
    """Raises a ValueError if an option names what is not legal."""
    unknown = [name for name in given if name not in legal]
    if unknown or isinstance(given, str):
        raise ValueError(f"{option}={given!r}: legal are {', '.join(legal)}")
