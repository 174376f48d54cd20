"""`cpc picture`: what a model works with, drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpc.checkpoint import load_pretrained, read_config
from cpc.config.argument_rules import Count, OutFolder, Seed, checked
from cpc.data.store.atomic import write_atomically
from cpc.evaluation import recorded_data


@checked
def write_pictures(
    model_folder: str | Path,
    data: str | Path,
    out: OutFolder,
    *,
    split: str = "test",
    among: str = "train",
    num_images: Count = 300,
    seed: Seed = 0,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    trusted_packages: Sequence[str] = ("cpc",),
) -> list[Path]:
    """Draw what the model's data know to draw of it: of images, `patches.png`, `neighbours.png` and `map.png`.

    The same model, source and seed give the same pictures.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: the source, as `cpc pretrain` takes it: a folder of images, npz or NAME:ROOT.
        out: folder for the pictures, which replace those that are there.
        split: whose images are shown, and whose patches are looked for.
        among: the split where neighbours are looked for.
        num_images: of each split, at most, drawn at random.
        seed: of all that is drawn.
        cache_dir: where packed data go; beside the source if not given.
        skip_bad: go on without files that cannot be used, and say how many.
        trusted_packages: packages whose classes the model and its data may name.

    Returns:
        The files.

    Raises:
        ValueError: if no pictures are drawn of such models, the model does not say what its data are, or a split cannot
            serve.
    """
    trusted = tuple(trusted_packages)
    cache = None if cache_dir is None else str(cache_dir)
    modality = recorded_data(
        read_config(model_folder), data, trusted_packages=trusted, cache_dir=cache, skip_bad=skip_bad
    )
    model = load_pretrained(model_folder, trusted_packages=trusted)
    modality.check_encoder(model.encoder)
    pictures = modality.pictures(model, split=split, among=among, num_images=num_images, seed=seed)
    paths = []
    for name, picture in pictures.items():
        path = Path(out) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as new:
            picture.savefig(new, format="png")
        paths.append(path)
    return paths


def describe_result(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return the lines that the command line prints."""
    return "\n".join(f"{path} written" for path in paths)
