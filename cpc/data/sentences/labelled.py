"""Labelled sentences: files with a label and a sentence in every line, which are the tasks of probes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from cpc.data.sentences.bags import bags
from cpc.data.sentences.splitting import Encoding, read_text
from cpc.data.store.contents import say_contents
from cpc.data.store.folders import find_files
from cpc.data.store.splits import split_named

SUFFIXES = (".all", ".tsv", ".txt")
WHOLE = "all"  # the split of a file whose name says none: it is read by cross-validation
PUBLISHED = {"rt-polarity": "MR", "mpqa": "MPQA"}  # what papers call the sets in these files
MOST_LABELS = 1000


@dataclass(eq=False)
class LabelledSentences:
    """The sentences of one or several sets; those of a set stand together.

    Attributes:
        source: where they lie.
        sentences: `[n]`.
        labels: `[n]`.
        sets: `[n]` the name of the set of each.
        splits: `[n]` `train`, `valid` or `test`, or `all`.
    """

    source: Path
    sentences: Sequence[str]
    labels: Sequence[str]
    sets: Sequence[str]
    splits: Sequence[str]

    def __post_init__(self) -> None:
        self._bags: dict[str, csr_array] = {}

    @cached_property
    def names(self) -> list[str]:
        """Of the sets."""
        return list(dict.fromkeys(self.sets))

    def bags(self, kind: str) -> csr_array:
        """`[n, D]` the bags of words of all sentences (`cpc.data.sentences.bags`); counted once."""
        if kind not in self._bags:
            of_sets = [
                [s for s, own in zip(self.sentences, self.sets, strict=True) if own == name] for name in self.names
            ]
            self._bags[kind] = bags(kind, of_sets)
        return self._bags[kind]

    def rows(self, task: str) -> np.ndarray:
        """Of the set that a task names: by its name, its file's, or the path of its file.

        Raises:
            ValueError: if there is none, naming those there are.
        """
        asked = {task, set_and_split(Path(task).name)[0]}
        rows = np.flatnonzero([name in asked for name in self.sets])
        if not len(rows):
            raise ValueError(f"task={task!r}: {self.source} has no such set; it has {', '.join(self.names)}")
        return rows


def read_labelled(source: str | Path, encoding: Encoding = "UTF-8") -> LabelledSentences:
    """Read a file, or all files in a folder, in which every line is a label, a tab or space, and a sentence.

    A label alone labels the empty sentence: MPQA has three.

    Files that differ in a word of their name that says the split are one set: `TREC.train.all` and `TREC.test.all` are
    TREC with its official split. A file that says none is of split `all`, for cross-validation.

    Args:
        source: the file; or the folder, whose `*.all`, `*.tsv` and `*.txt` files are read.
        encoding: of the files.

    Raises:
        ValueError: if there is no such file, one is not in this encoding, holds no line, or labels
            hardly ever come again.
    """
    path = Path(source)
    if not path.exists():
        raise ValueError(f"{source}: there is no such file or folder of labelled sentences")
    files = [path] if path.is_file() else [path / name for name in find_files(path, SUFFIXES, "labelled sentences")]
    found: list[tuple[str, str, str, str]] = []
    for file in files:
        name, split = set_and_split(file.name)
        lines = [_label_and_sentence(line) for line in read_text(file, encoding).split("\n") if line.strip()]
        num_labels = len({label for label, _ in lines})
        if not lines or num_labels > max(2, min(MOST_LABELS, len(lines) // 2)):
            raise ValueError(
                f"{file} has {len(lines)} lines with {num_labels} labels: a line is a label, a tab or space, and a "
                "sentence, and labels come again"
            )
        found += [(name, split, label, sentence) for label, sentence in lines]
    found.sort(key=lambda line: line[0])  # stable: the order within a file stays
    sets, splits, labels, sentences = zip(*found, strict=True)
    say_contents(source, "sentences", splits, sets=len(set(sets)), labels=len(set(labels)))
    return LabelledSentences(path, sentences, labels, sets, splits)


def set_and_split(name: str) -> tuple[str, str]:
    """The set and the split that a file's name says."""
    split = split_named(name)
    words = [word for word in name.removesuffix(Path(name).suffix).split(".") if split_named(word) is None]
    stem = re.sub(r"\s+", "_", ".".join(words)) or name
    return PUBLISHED.get(stem, stem), split or WHOLE


def _label_and_sentence(line: str) -> tuple[str, str]:
    label, _, sentence = line.partition("\t" if "\t" in line else " ")
    return label.strip(), sentence.strip()
