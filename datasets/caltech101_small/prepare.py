"""Check the shrunk Caltech-101: python datasets/caltech101_small/prepare.py DIR; nothing is written (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.sources import describe, read_image_source
from cpc.data.images.table import ImageTable


def prepare_caltech101_small(root: Path) -> ImageTable:
    """Read the shrunk Caltech-101 from its folders; nothing is written.

    Args:
        root: folder with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`.

    Raises:
        ValueError: if a split is missing, or the two splits have different classes.
    """
    table = read_image_source(root, valid_share=0.0)
    seen = {split: set(table.labels[table.rows(split)].tolist()) for split in ("train", "test")}
    one_sided = [table.classes[label] for label in sorted(seen["train"] ^ seen["test"])]
    if one_sided:
        raise ValueError(f"{root}: classes {', '.join(one_sided)} have images in only one of train and test")
    return table


if __name__ == "__main__":
    prepare_from_command_line(prepare_caltech101_small, describe, published={"train": 1211, "test": 540})
