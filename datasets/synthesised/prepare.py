"""Make the synthesised corpus: python datasets/synthesised/prepare.py DIR, as `cpc data synthesize` (see card.md)."""

from cpc.data.audio.corpora import describe
from cpc.data.command_line import prepare_from_command_line
from cpc.data.made.speech import synthesize

if __name__ == "__main__":
    prepare_from_command_line(synthesize, describe)
