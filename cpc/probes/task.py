"""What a probe predicts: labels of vectors or of whole observations, in a training and a test part.

R stored vectors, n examples, D feature dim.
"""

import math
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from cpc.data.probe_data import UNLABELLED, Pool, ProbeData
from cpc.probes.store import FeatureStore

UNSEEN = -1  # a label of the test part that the training part does not have


@dataclass(frozen=True)
class Examples:
    """Feature vectors with their labels.

    Attributes:
        values: `[R, D]` feature vectors, labelled and others; an array, or what `FeatureExtractor.sparse` gives.
        rows: `[n]` which of them are examples, ascending.
        labels: `[n]` int64, the class of each; `UNSEEN` where the training part has no such class.
        clusters: `[n]` int64, what is independent of what: the file, or the speaker.
        groups: `[n]` int64, what is held out together when a penalty is chosen.
    """

    values: Any
    rows: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class Task:
    """Something to predict from features, and where it is learnt and tested.

    Args:
        name: as the modality's `ProbeData.labels` knows it.
        probe_data: of the corpus.
        pool: `frames` labels every vector of an observation, `mean` the mean of them; as the modality has it unless
            given. Where an observation gives one vector there is nothing to choose.
        test_split: where the task is tested; as the modality has it unless given. It is learnt on
            `probe_data.train_split`.
        folds: a column whose groups are shared out among `num_folds` folds, in their order; each fold is tested by
            probes of the others. It takes the place of both splits; as the modality has it, unless a split is given.
        num_folds: how many; 4, or as the modality has it, unless given.

    Attributes:
        classes: the labels of the training part.
        train: rows of the corpus with a label, training part.
        test: likewise, test part.
        num_unlabelled: observations without a label, by part.
        clusters: the unit of the confidence interval.

    Raises:
        ValueError: if a split or the labels are missing, there are fewer than two classes, or the parts have no label
            in common.
    """

    def __init__(
        self,
        name: str,
        probe_data: ProbeData,
        *,
        pool: Pool | None = None,
        test_split: str | None = None,
        folds: str | None = None,
        num_folds: int | None = None,
    ) -> None:
        if pool is not None and pool not in get_args(Pool):
            raise ValueError(f"pool={pool!r} is not one of {', '.join(get_args(Pool))}")
        if pool is not None and not probe_data.several_vectors:
            raise ValueError(f"`pool` is {pool!r}, but each {probe_data.unit} gives a single vector: leave it out")
        self.name = name
        self.probe_data = probe_data
        self.pool: Pool | None = (pool or probe_data.default_pool(name)) if probe_data.several_vectors else None
        if folds is None and test_split is None:
            folds, num_folds = probe_data.default_folds(name, num_folds)
        if folds is None and num_folds is not None:
            raise ValueError(f"`num_folds`={num_folds} has no effect without `folds`: name the column of the groups")
        self.column = folds
        self.train_split, self.test_split = probe_data.train_split if folds is None else None, None
        parts = dict.fromkeys(("train", "test"), np.arange(len(probe_data.splits)))
        if folds is None:
            self.test_split = test_split or probe_data.default_test_split(name)
            if self.train_split == self.test_split:
                raise ValueError(
                    f"train_split and test_split are both {self.train_split!r}: a probe is tested on other data"
                )
            parts = {part: self._rows_of(f"{part}_split", split) for part, split in self._splits.items()}
        self._labels = probe_data.labels(name, np.concatenate(list(parts.values())))
        if self._labels.vary_within and self.pool == "mean":
            raise ValueError(f"{name} change within a {probe_data.unit}: pool='frames' is the only way to probe them")
        labelled = {
            part: np.array([row for row in rows if row in self._labels.of_row], int) for part, rows in parts.items()
        }
        self.train, self.test = labelled["train"], labelled["test"]
        self.num_unlabelled = {part: len(parts[part]) - len(labelled[part]) for part in parts}
        found = {
            part: {label for row in rows.tolist() for label in self._labels.names(row)}
            for part, rows in labelled.items()
        }
        order = self._labels.order
        self.classes = sorted(found["train"], key=_by_number if order is None else order.index)
        self._check(found["train"], found["test"])
        self._codes = dict.fromkeys(found["test"], UNSEEN) | {label: i for i, label in enumerate(self.classes)}
        self._fold_of_row: np.ndarray | None = None
        if folds is None:
            self.clusters, self._cluster_of_row = probe_data.clusters(name, self.train, self.test)
        else:
            shared_out = self._shared_out(folds, 4 if num_folds is None else num_folds)
            self.clusters, (self._cluster_of_row, self._fold_of_row) = folds, shared_out
        self._group_of_row = probe_data.groups(name)

    @property
    def rows(self) -> np.ndarray:
        """All rows of the corpus whose features are needed."""
        return np.union1d(self.train, self.test)

    @property
    def folds(self) -> list["Task"]:
        """The same task learnt on all folds but one and tested on that; the task alone where it has splits."""
        if self._fold_of_row is None:
            return [self]
        folds = []
        for number in range(self._fold_of_row.max() + 1):
            fold = copy(self)
            fold._fold_of_row = None
            fold.train = self.train[self._fold_of_row[self.train] != number]
            fold.test = self.test[self._fold_of_row[self.test] == number]
            learnt = {label for row in fold.train.tolist() for label in self._labels.names(row)}
            fold._codes = {label: code if label in learnt else UNSEEN for label, code in self._codes.items()}
            folds.append(fold)
        return folds

    def trained_on(self, rows: np.ndarray) -> "Task":
        """The same task and classes, learnt from these rows of the training part alone.

        Raises:
            ValueError: if none of them has a label.
        """
        task = copy(self)
        task.train = np.intersect1d(self.train, rows)
        if not len(task.train):
            raise ValueError(
                f"none of the {len(rows)} training {self.probe_data.unit}s chosen has a label for task {self.name!r}: "
                "raise `train_minutes`"
            )
        return task

    def subset(self, share: float, seed: int = 0) -> "Task":
        """The task with this share of the training labels of each class, at least one; larger shares hold the smaller.

        Raises:
            ValueError: on a share outside 0 < share <= 1, or where an observation gives several examples.
        """
        check_share(share)
        if self.column is not None:
            raise ValueError(f"`label_shares` are of a training split, but `folds` is {self.column!r}: leave one out")
        if self.pool == "frames":
            raise ValueError(
                f"`label_shares` are of whole {self.probe_data.unit}s, but task {self.name!r} labels every frame: set "
                "`pool` to mean, or leave them out"
            )
        labels = np.concatenate([self.labels(row, None, 0, 1) for row in self.train.tolist()])
        order = np.random.default_rng(seed).permutation(len(labels))
        chosen = []
        for label in np.unique(labels):
            of_class = order[labels[order] == label]
            chosen.append(of_class[: max(1, round(share * len(of_class)))])
        return self.trained_on(self.train[np.concatenate(chosen)])

    def labels(self, row: int, times: Any, start: int, num_vectors: int) -> np.ndarray:
        """`[T]` int64 class of every vector of an observation, or of a part of it; -100 where there is none.

        Args:
            row: of the corpus.
            times: where vectors lie.
            start: the part's first sample; 0 for the whole.
            num_vectors: T.
        """
        return self._labels.codes(row, self._codes, times, start, num_vectors)

    def examples(self, part: Literal["train", "test"], store: FeatureStore, feature: str | None) -> Examples:
        """The labelled vectors, or means of vectors, of one part.

        Args:
            part: which.
            store: holds the observations of that part.
            feature: of the store; None: labels alone, beside vectors of no dimension.

        Raises:
            ValueError: if no vector of the part is labelled.
        """
        values = np.empty((store.num_vectors, 0), np.float32) if feature is None else store.values[feature]
        means, rows, labels, clusters, groups = [], [], [], [], []
        for row in (self.train if part == "train" else self.test).tolist():
            place = store.place(row)
            if place.start == place.stop:
                continue
            if self.pool == "mean":
                means.append(values[place].mean(0, dtype=np.float64).astype(np.float32))
                found, at = self.labels(row, store.extractor.times, 0, 1), np.array([len(means) - 1])
            else:
                found = self.labels(row, store.extractor.times, 0, place.stop - place.start)
                at = place.start + np.flatnonzero(found != UNLABELLED)
                found = found[found != UNLABELLED]
            rows.append(at)
            labels.append(found)
            clusters.append(np.full(len(found), self._cluster_of_row[row]))
            groups.append(np.full(len(found), self._group_of_row[row]))
        if not sum(map(len, labels)):
            raise ValueError(
                f"no frame of the {part} part (split {self._splits[part]!r}) has a label for task {self.name!r}: do "
                "the times of the alignments fit the audio, and are the files long enough for a frame?"
            )
        return Examples(
            values=np.stack(means) if self.pool == "mean" else values,
            rows=np.concatenate(rows),
            labels=np.concatenate(labels),
            clusters=np.concatenate(clusters),
            groups=np.concatenate(groups),
        )

    def record(self) -> dict[str, Any]:
        """The protocol's share of `probe.json`."""
        return {
            "task": self.name,
            "pool": self.pool,
            "unit": self.probe_data.unit,
            "train_split": self.train_split,
            "test_split": self.test_split,
            "folds": self.column,
            "num_folds": len(self.folds),
            "num_train": len(self.train),
            "num_test": len(self.test),
            "num_unlabelled": self.num_unlabelled,
            "classes": self.classes,
            "clusters": self.clusters,
        }

    @property
    def _splits(self) -> dict[str, str | None]:
        return {"train": self.train_split, "test": self.test_split}

    def _shared_out(self, column: str, num_folds: int) -> tuple[np.ndarray, np.ndarray]:
        """`[num_rows]` ids of the column's groups, and the fold of each."""
        if column == self.name:
            raise ValueError(
                f"`folds` {column} is the task itself: its classes would be new in each fold; name another column"
            )
        try:
            of_row = self.probe_data.labels(column, self.rows).of_row
        except ValueError as error:
            raise ValueError(f"`folds` {column}: {error}") from error
        nameless = [row for row in self.rows.tolist() if row not in of_row]
        if nameless:
            raise ValueError(
                f"`folds` {column}: {len(nameless)} of {len(self.rows)} {self.probe_data.unit}s with a label have no "
                f"{column}, such as {self.probe_data.name(nameless[0])}; fill the column"
            )
        names = sorted(set(of_row.values()), key=_by_number)
        place = {name: number for number, name in enumerate(names)}
        if not 2 <= num_folds <= len(names):
            raise ValueError(
                f"`num_folds`={num_folds} must be at least 2 and at most the groups, {len(names)} of {column!r}"
            )
        fold_of = np.concatenate([np.full(len(part), i) for i, part in enumerate(np.array_split(names, num_folds))])
        groups = np.full(len(self.probe_data.splits), -1)
        groups[self.rows] = [place[of_row[row]] for row in self.rows.tolist()]
        return groups, np.where(groups < 0, -1, fold_of[groups])

    def _rows_of(self, option: str, split: str | None) -> np.ndarray:
        splits = self.probe_data.splits
        rows = np.flatnonzero(np.array(splits) == split)
        if not len(rows):
            raise ValueError(
                f"task {self.name!r} needs split {split!r}, but the data has only {', '.join(sorted(set(splits)))}: "
                f"name one of these with `{option}`"
            )
        return rows

    def _check(self, in_train: set[str], in_test: set[str]) -> None:
        for part, labels in (("train", in_train), ("test", in_test)):
            if not labels:
                raise ValueError(
                    f"no {self.probe_data.unit} of the {part} part (split {self._splits[part]!r}) has a label for task "
                    f"{self.name!r}"
                )
        if len(in_train) < 2:
            raise ValueError(
                f"task {self.name!r} has a single class in split {self.train_split!r}, {self.classes[0]!r}: there is "
                "nothing to tell apart; name another task or `train_split`"
            )
        if not in_train & in_test:
            others = sorted(self._splits_with(in_train) - set(self._splits.values()))
            advice = f"`test_split` {others[0]}" if others else "another `train_split` or `test_split`"
            raise ValueError(
                f"task {self.name!r}: splits {self.train_split!r} ({len(in_train)} labels, such as "
                f"{self.classes[0]!r}) and {self.test_split!r} ({len(in_test)}, such as {min(in_test)!r}) have none in "
                f"common, so every answer would be wrong; try {advice}"
            )

    def _splits_with(self, names: set[str]) -> set[str]:
        """Where these labels are found."""
        splits = self.probe_data.splits
        labels = self.probe_data.labels(self.name, np.arange(len(splits)))
        return {splits[row] for row in labels.of_row if labels.names(row) & names}


def check_share(share: float) -> None:
    """Raises a ValueError if there is no such share of labels."""
    if not 0 < share <= 1:
        raise ValueError(f"label_shares: a share of labels, {share}, must lie above 0 and at most at 1")


def _by_number(label: str) -> tuple[float, str]:
    return (float(label) if label.isdecimal() else math.inf, label)
