"""Write manifest.csv for CMU AN4: python datasets/an4/prepare.py DIR (see card.md)."""

from cpc.data.audio.corpora import describe, prepare_an4
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_an4, describe, published={"train": 874, "valid": 74, "test": 130})
