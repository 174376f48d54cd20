"""Make the embedded images: python datasets/embedded_images/prepare.py DIR, as the quickstart does (see card.md)."""

from cpc.data.images.corpora import prepare_embedded_images, prepare_images_from_command_line

if __name__ == "__main__":
    prepare_images_from_command_line(prepare_embedded_images)
