"""Check ImageNet as torchvision unpacks it: python datasets/imagenet/prepare.py ROOT; writes nothing (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_imagenet
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_imagenet, describe_images, published={"train": 1281167, "test": 50000})
