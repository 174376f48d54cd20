"""One comparison: several features and networks, the same tasks, the same observations, the same protocol."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np

from cpc.data.readouts import FrontEnd, Readouts
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency, answer_by_neighbours
from cpc.probes.linear import fit_probe
from cpc.probes.probe import ProbeProtocol
from cpc.probes.results import Answers, ProbeResult, summarise
from cpc.probes.store import Extraction, FeatureStore
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.task import Examples, Task


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
        curves: of each task, `label_efficiency` of `probe.json`.
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
        self.curves: dict[str, dict[str, Any]] = {
            name: {
                "shares": list(shares),
                "num_labels": [len(smaller.train) for smaller in of_task],
                "accuracy_percent": {},
                "num_steps": {},
            }
            for name, of_task in self.by_share.items()
        }
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
                self.results[task.name][name] = summarise(answers[task.name, name], test, len(task.classes), len(train))
                for smaller in self.by_share[task.name] if with_shares else ():
                    train = smaller.examples("train", store, feature)
                    found = self._answers(f"{name} of {len(train)} labels", task, train, test, num_seeds)
                    self._add_to_curve(task.name, name, summarise(found, test, len(task.classes), len(train)))
                if feature == neighbours_of:
                    train = task.examples("train", store, feature)
                    voted = answer_by_neighbours(train, test, len(task.classes))
                    self.results[task.name]["neighbours"] = summarise([voted], test, len(task.classes), len(train))
            del store, train, test  # the next front end's features take their room

    def guess(self, name: str, model: CPC) -> None:
        """Answer every task by the frequency of its classes, of vectors where this model has them."""
        front_end = self.readouts.front_end([self.readouts.supervised_feature], model)
        for task in self.learnt:
            train, test = (self._labels(front_end, task, part) for part in ("train", "test"))
            answers = answer_by_frequency(train, test, len(task.classes))
            self.results[task.name][name] = summarise([answers], test, len(task.classes), len(train))

    def supervise(self, name: str, model: CPC, protocol: SupervisedProtocol, *, is_pretrained: bool = False) -> None:
        """Train copies of a model for each task's labels, on all of its training part, and on shares of the labels."""
        for task in self.tasks:
            self.results[task.name][name] = self._supervised(name, model, task, protocol, is_pretrained)
            for smaller in self.by_share[task.name]:
                title = f"{name} of {len(smaller.train)} labels"
                self._add_to_curve(task.name, name, self._supervised(title, model, smaller, protocol, is_pretrained))

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
        return replace(summarise([head.answer(test)], test, len(task.classes), len(train)), num_network_steps=num_steps)

    def _answers(self, name: str, task: Task, train: Examples, test: Examples, num_seeds: int) -> list[Answers]:
        title, device = self._title(name, task), self.extraction.device
        probes = (
            fit_probe(train, len(task.classes), self.protocol, seed, device, title=title) for seed in range(num_seeds)
        )
        return [probe.answer(test) for probe in probes]

    def _add_to_curve(self, task: str, name: str, result: ProbeResult) -> None:
        curve = self.curves[task]
        curve["accuracy_percent"].setdefault(name, []).append(result.accuracy_percent)
        if result.num_network_steps is not None:
            curve["num_steps"].setdefault(name, []).append(result.num_network_steps)

    def _title(self, name: str, task: Task) -> str | None:
        return f"probe {name}: {task.name}" if self.extraction.progress else None

    def _labels(self, front_end: FrontEnd, task: Task, part: Literal["train", "test"]) -> Examples:
        """Labels without features."""
        return task.examples(part, FeatureStore(front_end, task.rows, front_end.num_vectors(task.rows), {}), None)

    def _store(self, front_end: FrontEnd, rows: np.ndarray) -> FeatureStore:
        return FeatureStore.extract(front_end, rows, self.readouts.name, self.extraction)
