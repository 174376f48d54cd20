"""What features of images take in memory, known before any is computed.

H rows and W columns of patches, D latent dim, C context dim, S image side.
"""

from collections.abc import Sequence

from cpc.model import CPC
from cpc.probes.images.features import hog_dim


def bytes_per_image(model: CPC, image_size: int) -> dict[str, int]:
    """Of each readout, of pixels and of histograms of gradients: means are kept in float32, grids in float16."""
    num_patches = model.encoder.grid.side(image_size) ** 2
    found: dict[str, int] = {}
    for name, dim in (("z", model.encoder.dim), ("c", model.context.dim)):
        found |= {name: 4 * dim, f"{name}_grid": 2 * num_patches * dim}
    return found | {"pixels": 4 * model.encoder.num_channels * image_size**2, "hog": 4 * hog_dim(image_size)}


def check_memory(
    per_image: dict[str, int],
    num_images: int,
    features: Sequence[str],
    baselines: Sequence[str],
    *,
    are_kept: bool,
    max_ram_bytes: int,
) -> None:
    """Ask whether what is held at a time fits: the model's features, or a baseline's, or both if the former are kept.

    Args:
        per_image: as `bytes_per_image` gives it.
        num_images: of the training and test parts together.
        features: readouts of the model; of untrained ones too, with the baseline `random`.
        baselines: those that are features count.
        are_kept: whether the model's features are still needed when baselines are computed.
        max_ram_bytes: what may be held.

    Raises:
        ValueError: if it does not; the message says what takes how much.
    """
    of_model = {name: num_images * per_image[name] for name in features}
    others = {name: num_images * per_image[name] for name in ("pixels", "hog") if name in baselines}
    if "random" in baselines:
        others["random"] = sum(of_model.values())
    largest = max(others, key=others.__getitem__, default=None)
    at_a_time = [of_model, {} if largest is None else {largest: others[largest]}]
    if are_kept:
        at_a_time = [{**of_model, **at_a_time[1]}]
    for held in at_a_time:
        if sum(held.values()) > max_ram_bytes:
            sizes = ", ".join(f"{name} {size / 1e9:.2g} GB" for name, size in held.items())
            raise ValueError(
                f"features of {num_images} images take more than max_ram_gb={max_ram_bytes / 1e9:g}: {sizes}; raise "
                "it, or leave grids or a baseline out"
            )
