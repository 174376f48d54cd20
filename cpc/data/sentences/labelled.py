"""Labelled sentences, the tasks of probes: files with a label and a sentence in every line; bags of their words."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from scipy.sparse import block_diag, csr_array
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from cpc.data.store.contents import say_contents, split_named
from cpc.data.store.folders import find_files
from cpc.data.store.text_files import Encoding, read_text
from cpc.data.text.segmentation import WORD, normal_form

SUFFIXES = (".all", ".tsv", ".txt")
WHOLE = "all"  # the split of files whose names have no split; they are probed by cross-validation
PUBLISHED = {"rt-polarity": "MR", "mpqa": "MPQA"}  # names of the sets in papers, by file name
MOST_LABELS = 1000
_WORDS = {"preprocessor": partial(normal_form, lower_case=True), "tokenizer": WORD.findall, "token_pattern": None}
KINDS = {"bow": lambda: CountVectorizer(**_WORDS), "tfidf": lambda: TfidfVectorizer(**_WORDS, ngram_range=(1, 2))}
_ADVICE = (
    "write each line as a label, a tab and a sentence without quotes (Python's csv.reader reads the rows of a CSV), "
    "or use a space instead of the tab in every line"
)


@dataclass(eq=False)
class LabelledSentences:
    """The sentences of one or several sets, grouped by set: label, name of the set and split of each sentence."""

    source: Path
    sentences: Sequence[str]
    labels: Sequence[str]
    sets: Sequence[str]
    splits: Sequence[str]
    _bags: dict[str, csr_array] = field(default_factory=dict, init=False)

    @cached_property
    def names(self) -> list[str]:
        """Names of the sets, each once."""
        return list(dict.fromkeys(self.sets))

    def bags(self, kind: str) -> csr_array:
        """Return the bags of words of all sentences, `[n, D]`; they are cached."""
        if kind not in self._bags:
            pairs = list(zip(self.sentences, self.sets, strict=True))
            self._bags[kind] = bags(kind, [[s for s, set_name in pairs if set_name == name] for name in self.names])
        return self._bags[kind]

    def rows(self, task: str) -> np.ndarray:
        """Return the rows of the set that a task names: by the name of the set or of its file, or by its path."""
        names = {task, set_and_split(Path(task).name)[0]}
        rows = np.flatnonzero([name in names for name in self.sets])
        if not len(rows):
            raise ValueError(f"task={task!r}: {self.source} has no such set; it has {', '.join(self.names)}")
        return rows


def read_labelled(source: str | Path, encoding: Encoding = "UTF-8") -> LabelledSentences:
    """Read a file, or the `*.all`, `*.tsv` and `*.txt` files of a folder, of lines of a label, a tab or space, a text.

    A line with only a label is an empty sentence. Files whose names differ only in the word of the split form one set:
    `TREC.train.all` and `TREC.test.all` are TREC with its official split. A file without such a word has the split
    `all`, for cross-validation. A file that is no such table, or has nearly as many different labels as lines, is a
    ValueError.
    """
    path = Path(source)
    if not path.exists():
        raise ValueError(f"{source}: there is no such file or folder of labelled sentences")
    files = [path]
    if path.is_dir():
        names = find_files(path, SUFFIXES, "labelled sentences", f"; if you have a CSV, {_ADVICE}")
        files = [path / name for name in names]
    examples: list[tuple[str, str, str, str]] = []
    for file in files:
        name, split = set_and_split(file.name)
        if file.suffix.lower() == ".csv":
            raise ValueError(f"{file}: labelled sentences are not read from a CSV; {_ADVICE}")
        lines = list(_labels_and_sentences(file, normal_form(read_text(file, encoding))))
        num_labels = len({label for label, _ in lines})
        if not lines or num_labels > max(2, min(MOST_LABELS, len(lines) // 2)):
            legal = "a line must be a label, a tab or space, and a sentence, and labels must repeat"
            raise ValueError(f"{file} has {len(lines)} lines with {num_labels} different labels: {legal}")
        examples += [(name, split, label, sentence) for label, sentence in lines]
    examples.sort(key=lambda example: example[0])  # a stable sort keeps the order within a file
    sets, splits, labels, sentences = zip(*examples, strict=True)
    say_contents(source, "sentences", splits, sets=set(sets), labels=set(labels))
    return LabelledSentences(path, sentences, labels, sets, splits)


def set_and_split(name: str) -> tuple[str, str]:
    """Return the set and the split that the name of a file gives."""
    split = split_named(name)
    words = [word for word in name.removesuffix(Path(name).suffix).split(".") if split_named(word) is None]
    stem = re.sub(r"\s+", "_", ".".join(words)) or name
    return PUBLISHED.get(stem, stem), split or WHOLE


def _labels_and_sentences(file: Path, text: str) -> Iterator[tuple[str, str]]:
    """Split the lines that are not blank at their tab, or, in a file without tabs, at their first space."""
    separator = "\t" if "\t" in text else " "
    for number, line in enumerate(text.split("\n"), start=1):
        label, _, sentence = (part.strip() for part in line.strip(" \r").partition(separator))
        if not label and not sentence:
            continue
        if separator == "\t" and (line.count("\t") != 1 or not label):
            problem = f"{line.count(separator)} tabs" if label else "no label before its tab"
        elif label.startswith(('"', "{", "[")) or (separator == " " and re.search('[,;"]', label)):
            problem = f"the label {label[:40]!r} looks like CSV or JSON"
        else:
            yield label, sentence
            continue
        raise ValueError(f"{file}, line {number}: {problem}; {_ADVICE}")


def bags(kind: str, sets: Sequence[Sequence[str]]) -> csr_array:
    """Return word counts (`bow`), or words and word pairs weighted by inverse document frequency (`tfidf`), by set.

    A column stands for a word of one set, so that the features of a set do not depend on other sets. Counts are divided
    by the root mean square length of a set's rows, which only shifts the grid of penalties.
    """
    counts = [csr_array(KINDS[kind]().fit_transform(sentences), dtype="float32") for sentences in sets]
    return csr_array(block_diag([unit_rows(x) for x in counts], format="csr"))


def unit_rows(x: csr_array) -> csr_array:
    """Return the rows divided by one number, so that their mean square length is 1."""
    return x * np.float32((x.shape[0] / max(x.multiply(x).sum(), 1e-12)) ** 0.5)
