"""Check and pack Penn Treebank: python datasets/ptb/prepare.py DIR (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.text.corpus import TokenCorpus, training_vocabulary
from cpc.data.text.lines import Text

NUM_TOKENS = 10_000
TOKENS = {"train": 929_589, "valid": 73_760, "test": 82_430}  # `<eos>` counted, as Mikolov's toolkit does


def prepare_ptb(root: str | Path, cache_dir: str | Path | None = None) -> TokenCorpus:
    """Read Penn Treebank in the version of Mikolov et al. 2010; its source is in datasets/ptb/card.md.

    Args:
        root: the folder of `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`.
        cache_dir: folder for the packed tokens; None: next to the text.

    Raises:
        ValueError: if a split is missing, or its number of tokens differs from the published number.
    """
    text = Text(root)
    missing = sorted(set(TOKENS) - set(text.splits))
    if missing:
        raise ValueError(f"{root} has no split {', '.join(missing)}: three files are needed, ptb.train.txt and so on")
    vocabulary = training_vocabulary(text, NUM_TOKENS, "whitespace", cache_dir=cache_dir)
    corpus = TokenCorpus(text, vocabulary, cache_dir)
    found = {split: len(corpus.stream(split)) - 1 for split in TOKENS}
    differing = [
        f"{split} has {found[split]} tokens, {num} are published"
        for split, num in TOKENS.items()
        if found[split] != num
    ]
    if differing:
        raise ValueError(f"{root} is another text or another cut of it: {'; '.join(differing)}")
    return corpus


def describe(corpus: TokenCorpus) -> str:
    """Return a line with the number of tokens for each split."""
    lines = []
    for split in corpus.text.splits:
        counts = corpus.counts(split)
        lines.append(
            f"{split:>6} {counts.sum():>9} tokens, {(counts > 0).sum():>6} of {len(counts)} different ones, "
            f"{counts[corpus.vocabulary.unknown] / counts.sum():.1%} unknown"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    prepare_from_command_line(prepare_ptb, describe)
