"""Make the synthesised corpus: python datasets/synthesised/prepare.py DIR, as `cpc data synthesize` (see card.md)."""

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe
from cpc.data.synthetic.speech import synthesize

if __name__ == "__main__":
    prepare_from_command_line(synthesize, describe)
