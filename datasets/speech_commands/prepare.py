"""Write manifest.csv for Speech Commands v0.02: python datasets/speech_commands/prepare.py DIR (see card.md)."""

from cpc.data.audio.corpora import describe, prepare_speech_commands
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(
        prepare_speech_commands, describe, published={"train": 84843, "valid": 9981, "test": 11005}
    )
