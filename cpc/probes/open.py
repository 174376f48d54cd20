"""Which readouts answer for a model: those of the data of its run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpc.data.readouts import Readouts
from cpc.evaluation import recorded_data
from cpc.model import CPC


def open_readouts(
    config: Mapping[str, Any],
    model: CPC,
    source: str | Path | None,
    *,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    trusted_packages: tuple[str, ...] = ("cpc",),
    data_options: Mapping[str, Any] | None = None,
    **where: Any,
) -> Readouts:
    """The readouts of the data that a model was trained on, over a source of such data.

    Args:
        config: the model's config.json.
        model: the model.
        source: in place of the run's; None: only files outside a corpus are read.
        cache_dir: of packed data; beside the source unless given.
        skip_bad: go on without files that cannot be used.
        trusted_packages: packages whose classes config.json may name.
        data_options: fields of the data, in place of the run's.
        where: `train_split`, `device` and `precision` of `Readouts`.

    Raises:
        ValueError: if config.json does not say what the data were, they have no readouts, or the source cannot be read.
    """
    options = {"cache_dir": None if cache_dir is None else str(cache_dir), "skip_bad": skip_bad, **(data_options or {})}
    data = recorded_data(config, source or "", trusted_packages=trusted_packages, **options)
    data.check_encoder(model.encoder)
    outside = data.readouts(model.encoder, None, **where)  # refuses data without readouts before they are opened
    return outside if source is None else data.readouts(model.encoder, data.open(model.encoder), **where)
