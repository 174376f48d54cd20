"""Write manifest.csv for the Free Spoken Digit Dataset: python datasets/fsdd/prepare.py DIR (see card.md)."""

from cpc.data.audio.corpora import describe, prepare_fsdd
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_fsdd, describe, published={"train": 2700, "test": 300})
