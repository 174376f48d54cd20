"""Write manifest.csv for LibriSpeech: python datasets/librispeech/prepare.py DIR --lists DIR (see card.md)."""

from cpc.data.audio.corpora import prepare_from_command_line, prepare_librispeech

if __name__ == "__main__":
    prepare_from_command_line(prepare_librispeech, published={"train": 22830, "test": 5708})
