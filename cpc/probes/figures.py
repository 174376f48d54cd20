"""`cpc figures`: figures of an image model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpc.checkpoint import load_pretrained, read_config
from cpc.config.argument_rules import Count, Device, OutFolder, Seed, checked
from cpc.data.device import find_device
from cpc.data.store.atomic import write_atomically
from cpc.evaluation import recorded_data


@checked
def write_figures(
    model_folder: str | Path,
    data: str | Path,
    out: OutFolder,
    *,
    split: str = "test",
    among: str = "train",
    num_images: Count = 300,
    seed: Seed = 0,
    device: Device = "auto",
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    trusted_packages: Sequence[str] = ("cpc",),
) -> list[Path]:
    """Draw the figures of an image model: `patches.png`, `neighbours.png` and `map.png`.

    The same model, source and seed give the same figures.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: the source, as `cpc pretrain` takes it: a folder of images, npz or NAME:ROOT.
        out: folder for the figures; existing figures are replaced.
        split: split of the images that are shown and of the query patches.
        among: split that is searched for neighbours.
        num_images: maximum number of images of each split, chosen at random.
        seed: seed of the random choices.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        cache_dir: folder of packed data; next to the source if not given.
        skip_bad: leave out files that cannot be used, and print how many.
        trusted_packages: packages whose classes the model and its data may name.

    Returns:
        The files.

    Raises:
        ValueError: if the modality has no figures, config.json does not describe the data, a split cannot be
            used, or the device cannot be used.
    """
    device, trusted = find_device(device), tuple(trusted_packages)
    cache = None if cache_dir is None else str(cache_dir)
    modality = recorded_data(
        read_config(model_folder), data, trusted_packages=trusted, cache_dir=cache, skip_bad=skip_bad
    )
    model = load_pretrained(model_folder, device=device, trusted_packages=trusted)
    modality.check_encoder(model.encoder)
    figures = modality.figures(model, split=split, among=among, num_images=num_images, seed=seed)
    paths = []
    for name, figure in figures.items():
        path = Path(out) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as new:
            figure.savefig(new, format="png")
        paths.append(path)
    return paths


def describe_result(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return the lines that the command line prints."""
    return "\n".join(f"{path} written" for path in paths)
