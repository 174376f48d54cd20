"""Check and pack Penn Treebank: python datasets/ptb/prepare.py DIR (see card.md)."""

from cpc.data.text.corpora import describe_text, prepare_ptb
from cpc.options import prepare_from_command_line

if __name__ == "__main__":
    prepare_from_command_line(prepare_ptb, describe_text)
