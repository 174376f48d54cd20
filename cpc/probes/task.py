"""Tasks of probes: labels of vectors or of whole observations, in a training and a test part or in folds.

R stored vectors, n examples, D feature dim.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from cpc.config.argument_rules import Range
from cpc.data.probe_data import UNLABELLED, ProbeData, check_pool, pool_vectors
from cpc.probes.store import FeatureStore, as_tensor

UNSEEN = -1  # code of a test label that does not occur in training
SHARE = Range(0, 1, is_open=True)


@dataclass(frozen=True)
class Examples:
    """Feature vectors with their labels.

    Attributes:
        values: `[R, D]` feature vectors with and without labels; an array, or scipy's CSR of sparse features.
        indices: `[n]` indices of the examples among the vectors, ascending.
        labels: `[n]` int64 class of each example; `UNSEEN` if the training part lacks the class.
        clusters: `[n]` int64 independent unit of each example, such as its file or speaker.
        groups: `[n]` int64 group of each example; a group is held out as a whole when a penalty is chosen. If all
            examples are of one group, such as a speaker, its recordings are held out.
    """

    values: Any
    indices: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, indices: slice | np.ndarray) -> Float[Tensor, "m D"]:
        """Return the features of some of the examples."""
        values = as_tensor(self.values[self.indices[indices]])
        return values if values.is_sparse_csr else values.float()  # torch widens float16 in a third of numpy's time


class Task:
    """A label to predict from features, with the observations for training and test.

    Args:
        name: a label of the modality's `ProbeData.labels`.
        probe_data: the corpus, as probes read it.
        pool: `frames` labels every vector of an observation; other names pool its vectors into one labelled vector
            (`cpc.data.probe_data`). The default is the modality's. Leave it out if an observation has only one vector.
        test_split: split of the test part; the modality's default if not given. The training part is
            `probe_data.train_split`.
        folds: column for cross-validation instead of the two splits. The groups of the column are distributed over the
            folds in their order, and each fold is tested by probes of the other folds. If neither `folds` nor
            `test_split` is given, the modality's default.
        num_folds: number of folds; 4, or the modality's default, if not given.

    Attributes:
        classes: the labels of the training part.
        train: rows of the labelled observations of the training part.
        test: rows of the labelled observations of the test part.
        num_unlabelled: number of observations without a label, by part.
        clusters: the unit of the confidence interval.
        is_subset: whether this is the task with a share of its labels.
    """

    def __init__(
        self,
        name: str,
        probe_data: ProbeData,
        *,
        pool: str | None = None,
        test_split: str | None = None,
        folds: str | None = None,
        num_folds: int | None = None,
    ) -> None:
        if pool is not None:
            check_pool(pool)
        if pool is not None and not probe_data.several_vectors:
            raise ValueError(f"`pool` is {pool!r}, but each {probe_data.unit} has only one vector: leave `pool` out")
        self.name = name
        self.probe_data = probe_data
        self.pool: str | None = (pool or probe_data.default_pool(name)) if probe_data.several_vectors else None
        if folds is None and test_split is None:
            folds, num_folds = probe_data.default_folds(name, num_folds)
        if folds is None and num_folds is not None:
            raise ValueError(f"`num_folds`={num_folds} has no effect without `folds`: name the column of the groups")
        self.column, self.is_subset = folds, False
        self.splits: dict[str, str | None] = {"train": None, "test": None}
        parts = dict.fromkeys(self.splits, np.arange(len(probe_data.splits)))
        if folds is None:
            self.splits = {"train": probe_data.train_split, "test": test_split or probe_data.default_test_split(name)}
            if self.splits["train"] == self.splits["test"]:
                both = f"train_split and test_split are both {self.splits['test']!r}"
                raise ValueError(f"{both}, but a probe must be tested on other data")
            parts = {part: self._split_rows(part) for part in self.splits}
        self._labels = probe_data.labels(name, np.concatenate(list(parts.values())))
        if self._labels.vary_within and self.pool != "frames":
            raise ValueError(f"{name} change within a {probe_data.unit}, so they can only be probed with pool='frames'")
        self.train, self.test = (
            np.array([row for row in rows if row in self._labels.of_row], int) for rows in parts.values()
        )
        self.num_unlabelled = {
            part: len(parts[part]) - len(rows) for part, rows in (("train", self.train), ("test", self.test))
        }
        train_labels, test_labels = self._label_names(self.train), self._label_names(self.test)
        order = self._labels.order
        self.classes = sorted(train_labels, key=_numeric_key if order is None else order.index)
        self._check(train_labels, test_labels)
        self._codes = dict.fromkeys(test_labels, UNSEEN) | {label: i for i, label in enumerate(self.classes)}
        self._parts: Sequence[tuple[np.ndarray, np.ndarray]] | None = None
        if folds is None:
            self.clusters, self._cluster_of_row = probe_data.clusters(name, self.train, self.test)
        else:
            self.clusters = folds
            self._cluster_of_row, fold = self._group_folds(folds, 4 if num_folds is None else num_folds)
            train, test = fold[self.train], fold[self.test]
            self._parts = [(self.train[train != i], self.test[test == i]) for i in range(fold.max() + 1)]
        self._group_of_row = probe_data.groups(name)

    @property
    def rows(self) -> np.ndarray:
        """Rows of the training and test observations."""
        return np.union1d(self.train, self.test)

    @property
    def folds(self) -> list["Task"]:
        """One task per fold, trained on the other folds and tested on the fold; with splits, only this task."""
        if self._parts is None:
            return [self]
        return [
            self._between(np.intersect1d(self.train, train), np.intersect1d(self.test, test))
            for train, test in self._parts
        ]

    def drawn(self, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> "Task":
        """Return the same task with other folds: pairs of rows for training and rows for test, as few labels need."""
        task = copy(self)
        task._parts = parts
        return task

    def train_codes(self) -> np.ndarray:
        """Return the `[num_train]` int64 class of each training row; 0 if labels vary within rows."""
        if self._labels.vary_within:
            return np.zeros(len(self.train), np.int64)
        return np.concatenate([self.labels(row, None, 0, 1) for row in self.train.tolist()])

    def hold_out(self, share: float) -> "Task":
        """Return the task that trains on the first rows of each class, and tests on this share of them, the last.

        A class keeps its only row. Rows of a task of `frames` have several classes, and count as one.
        """
        codes = self.train_codes()
        rows_of_class = [self.train[codes == code] for code in np.unique(codes)]
        num_held_out = [min(len(rows) - 1, max(1, round(share * len(rows)))) for rows in rows_of_class]
        held_out = np.concatenate(
            [rows[len(rows) - num :] for rows, num in zip(rows_of_class, num_held_out, strict=True)]
        )
        return self._between(np.setdiff1d(self.train, held_out), np.sort(held_out))

    def _between(self, train: np.ndarray, test: np.ndarray) -> "Task":
        fold = copy(self)
        fold._parts, fold.train, fold.test = None, train, test
        seen = self._label_names(train)
        fold._codes = {label: code if label in seen else UNSEEN for label, code in self._codes.items()}
        return fold

    def averaged(self) -> "Task":
        """Return the same task with the pooling `mean`, the pooling of networks; a task of `frames` stays as it is."""
        task = copy(self)
        task.pool = self.pool if self.pool in (None, "frames") else "mean"
        return task

    def trained_on(self, rows: np.ndarray) -> "Task":
        """Return the same task with only these rows in the training part, one of them labelled; the classes stay."""
        task = copy(self)
        task.train = np.intersect1d(self.train, rows)
        self._require_labels(len(task.train), "train")
        return task

    def subset(self, share: float, seed: int = 0) -> "Task":
        """Return the task with this share of the training labels of each class, at least one; shares are nested."""
        SHARE.check("`label_shares`", share)
        if self.column is not None or self.pool == "frames":
            need = f"`label_shares` need a training split and labels of whole {self.probe_data.unit}s"
            raise ValueError(f"{need}, but task {self.name!r} has `folds`={self.column!r} and `pool`={self.pool!r}")
        labels = self.train_codes()
        order = np.random.default_rng(seed).permutation(len(labels))
        by_class = [order[labels[order] == label] for label in np.unique(labels)]
        chosen = [examples[: max(1, round(share * len(examples)))] for examples in by_class]
        task = self.trained_on(self.train[np.concatenate(chosen)])
        task.is_subset = True
        return task

    def labels(self, row: int, times: Any, start: int, num_vectors: int) -> np.ndarray:
        """Return the `[T]` class, or `UNLABELLED`, of every vector of an observation, or of its part from `start`."""
        return self._labels.codes(row, self._codes, times, start, num_vectors)

    def examples(self, part: Literal["train", "test"], store: FeatureStore, feature: str | None) -> Examples:
        """Return the labelled vectors of a feature, or pooled vectors; feature None: vectors of dimension 0."""
        values = np.empty((store.num_vectors, 0), np.float32) if feature is None else store.values[feature]
        pool = None if self.pool in (None, "frames") or store.extractor.is_pooled else self.pool
        pooled: list[np.ndarray] = []
        indices, labels, rows = [], [], []
        for row in (self.train if part == "train" else self.test).tolist():
            span = store.span(row)
            if span.start == span.stop:
                continue
            if pool is not None:
                codes, is_labelled = self.labels(row, store.extractor.times, 0, 1), slice(None)
                indices.append(np.array([len(pooled)]))
                pooled.append(pool_vectors(values[span], pool))
            else:
                codes = self.labels(row, store.extractor.times, 0, span.stop - span.start)
                is_labelled = codes != UNLABELLED
                indices.append(span.start + np.flatnonzero(is_labelled))
            labels.append(codes[is_labelled])
            rows.append(np.full(len(labels[-1]), row))
        self._require_labels(sum(map(len, labels)), part)
        all_rows = np.concatenate(rows)
        return Examples(
            np.stack(pooled) if pooled else values,
            np.concatenate(indices),
            np.concatenate(labels),
            self._cluster_of_row[all_rows],
            self._groups(all_rows),
        )

    def record(self) -> dict[str, Any]:
        """Return the `protocol` of the task in `probe.json`."""
        return {
            "task": self.name,
            "pool": self.pool,
            "unit": self.probe_data.unit,
            "train_split": self.splits["train"],
            "test_split": self.splits["test"],
            "folds": self.column,
            "num_folds": len(self.folds),
            "num_train": len(self.train),
            "num_test": len(self.test),
            "num_unlabelled": self.num_unlabelled,
            "classes": self.classes,
            "clusters": self.clusters,
        }

    def _groups(self, rows: np.ndarray) -> np.ndarray:
        groups = self._group_of_row[rows]
        return groups if (groups != groups[0]).any() else self.probe_data.sources()[rows]

    def _require_labels(self, num: int, part: str) -> None:
        if not num:
            where = f"{self.probe_data.unit} of the {part} part (split {self.splits[part]!r})"
            raise ValueError(f"no {where} has a label for task {self.name!r}, or no frame has one")

    def _label_names(self, rows: np.ndarray) -> set[str]:
        return {label for row in rows.tolist() for label in self._labels.names(row)}

    def _group_folds(self, column: str, num_folds: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the `[num_rows]` group ids of a column, and the `[num_rows]` folds; -1 for rows without a label."""
        if column == self.name:
            raise ValueError(f"`folds` {column} is the task itself, so each fold would have only new classes")
        try:
            group_names = self.probe_data.labels(column, self.rows).of_row
        except ValueError as error:
            raise ValueError(f"`folds` {column}: {error}") from error
        nameless = [row for row in self.rows.tolist() if row not in group_names]
        if nameless:
            found = f"{len(nameless)} of {len(self.rows)} {self.probe_data.unit}s with a label have no {column}"
            raise ValueError(f"`folds` {column}: {found}, such as {self.probe_data.name(nameless[0])}; fill the column")
        names = sorted(set(group_names.values()), key=_numeric_key)
        Range(2, len(names)).check(f"`folds` {column} has {len(names)} groups: `num_folds`", num_folds)
        group_ids = {name: index for index, name in enumerate(names)}
        groups = np.full(len(self.probe_data.splits), -1)
        groups[self.rows] = [group_ids[group_names[row]] for row in self.rows.tolist()]
        parts = np.array_split(names, num_folds)
        fold_of_group = np.repeat(np.arange(num_folds), list(map(len, parts)))
        return groups, np.where(groups < 0, -1, fold_of_group[groups])

    def _split_rows(self, part: str) -> np.ndarray:
        splits, split = self.probe_data.splits, self.splits[part]
        rows = np.flatnonzero(np.array(splits) == split)
        if not len(rows):
            found = ", ".join(sorted(set(splits)))
            need = f"task {self.name!r} needs split {split!r}, but the data has only {found}"
            raise ValueError(f"{need}: name one of these with `{part}_split`")
        return rows

    def _check(self, train_labels: set[str], test_labels: set[str]) -> None:
        train_split, test_split = self.splits.values()
        for part, labels in (("train", train_labels), ("test", test_labels)):
            self._require_labels(len(labels), part)
        if len(train_labels) < 2:
            found = f"task {self.name!r} has only the class {self.classes[0]!r} in split {train_split!r}"
            raise ValueError(f"{found}, but needs two; name another task or `train_split`")
        if not train_labels & test_labels:
            splits = np.array(self.probe_data.splits)
            all_labels = self.probe_data.labels(self.name, np.arange(len(splits)))
            with_label = {splits[row] for row in all_labels.of_row if all_labels.names(row) & train_labels}
            others = sorted(with_label - {train_split, test_split})
            advice = f"`test_split` {others[0]}" if others else "another `train_split` or `test_split`"
            raise ValueError(
                f"task {self.name!r}: splits {train_split!r} ({len(train_labels)} labels, such as "
                f"{self.classes[0]!r}) and {test_split!r} ({len(test_labels)}, such as {min(test_labels)!r}) "
                f"have no label in common, so every answer would be wrong; try {advice}"
            )


def _numeric_key(label: str) -> tuple[float, str]:
    return (float(label) if label.isdecimal() else math.inf, label)
