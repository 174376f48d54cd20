"""Make the embedded images: python datasets/embedded_images/prepare.py DIR, as the quickstart does (see card.md)."""

from cpc.data.images.corpora import describe_images, prepare_embedded_images
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_embedded_images, describe_images)
