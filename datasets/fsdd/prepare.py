"""Write manifest.csv for the Free Spoken Digit Dataset: python datasets/fsdd/prepare.py DIR (see card.md)."""

from cpc.data.audio.corpora import prepare_from_command_line, prepare_fsdd

if __name__ == "__main__":
    prepare_from_command_line(prepare_fsdd, published={"train": 2700, "test": 300})
