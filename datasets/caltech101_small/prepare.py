"""Check the shrunk Caltech-101: python datasets/caltech101_small/prepare.py DIR; nothing is written (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_caltech101_small
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_caltech101_small, describe_images, published={"train": 1211, "test": 540})
