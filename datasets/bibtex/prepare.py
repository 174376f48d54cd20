"""Write bibtex_train.xc.txt and bibtex_test.xc.txt: python datasets/bibtex/prepare.py DIR (see card.md)."""

from cpc.data.mulan import prepare_mulan_from_command_line

if __name__ == "__main__":
    prepare_mulan_from_command_line("bibtex", published={"train": 4880, "test": 2515})
