"""Check CIFAR-100 as torchvision unpacks it: python datasets/cifar100/prepare.py ROOT; writes nothing (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.sources import describe, read_torchvision
from cpc.data.images.table import ImageTable


def prepare_cifar100(root: Path) -> ImageTable:
    """Read CIFAR-100 as torchvision unpacks it: nothing is written.

    Args:
        root: folder with `cifar-100-python`.

    Raises:
        ValueError: if it is not there whole.
    """
    return read_torchvision("cifar100", root)


if __name__ == "__main__":
    prepare_from_command_line(prepare_cifar100, describe, published={"train": 50000, "test": 10000})
