"""Decode CIFAR-10 as JPEG to train.npz and test.npz: python datasets/cifar10_jpeg/prepare.py DIR (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_cifar10_jpeg
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_cifar10_jpeg, describe_images, published={"train": 50000, "test": 10000})
