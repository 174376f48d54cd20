"""One comparison: several features and networks, the same tasks, the same observations, the same protocol."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cpc.data.readouts import FrontEnd, Precision, Readouts
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency, answer_by_neighbours
from cpc.probes.linear import ProbeProtocol, fit_probe, standardise
from cpc.probes.results import Answers, ProbeResult, summarise
from cpc.probes.store import DEFAULT_MAX_RAM_BYTES, FeatureStore
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.task import Examples, Task


@dataclass(frozen=True)
class Extraction:
    """How and where features are computed and kept.

    Attributes:
        device: where networks and probes run.
        precision: of the encoder's products, see `cpc.data.audio.features.Features`.
        max_ram_bytes: larger feature stores are memory-mapped.
        scratch_dir: folder for these; the system's for temporary files unless given.
        dtype: of stored features; float32, and float16 of grids, unless given.
        cache_dir: folder of packed data; beside the data unless given.
        skip_bad: go on without files that cannot be read.
        progress: show progress bars.

    Raises:
        ValueError: if `scratch_dir` is no folder, or `max_ram_bytes` negative.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    max_ram_bytes: int = DEFAULT_MAX_RAM_BYTES
    scratch_dir: str | Path | None = None
    dtype: Literal["float32", "float16"] | None = None
    cache_dir: str | Path | None = None
    skip_bad: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.max_ram_bytes < 0:
            raise ValueError(f"features may take {self.max_ram_bytes / 1e9:g} GB of memory: this cannot be negative")
        if self.scratch_dir is not None and not Path(self.scratch_dir).is_dir():
            raise ValueError(f"scratch_dir={str(self.scratch_dir)!r} is no folder: make it, or name another one")


class Comparison:
    """Collects what features, networks and no knowledge at all say about every task.

    Args:
        readouts: of the corpus.
        tasks: what to predict, with all training labels.
        learnt: the same tasks, as probes learn them: perhaps from less data.
        protocol: how probes are trained.
        extraction: how features are computed and kept.
        shares: of the labels, for the curves.

    Attributes:
        results: `[task][name]`.
        accuracy_percent: `[task][name]` by share.
        num_steps: `[task][name]` of networks by share.
        geometries: of the features, by name.
        num_empty: observations without a vector, by name.
    """

    def __init__(
        self,
        readouts: Readouts,
        tasks: Sequence[Task],
        learnt: Sequence[Task],
        protocol: ProbeProtocol,
        extraction: Extraction,
        shares: Sequence[float] = (),
    ) -> None:
        self.readouts = readouts
        self.tasks, self.learnt = tasks, learnt
        self.protocol = protocol
        self.extraction = extraction
        self.by_share = {task.name: [task.with_share(share) for share in shares] for task in learnt}
        self.results: dict[str, dict[str, ProbeResult]] = {task.name: {} for task in tasks}
        self.accuracy_percent: dict[str, dict[str, list[float]]] = {task.name: defaultdict(list) for task in tasks}
        self.num_steps: dict[str, dict[str, list[int]]] = {task.name: defaultdict(list) for task in tasks}
        self.geometries: dict[str, dict[str, Any]] = {}
        self.num_empty: dict[str, int] = {}

    def probe(
        self,
        names: Mapping[str, str],
        front_ends: Iterable[FrontEnd],
        num_seeds: int,
        *,
        with_shares: bool = False,
        neighbours_of: str | None = None,
    ) -> None:
        """Train and test probes on features.

        Args:
            names: which features to probe, and what their results are called.
            front_ends: one, or several whose answers are averaged (untrained models of several seeds).
            num_seeds: probes for each.
            with_shares: also on shares of the labels.
            neighbours_of: ask the nearest neighbours in this feature, too.
        """
        answers: dict[tuple[str, str], list[Answers]] = defaultdict(list)
        rows = np.unique(np.concatenate([task.rows for task in self.learnt]))
        for front_end in front_ends:
            store = self._store(front_end, rows)
            for (feature, name), task in product(names.items(), self.learnt):
                self.geometries[name], self.num_empty[name] = front_end.geometry(feature), store.num_empty
                train, test = (task.examples(part, store, feature) for part in ("train", "test"))
                answers[task.name, name] += self._answers(name, task, train, test, num_seeds)
                self.results[task.name][name] = self._judged(task, answers[task.name, name], train, test)
                for smaller in self.by_share[task.name] if with_shares else ():
                    train = smaller.examples("train", store, feature)
                    found = self._answers(f"{name} of {len(train)} labels", task, train, test, num_seeds)
                    accuracy = self._judged(task, found, train, test).accuracy_percent
                    self.accuracy_percent[task.name][name].append(accuracy)
                if feature == neighbours_of:
                    train = task.examples("train", store, feature)
                    voted = answer_by_neighbours(train, test, len(task.classes))
                    self.results[task.name]["neighbours"] = self._judged(task, [voted], train, test)
            del store, train, test  # the next front end's features take their room

    def guess(self, name: str, model: CPC) -> None:
        """Answer every task by the frequency of its classes, of vectors where this model has them."""
        front_end = self.readouts.front_end([self.readouts.supervised_feature], model)
        for task in self.learnt:
            train, test = (self._labels(front_end, task, part) for part in ("train", "test"))
            answers = answer_by_frequency(train, test, len(task.classes))
            self.results[task.name][name] = self._judged(task, [answers], train, test)

    def supervise(self, name: str, model: CPC, protocol: SupervisedProtocol, *, is_pretrained: bool = False) -> None:
        """Train copies of a model for each task's labels, on all of its training part, and on shares of the labels."""
        for task in self.tasks:
            result = self._supervised(name, model, task, protocol, is_pretrained)
            self.results[task.name][name] = result
            for smaller in self.by_share[task.name]:
                title = f"{name} of {len(smaller.train)} labels"
                result = self._supervised(title, model, smaller, protocol, is_pretrained)
                self.accuracy_percent[task.name][name].append(result.accuracy_percent)
                self.num_steps[task.name][name].append(result.num_network_steps or 0)

    def _supervised(
        self, name: str, model: CPC, task: Task, protocol: SupervisedProtocol, is_pretrained: bool
    ) -> ProbeResult:
        trained, feature = copy.deepcopy(model), self.readouts.supervised_feature
        title = self._title(name, task)
        head, num_steps = train_supervised(
            trained, self.readouts, task, protocol, is_pretrained=is_pretrained, title=title
        )
        front_end = self.readouts.front_end([feature], trained)
        test = task.examples("test", self._store(front_end, task.test), feature)
        train = self._labels(front_end, task, "train")
        return replace(self._judged(task, [head.answer(test)], train, test), num_network_steps=num_steps)

    def _answers(self, name: str, task: Task, train: Examples, test: Examples, num_seeds: int) -> list[Answers]:
        standardisation, title, device = standardise(train), self._title(name, task), self.extraction.device
        probes = (
            fit_probe(train, len(task.classes), self.protocol, seed, device, standardisation, title=title)
            for seed in range(num_seeds)
        )
        return [probe.answer(test) for probe in probes]

    def _judged(self, task: Task, answers: list[Answers], train: Examples, test: Examples) -> ProbeResult:
        return summarise(answers, test, len(task.classes), len(train))

    def _title(self, name: str, task: Task) -> str | None:
        return f"probe {name}: {task.name}" if self.extraction.progress else None

    def _labels(self, front_end: FrontEnd, task: Task, part: Literal["train", "test"]) -> Examples:
        """Labels without features."""
        return task.examples(part, FeatureStore(front_end, task.rows, front_end.num_vectors(task.rows), {}), None)

    def _store(self, front_end: FrontEnd, rows: np.ndarray) -> FeatureStore:
        return FeatureStore.extract(
            front_end,
            rows,
            self.readouts.name,
            max_ram_bytes=self.extraction.max_ram_bytes,
            scratch_dir=self.extraction.scratch_dir,
            dtype=self.extraction.dtype,
            progress=self.extraction.progress,
        )
