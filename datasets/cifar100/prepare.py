"""Check CIFAR-100 as torchvision unpacks it: python datasets/cifar100/prepare.py ROOT; writes nothing (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_cifar100
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_cifar100, describe_images, published={"train": 50000, "test": 10000})
