"""Check ImageNet as torchvision unpacks it: python datasets/imagenet/prepare.py ROOT; writes nothing (see card.md)."""

from cpc.data.images.corpora import prepare_imagenet, prepare_images_from_command_line

if __name__ == "__main__":
    prepare_images_from_command_line(prepare_imagenet, published={"train": 1281167, "test": 50000})
