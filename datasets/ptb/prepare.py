"""Check and pack Penn Treebank: python datasets/ptb/prepare.py DIR (see card.md)."""

from cpc.data.text.corpora import prepare_ptb, prepare_text_from_command_line

if __name__ == "__main__":
    prepare_text_from_command_line(prepare_ptb)
