"""Write MNIST's idx files as train.npz and test.npz: python datasets/mnist/prepare.py DIR (see card.md)."""

from cpc.data.images.corpora import prepare_images_from_command_line, prepare_mnist

if __name__ == "__main__":
    prepare_images_from_command_line(prepare_mnist, published={"train": 60000, "test": 10000})
