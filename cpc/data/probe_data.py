"""What a modality answers about frozen features: which there are, what their labels are, how a file is read.

Probes ask these questions and know no modality. A row is an observation of the corpus: a file, an image. T vectors of
one observation, D feature dim, B observations of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cpc.data.batch import Batch

Precision = Literal["float32", "bfloat16"]
Pool = Literal["frames", "mean"]
# (row, where its vectors lie, first sample, T) -> `[T]` int64 classes, `UNLABELLED` where there is none
LabelsOf = Callable[[int, Any, int, int], np.ndarray]

UNLABELLED = -100  # PyTorch's `ignore_index`


@dataclass(frozen=True)
class Labels:
    """The label of each whole observation.

    Attributes:
        of_row: label by row; rows without a label are missing.
        order: of the classes; sorted, numbers as numbers, unless given.
    """

    of_row: Mapping[int, Any]
    order: Sequence[str] | None = None
    vary_within: ClassVar[bool] = False  # whether vectors of one observation may differ in their label

    def names(self, row: int) -> set[str]:
        """All labels of an observation."""
        return {self.of_row[row]}

    def codes(self, row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
        """`[T]` int64 class of every vector, `UNLABELLED` where there is none.

        Args:
            row: of the observation.
            code_of: class by label.
            times: where the vectors lie, `FeatureExtractor.times`.
            start: of a part of the observation, in samples; 0 for the whole.
            num_vectors: T.
        """
        return np.full(num_vectors, code_of[self.of_row[row]])


class FeatureExtractor(ABC):
    """One pass over observations, which gives one or several features of each.

    Attributes:
        dims: D of each feature.
        dtypes: what a feature is kept in where that is not float32.
        times: where vectors lie, for labels that vary within an observation.
    """

    dims: Mapping[str, int]
    dtypes: Mapping[str, str] = {}
    times: Any = None

    @property
    def num_workers(self) -> int:
        """Threads that read; each computes on one core if there are several."""
        return 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """`[n]` T of each observation; 0: too short for one, or left out."""
        return np.ones(len(rows), np.int64)

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Observations to read together, those that have vectors; each alone by default."""
        return np.split(rows, len(rows))

    @abstractmethod
    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, Float[np.ndarray, "t D"]]]]:
        """Row and features of the observations of a group; a long one may come in pieces, in order."""

    def sparse(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Features that `read` leaves out, a vector of each row. `values[chosen]` is a CSR tensor, probed as it is."""
        return {}

    def geometry(self, feature: str) -> dict[str, Any]:
        """What a reader of stored features must know."""
        return {"features": feature, "dim": self.dims[feature]}

    def file_features(self, path: Path) -> np.ndarray:
        """The one feature of this front end, of a file outside any corpus.

        Raises:
            ValueError: naming the file, if it cannot be used.
        """
        raise NotImplementedError


class ProbeData(ABC):
    """The features, tasks and baselines of one modality, over one corpus.

    A subclass for sequences of vectors needs `splits`, `labels`, `front_end` and `find_files`, and `several_vectors`.

    Args:
        train_split: where probes are trained, and where untrained models take their statistics; None: everywhere.
        device: where models are.
        precision: of an encoder's products.

    Attributes:
        unit: what an observation is called: `file`, `image`.
        features: those of a model, and what their name adds to `cpc` and `random` in the names of results.
        hand_made: features that need no model.
        default_features: what is probed by default.
        default_baselines: what it is compared with.
        several_vectors: whether an observation gives a vector per frame, or one in all.
        supervised: fields of `cpc.probes.SupervisedProtocol` that are this modality's recipe; None: no network is
            trained for the labels.
        supervised_feature: what a trained network's softmax reads.
        penalty_chosen_by: what decides among penalties on held-out examples: their log-`likelihood`, which is smoother,
            or `accuracy`, for tasks of so many classes that a few confident errors outweigh what is right.
    """

    unit: str = "observation"
    features: Mapping[str, str] = {"c": "", "z": "_z"}
    hand_made: tuple[str, ...] = ()
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

    @property
    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The split of every observation."""

    @abstractmethod
    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """What a task predicts, of these observations.

        Raises:
            ValueError: if there is no such task.
        """

    @abstractmethod
    def front_end(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """A pass that gives these features, of a model or one of `hand_made`."""

    @abstractmethod
    def find_files(self, folder: Path) -> list[str]:
        """Files below a folder that a model can read, relative to it; raises a ValueError if there is none."""

    def families(self, task: str) -> Mapping[str, Sequence[str]]:
        """Families of tasks that a name stands for, of which a report gives the means; none by default.

        Members are tasks, or families before.
        """
        return {}

    def name(self, row: int) -> str:
        """An observation, for messages."""
        return f"{self.unit} {row}"

    def default_test_split(self, task: str) -> str:
        """Where a task is tested."""
        return "test"

    def default_folds(self, task: str, num_folds: int | None) -> tuple[str | None, int | None]:
        """The column and number of folds of a task without a test split, the number unless given; None: it has one."""
        return None, num_folds

    def default_pool(self, task: str) -> Pool:
        """What is probed of several vectors."""
        return "mean"

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """What is independent of what: its name, and `[num_rows]` int64 an id of every observation."""
        return self.unit, np.arange(len(self.splits))

    def groups(self, task: str) -> np.ndarray:
        """`[num_rows]` int64: observations of one id are held out together when a probe's penalty is chosen."""
        return np.arange(len(self.splits))

    def minutes(self, rows: np.ndarray) -> np.ndarray | None:
        """`[n]` how long observations last; None where they have no duration."""
        return None

    def initialise(self, model: Any, seed: int) -> None:  # noqa: B027
        """Give an untrained model the statistics and the data initialisation that training would begin with."""

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Which features the baseline `random` reads, given those of the model."""
        return learnt or [name for name in self.default_features if name in self.features][:1]

    def trained(self, model: Any) -> list[nn.Module]:
        """The parts of a model that labels train."""
        raise NotImplementedError

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Endless training batches of these observations; `Batch.labels` `[B, T]` holds the classes.

        Args:
            rows: of the training part.
            labels: classes of the vectors of a row.
            model: that is trained.
            protocol: a `cpc.probes.SupervisedProtocol`.
        """
        raise NotImplementedError

    def vectors(self, model: Any, batch: Batch) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"]]:
        """What the softmax reads of a batch, with gradients, and which of it is no padding."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """What `probe.json` says about the corpus."""
        return {}
