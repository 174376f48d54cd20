"""What a probe predicts: the labels of frames or of files, in a training and a test part.

R stored frames, n examples, D feature dim.
"""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from cpc.data.audio.alignments import (
    ALIGNMENTS_NAME,
    UNLABELLED,
    Alignments,
    FrameTimes,
    Segment,
    read_alignments,
    window_labels,
)
from cpc.data.audio.manifest import Manifest
from cpc.data.store.folders import name_a_few
from cpc.probes.features import Kind
from cpc.probes.store import FeatureStore

Pool = Literal["frames", "mean"]

UNSEEN = -1  # a label of the test part that the training part does not have
_DEFAULT_TEST_SPLIT = {"speaker": "valid"}  # speakers of the test split are held out, so no probe could know them
MIN_SPEAKER_CLUSTERS = 5


@dataclass(frozen=True)
class Examples:
    """Feature vectors with their labels.

    Attributes:
        values: `[R, D]` feature vectors, labelled and others.
        rows: `[n]` which of them are examples, ascending.
        labels: `[n]` int64, the class of each; `UNSEEN` where the training part has no such class.
        clusters: `[n]` int64, what is independent of what: the file, or the speaker.
    """

    values: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class Task:
    """Something to predict from features, and where it is learnt and tested.

    Args:
        name: `phones` (labels from alignments), `speaker`, or any other column of the manifest.
        manifest: the corpus.
        alignments: for `phones`: a file or folder of alignments; `alignments.csv` beside the manifest unless given.
        pool: `frames` labels every frame, `mean` the mean of a file's frames. Phones and speakers are read from frames
            (as in van den Oord et al. 2018), other columns from means, unless given.
        train_split: where the probe is trained.
        test_split: where it is tested; `valid` for speakers, `test` for everything else unless given.

    Attributes:
        classes: the labels of the training part, sorted.
        train: rows of the manifest with a label, training part.
        test: likewise, test part.
        num_unlabelled_files: files without a label, by part.
        clusters: `speaker` or `file`, the unit of the confidence interval: speakers where the test part has several
            and none of them was trained on.

    Raises:
        ValueError: if a split, the column or the alignments are missing, there are fewer than two classes, or the parts
            have no label in common.
    """

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        *,
        alignments: str | Path | Alignments | None = None,
        pool: Pool | None = None,
        train_split: str = "train",
        test_split: str | None = None,
    ) -> None:
        if pool is not None and pool not in get_args(Pool):
            raise ValueError(f"pool={pool!r} is not one of {', '.join(get_args(Pool))}")
        if name == "phones" and pool == "mean":
            raise ValueError("phones change within a file: pool='frames' is the only way to probe them")
        if name == "path":
            raise ValueError("every file has a path of its own: name another column as task")
        self.name = name
        self.manifest = manifest
        self.pool: Pool = pool or ("frames" if name in ("phones", "speaker") else "mean")
        self.train_split = train_split
        self.test_split = test_split or _DEFAULT_TEST_SPLIT.get(name, "test")
        if self.train_split == self.test_split:
            raise ValueError(f"train_split and test_split are both {train_split!r}: a probe is tested on other files")
        parts = {"train": self._rows_of(self.train_split), "test": self._rows_of(self.test_split)}
        if name == "phones":
            self._read_alignments(alignments, parts)
        else:
            self._read_column(parts)
        labelled = {part: np.array([row for row in rows if row in self._labels], int) for part, rows in parts.items()}
        self.train, self.test = labelled["train"], labelled["test"]
        self.num_unlabelled_files = {part: len(parts[part]) - len(labelled[part]) for part in parts}
        found = {
            part: {label for row in rows for label in self._labels_in(int(row))} for part, rows in labelled.items()
        }
        self.classes = sorted(found["train"], key=_by_number)
        self._check(found["train"], found["test"])
        self._codes = dict.fromkeys(found["test"], UNSEEN) | {label: i for i, label in enumerate(self.classes)}
        self.clusters = self._choose_clusters()

    @property
    def rows(self) -> np.ndarray:
        """All rows of the manifest whose features are needed."""
        return np.union1d(self.train, self.test)

    def trained_on(self, rows: np.ndarray) -> "Task":
        """The same task and classes, learnt from these rows of the training part alone.

        Raises:
            ValueError: if none of them has a label.
        """
        task = copy(self)
        task.train = np.intersect1d(self.train, rows)
        if not len(task.train):
            raise ValueError(
                f"none of the {len(rows)} training files chosen has a label for task {self.name!r}: raise "
                "`train_minutes`"
            )
        return task

    def labels(self, row: int, times: FrameTimes, start: int, num_frames: int) -> np.ndarray:
        """`[T]` int64 class of every frame of a file, or of a window of it; -100 where there is none.

        Args:
            row: of the manifest.
            times: of the frames.
            start: the window's first sample; 0 for the whole file.
            num_frames: T.
        """
        label = self._labels[row]
        if isinstance(label, str):
            return np.full(num_frames, self._codes[label])
        return window_labels(label, times, start, num_frames, self._codes)

    def examples(self, part: Literal["train", "test"], store: FeatureStore, kind: Kind) -> Examples:
        """The labelled frames, or means of frames, of one part.

        Args:
            part: which.
            store: holds the files of that part.
            kind: which features of the store.

        Raises:
            ValueError: if no frame of the part is labelled.
        """
        values, cluster_of_row = store.part(kind), self._cluster_of_row()
        means, examples, labels, clusters = [], [], [], []
        for row in (self.train if part == "train" else self.test).tolist():
            place = store.place(row)
            if place.start == place.stop:
                continue
            if self.pool == "mean":
                means.append(values[place].mean(0, dtype=np.float64).astype(np.float32))
                found, frames = self.labels(row, store.features, 0, 1), np.array([len(means) - 1])
            else:
                found = self.labels(row, store.features, 0, place.stop - place.start)
                frames = place.start + np.flatnonzero(found != UNLABELLED)
                found = found[found != UNLABELLED]
            examples.append(frames)
            labels.append(found)
            clusters.append(np.full(len(found), cluster_of_row[row]))
        if not sum(map(len, labels)):
            raise ValueError(
                f"no frame of the {part} part (split {self._split(part)!r}) has a label for task {self.name!r}: do the "
                "times of the alignments fit the audio, and are the files long enough for a frame?"
            )
        return Examples(
            values=np.stack(means) if self.pool == "mean" else values,
            rows=np.concatenate(examples),
            labels=np.concatenate(labels),
            clusters=np.concatenate(clusters),
        )

    def record(self) -> dict[str, Any]:
        """The protocol's share of `probe.json`."""
        return {
            "task": self.name,
            "pool": self.pool,
            "train_split": self.train_split,
            "test_split": self.test_split,
            "num_train_files": len(self.train),
            "num_test_files": len(self.test),
            "num_unlabelled_files": self.num_unlabelled_files,
            "classes": self.classes,
            "clusters": self.clusters,
        }

    def _split(self, part: str) -> str:
        return self.train_split if part == "train" else self.test_split

    def _rows_of(self, split: str) -> np.ndarray:
        splits = self.manifest.columns.get("split")
        if splits is None:
            raise ValueError(
                f"a probe needs a training and a test part, but the manifest in {self.manifest.root} has no column "
                "'split': add one (`cpc data index` with --split_level, or a group 'split' in --speaker_pattern)"
            )
        rows = np.flatnonzero(np.array(splits) == split)
        if not len(rows):
            there = ", ".join(sorted(set(splits)))
            option = "train_split" if split == self.train_split else "test_split"
            raise ValueError(
                f"task {self.name!r} needs split {split!r}, but the manifest in {self.manifest.root} has only {there}: "
                f"name one of these with `{option}`"
            )
        return rows

    def _read_column(self, parts: dict[str, np.ndarray]) -> None:
        values = self.manifest.column(self.name)
        self._labels: dict[int, str | list[Segment]] = {
            int(row): values[row] for rows in parts.values() for row in rows if values[row]
        }

    def _read_alignments(self, alignments: str | Path | Alignments | None, parts: dict[str, np.ndarray]) -> None:
        if not isinstance(alignments, Alignments):
            source = self.manifest.root / ALIGNMENTS_NAME if alignments is None else Path(alignments)
            if not source.exists():
                raise ValueError(
                    f"task 'phones' needs alignments, and there is no {source}: name them with `alignments`"
                )
            alignments = read_alignments(source)
        paths = self.manifest.paths
        aligned = [int(row) for rows in parts.values() for row in rows if paths[row] in alignments]
        tracks = {row: alignments.segments(paths[row]) for row in aligned}
        self._labels = {row: segments for row, segments in tracks.items() if segments}
        if not self._labels:
            files = [paths[row] for rows in parts.values() for row in rows]
            raise ValueError(
                f"none of the {len(files)} files of splits {self.train_split!r} and {self.test_split!r} has an "
                f"alignment; the files are\n{name_a_few(files)}\nthe alignments\n{name_a_few(alignments.names)}"
            )

    def _labels_in(self, row: int) -> Iterable[str]:
        label = self._labels[row]
        return [label] if isinstance(label, str) else [segment.label for segment in label]

    def _check(self, in_train: set[str], in_test: set[str]) -> None:
        for part, labels in (("training", in_train), ("test", in_test)):
            if not labels:
                split = self._split("train" if part == "training" else "test")
                raise ValueError(f"no file of the {part} part (split {split!r}) has a label for task {self.name!r}")
        if len(in_train) < 2:
            raise ValueError(
                f"task {self.name!r} has a single class in split {self.train_split!r}, {self.classes[0]!r}: there is "
                "nothing to tell apart; name another task or `train_split`"
            )
        if not in_train & in_test:
            splits = self.manifest.columns["split"]
            values = self.manifest.columns.get(self.name, [""] * len(splits))
            fitting = {split for split, value in zip(splits, values, strict=True) if value in in_train}
            others = sorted(fitting - {self.train_split, self.test_split})
            advice = f"`test_split` {others[0]}" if others else "another `train_split` or `test_split`"
            raise ValueError(
                f"task {self.name!r}: splits {self.train_split!r} ({len(in_train)} labels, such as "
                f"{self.classes[0]!r}) and {self.test_split!r} ({len(in_test)}, such as {min(in_test)!r}) have none in "
                f"common, so every answer would be wrong; try {advice}"
            )

    def _choose_clusters(self) -> str:
        speakers = self.manifest.columns.get("speaker")
        if speakers is None or self.name == "speaker":
            return "file"
        tested, trained = ({speakers[row] for row in rows} for rows in (self.test, self.train))
        is_independent = "" not in tested and not tested & trained and len(tested) >= MIN_SPEAKER_CLUSTERS
        return "speaker" if is_independent else "file"

    def _cluster_of_row(self) -> np.ndarray:
        if self.clusters == "speaker":
            return self.manifest.codes("speaker")[0]
        return np.arange(len(self.manifest))


def _by_number(label: str) -> tuple[float, str]:
    return (float(label) if label.isdecimal() else math.inf, label)
