"""Make the synthesised corpus: python datasets/synthesised/prepare.py DIR, as `cpc data synthesize` (see card.md)."""

from cpc.data.audio.corpora import describe
from cpc.data.made.speech import synthesize
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(synthesize, describe)
