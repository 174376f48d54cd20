"""Write MNIST's idx files as train.npz and test.npz: python datasets/mnist/prepare.py DIR (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_mnist
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_mnist, describe_images, published={"train": 60000, "test": 10000})
