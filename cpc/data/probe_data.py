"""Probe data: the features, labels and splits of one modality, behind the same interface for all modalities.

A row is the index of an observation of the corpus, such as a file or an image. T vectors of one observation, D feature
dim, B observations of a batch.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cpc.data.batch import UNLABELLED as UNLABELLED
from cpc.data.batch import Batch
from cpc.data.store.fingerprints import Content
from cpc.data.tensors import move

Precision = Literal["float32", "bfloat16"]
# maps row, `FeatureExtractor.times`, first sample and T to `[T]` int64 classes; `UNLABELLED` if there is no label
LabelsOf = Callable[[int, Any, int, int], np.ndarray]


def autocast(x: Tensor, precision: Precision) -> torch.autocast:
    """Return a context in which products with `x` have this precision."""
    return torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16")


@dataclass(frozen=True)
class Labels:
    """The labels of observations."""

    # Label of each row, or the set of its labels if they vary within; rows without a label are missing.
    of_row: Mapping[int, Any]
    order: Sequence[str] | None = None  # the classes in order; if None they are sorted, numbers by their value
    # Returns the classes of vectors with different labels; called with the arguments of `codes`.
    codes_of: Callable[[int, Mapping[str, int], Any, int, int], np.ndarray] | None = None

    @property
    def vary_within(self) -> bool:
        """Whether vectors of one observation may have different labels."""
        return self.codes_of is not None

    def names(self, row: int) -> set[str]:
        """Return all labels of an observation."""
        return self.of_row[row] if self.vary_within else {self.of_row[row]}

    def codes(self, row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
        """Return the class of each of T vectors of an observation, `[T]` int64, `UNLABELLED` without a label.

        `code_of` gives the class of each label. `times` are those of the `FeatureExtractor`. `start` is the first
        sample if the vectors belong to a part of the observation, 0 for the whole.
        """
        if self.codes_of is not None:
            return self.codes_of(row, code_of, times, start, num_vectors)
        return np.full(num_vectors, code_of[self.of_row[row]])


class FeatureExtractor(ABC):
    """One pass over observations, which computes one or several features of each observation.

    Attributes:
        dims: D of each feature.
        dtypes: dtype in which a feature is stored; float32 for features that are not listed.
        times: the times of the vectors, for labels that vary within an observation.
        is_pooled: True if each observation has a single vector; the pooling of the task then has no effect.
    """

    dims: Mapping[str, int]
    dtypes: Mapping[str, str] = {}
    times: Any = None
    is_pooled: bool = False

    @property
    def num_workers(self) -> int:
        """Number of reader threads. If there are several threads, each computes on one core."""
        return 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return T of each observation, `[n]`; 0 if the observation is too short for a vector or left out."""
        return np.ones(len(rows), np.int64)

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Split observations that have vectors into groups to read together; by default one observation per group."""
        return np.split(rows, len(rows))

    @abstractmethod
    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, Float[np.ndarray, "t D"]]]]:
        """Yield the row and the features of every observation of a group; a long observation may come in pieces."""

    def sparse(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Return the sparse features by name, a scipy CSR array with a row for each row; `read` leaves them out."""
        return {}

    def geometry(self, feature: str) -> dict[str, Any]:
        """Return the facts that a reader of stored features needs."""
        return {"features": feature, "dim": self.dims[feature]}

    def file_features(self, path: Path) -> np.ndarray:
        """Return the features of a file outside any corpus; the extractor must have only one feature."""
        raise NotImplementedError


class ProbeData(ABC):
    """The features, tasks and baselines of one modality, over one corpus.

    A subclass for sequences of vectors needs `splits`, `labels`, `feature_extractor`, `find_files`, `several_vectors`.

    Args:
        train_split: split on which probes are trained; untrained models take its statistics. None: the whole corpus.
        device: device of the models.
        precision: precision of the encoder's matrix products.

    Attributes:
        unit: noun for an observation, such as `file` or `image`.
        source_unit: noun for what `content` describes: an observation, or the recording that it is cut from.
        is_content_of_training: whether `content` describes the same units as that of a training split.
        features: a model's features, each with the suffix that follows `cpc` or `random` in the name of its result.
        hand_made: features that need no model.
        coarse: hand-made features that have no vector for each frame of an observation.
        default_features, default_baselines: features and baselines that are probed by default.
        several_vectors: True if an observation has a vector per frame, False if it has one vector.
        supervised: fields of `cpc.probes.SupervisedProtocol` that this modality sets; None: no supervised training.
        supervised_feature: feature that the softmax of a supervised network reads.
        penalty_chosen_by: criterion that selects the penalty on held-out examples. `likelihood` is smoother. `accuracy`
            suits tasks with so many classes that a few confident errors dominate the likelihood.
    """

    unit: str = "observation"
    source_unit: str = "file"
    is_content_of_training: bool = True
    features: Mapping[str, str] = {"c": "", "z": "_z"}
    hand_made: tuple[str, ...] = ()
    coarse: tuple[str, ...] = ()
    default_features: tuple[str, ...] = ("c", "z")
    default_baselines: tuple[str, ...] = ("majority", "random")
    several_vectors: bool = False
    supervised: Mapping[str, Any] | None = None
    supervised_feature: str = "c"
    penalty_chosen_by: Literal["likelihood", "accuracy"] = "likelihood"

    def __init__(
        self, train_split: str | None = "train", device: str = "cpu", precision: Precision = "float32"
    ) -> None:
        self.train_split = train_split
        self.device = device
        self.precision = precision

    def prepare(self) -> None:  # noqa: B027 - most corpora are read when they are opened
        """Decode the corpus, after tasks are checked and before features are computed."""

    @property
    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Split of every observation."""

    @abstractmethod
    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the labels of these observations for a task; an unknown task is a ValueError."""

    @abstractmethod
    def feature_extractor(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """Return an extractor of these features: features of a model, or one of `hand_made` if `model` is None."""

    @abstractmethod
    def find_files(self, folder: Path) -> list[str]:
        """Return the files below a folder that a model can read, relative to it; raise an error if there are none."""

    def families(self, task: str) -> Mapping[str, Sequence[str]]:
        """Return the families of tasks, or of preceding families, whose means a report gives; by default none."""
        return {}

    def name(self, row: int) -> str:
        """Return the name of an observation, for messages."""
        return f"{self.unit} {row}"

    def default_test_split(self, task: str) -> str:
        """Return the split on which a task is tested."""
        return "test"

    def default_folds(self, task: str, num_folds: int | None) -> tuple[str | None, int | None]:
        """Return the column and the number of folds (`num_folds` if given); None if the task has a test split."""
        return None, num_folds

    def default_pool(self, task: str) -> str:
        """Return `frames` if every vector of an observation is probed, else a pooling (`cpc.data.probe_data`)."""
        return "mean"

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """Return the unit of statistical independence: its name and, for every observation, its id `[num_rows]`."""
        return self.unit, np.arange(len(self.splits))

    def groups(self, task: str) -> np.ndarray:
        """Return a group for every observation, `[num_rows]`; a group is held out as a whole to choose a penalty."""
        return np.arange(len(self.splits))

    def units(self, kind: str, task: str) -> np.ndarray | None:
        """Return the `speaker` or `recording` of every observation, `[num_rows]`; None if unknown, or the task."""
        return None

    def sources(self) -> np.ndarray:
        """Return the `source_unit` of every observation, `[num_rows]`."""
        return np.arange(len(self.splits))

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the content of the observations, or of the files that they are cut from; None if not at hand."""
        return None

    def minutes(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the duration of each observation in minutes, `[n]`; None if observations have no duration."""
        return None

    def initialise(self, model: Any, seed: int) -> None:  # noqa: B027
        """Set the statistics and the data-dependent initialisation of an untrained model, as training does at first."""

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Return the features of the baseline `random`, given the probed features of the trained model."""
        return learnt or [name for name in self.default_features if name in self.features][:1]

    def trained(self, model: Any) -> list[nn.Module]:
        """Return the parts of a model that supervised training trains; by default the encoder and the context."""
        return [model.encoder, model.context]

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Yield training batches of these observations without end; `Batch.labels` `[B, T]` holds the classes.

        `labels` returns the classes of the vectors of a row; `protocol` is a `cpc.probes.SupervisedProtocol`.
        """
        raise NotImplementedError

    def vectors(self, model: Any, batch: Batch) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"]]:
        """Return the vectors of a batch that the softmax reads, with gradients, and a mask that excludes padding.

        By default the vectors are the contexts.
        """
        with autocast(batch.x, self.precision):
            latents = model.encoder(batch.x)
        contexts, _ = model.context(latents.float())
        num_valid = rearrange(move(model.encoder.num_latents(batch.num_valid), contexts.device), "b -> b 1")
        return contexts, torch.arange(contexts.shape[1], device=contexts.device) < num_valid

    def record(self) -> dict[str, Any]:
        """Return facts about the corpus for `probe.json`."""
        return {}


POOLS = "`frames`, `mean`, `mean_std` or `segments:N`"


def check_pool(pool: str, has_frames: bool = True) -> None:
    """Raise a ValueError if the name of a pooling is unknown, or is `frames` where one vector is needed."""
    if not re.fullmatch(r"mean|mean_std|segments:[1-9]\d{0,3}" + "|frames" * has_frames, pool):
        legal = POOLS if has_frames else POOLS.removeprefix("`frames`, ")
        raise ValueError(f"pool={pool!r} is not one of {legal}, with N segments of equal length")


def pool_vectors(x: Float[np.ndarray, "T D"], pool: str) -> Float[np.ndarray, " F"]:
    """Return one vector, computed in float64.

    `mean` has D values. `mean_std` has 2 D values: mean and standard deviation. `segments:N` has N D values: the means
    of N segments of equal length. With fewer than N vectors, neighbouring segments share a vector.
    """
    if pool == "mean":
        return x.mean(0, dtype=np.float64).astype(np.float32)
    if pool == "mean_std":
        return np.concatenate([x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)]).astype(np.float32)
    num_segments = int(pool.removeprefix("segments:"))
    edges = np.arange(num_segments + 1) * len(x) // num_segments
    segments = [x[first : max(end, first + 1)] for first, end in itertools.pairwise(edges)]
    means = [segment.mean(0, dtype=np.float64) for segment in segments]
    return np.concatenate(means).astype(np.float32)
