"""Make the embedded images: python datasets/embedded_images/prepare.py DIR, as the quickstart does (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.sources import describe, read_image_source
from cpc.data.images.table import ImageTable
from cpc.data.synthetic.photographs import write_image_corpora


def prepare_embedded_images(out: Path, seed: int = 0) -> ImageTable:
    """Cut scikit-image's photographs into crops, and enlarge scikit-learn's digits, as the quickstart does.

    Args:
        out: folder for `photographs.npz`, `digits.npz` and `images.json`.
        seed: of the draw of blocks and crops.

    Returns:
        The table of the photographs.

    Raises:
        ValueError: as `write_image_corpora`.
    """
    return read_image_source(write_image_corpora(out, seed=seed)["photographs"])


if __name__ == "__main__":
    prepare_from_command_line(prepare_embedded_images, describe)
