"""Write manifest.csv for LibriSpeech: python datasets/librispeech/prepare.py DIR --lists DIR (see card.md)."""

from cpc.data.audio.corpora import describe, prepare_librispeech
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_librispeech, describe, published={"train": 22830, "test": 5708})
