"""Check STL-10 as torchvision unpacks it: python datasets/stl10/prepare.py ROOT; nothing is written (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.sources import describe, read_torchvision
from cpc.data.images.table import ImageTable


def prepare_stl10(root: Path) -> ImageTable:
    """Read STL-10 as torchvision unpacks it: nothing is written.

    Args:
        root: folder with `stl10_binary`.

    Raises:
        ValueError: if it is not there whole.
    """
    return read_torchvision("stl10", root)


if __name__ == "__main__":
    prepare_from_command_line(prepare_stl10, describe, published={"train": 5000, "test": 8000, "unlabelled": 100000})
