"""Check STL-10 as torchvision unpacks it: python datasets/stl10/prepare.py ROOT; nothing is written (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_stl10
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(
        prepare_stl10, describe_images, published={"train": 5000, "test": 8000, "unlabelled": 100000}
    )
