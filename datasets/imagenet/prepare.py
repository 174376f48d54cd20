"""Check ImageNet as torchvision unpacks it: python datasets/imagenet/prepare.py ROOT; writes nothing (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.sources import describe, read_torchvision
from cpc.data.images.table import ImageTable


def prepare_imagenet(root: Path) -> ImageTable:
    """Read ImageNet (ILSVRC 2012) as torchvision unpacks it: nothing is written.

    Args:
        root: folder with `train` and `val`, each with a folder for every class.

    Raises:
        ValueError: if one is missing, or an image lies in no folder of a class.
    """
    return read_torchvision("imagenet", root)


if __name__ == "__main__":
    prepare_from_command_line(prepare_imagenet, describe, published={"train": 1281167, "test": 50000})
