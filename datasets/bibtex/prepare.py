"""Write bibtex_train.xc.txt and bibtex_test.xc.txt: python datasets/bibtex/prepare.py DIR (see card.md)."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the wheel
    from benchmarks.extreme.mulan import prepare_mulan_from_command_line

    prepare_mulan_from_command_line("bibtex", published={"train": 4880, "test": 2515})
