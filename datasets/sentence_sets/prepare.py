"""Check MR, MPQA and TREC: python datasets/sentence_sets/prepare.py DIR (see card.md)."""

from collections import Counter
from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.sentences.labelled import LabelledSentences, read_labelled

PUBLISHED = {("MR", "all"): [5331, 5331], ("MPQA", "all"): [7294, 3312], ("TREC", "train"): 5452, ("TREC", "test"): 500}


def prepare_sets(root: str | Path) -> LabelledSentences:
    """Read the three sets; their source is in datasets/sentence_sets/card.md.

    Args:
        root: the folder of `rt-polarity.all`, `mpqa.all`, `TREC.train.all` and `TREC.test.all`.

    Raises:
        ValueError: if a set is missing, or its number of sentences differs from the published number.
    """
    found = read_labelled(root, "latin-1")
    for (name, split), published in PUBLISHED.items():
        labels = Counter(found.labels[row] for row in found.rows(name) if found.splits[row] == split)
        counts = sorted(labels.values(), reverse=True) if isinstance(published, list) else labels.total()
        if counts != published:
            raise ValueError(f"{name}, split {split}: {counts} sentences, {published} are published")
    return found


def describe(found: LabelledSentences) -> str:
    """Return a line for each set and split."""
    counts = Counter(zip(found.sets, found.splits, strict=True))
    return "\n".join(f"{name:8} {split:6} {num:>6} sentences" for (name, split), num in counts.items())


if __name__ == "__main__":
    prepare_from_command_line(prepare_sets, describe)
