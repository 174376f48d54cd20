"""A comparison of features and networks on the same tasks, observations and protocol."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from cpc.data.probe_data import FeatureExtractor, ProbeData
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency, answer_by_neighbours
from cpc.probes.classifier import ProbeProtocol
from cpc.probes.folds import Fold, join_folds, over_folds
from cpc.probes.linear import fit_probe
from cpc.probes.results import Answers, ProbeResult
from cpc.probes.store import Extraction, FeatureStore
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.task import Examples, Task


@dataclass
class Comparison:
    """The results of probes, networks and baselines on every task.

    Attributes:
        probe_data: the corpus, as probes read it.
        tasks: the tasks with all training labels.
        probed: the same tasks as probes are trained on them, perhaps with less training data.
        protocol: how probes are trained.
        extraction: how features are computed and kept.
        shares: shares of the labels, for the curves.
        results: results by task and name.
        curves: `label_efficiency` of `probe.json` by task.
        geometries: geometry of each feature, by name.
        num_empty: number of observations without a vector, by name of the feature.
    """

    probe_data: ProbeData
    tasks: Sequence[Task]
    probed: Sequence[Task]
    protocol: ProbeProtocol
    extraction: Extraction
    shares: Sequence[float] = ()
    geometries: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    num_empty: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.subsets = {task.name: [task.subset(share) for share in self.shares] for task in self.probed}
        self.results: dict[str, dict[str, ProbeResult]] = {task.name: {} for task in self.tasks}
        self.curves: dict[str, dict[str, Any]] = {
            name: {
                "shares": list(self.shares),
                "num_labels": [len(subset.train) for subset in subsets],
                "accuracy_percent": {},
                "num_steps": {},
            }
            for name, subsets in self.subsets.items()
        }

    def probe(
        self,
        names: Mapping[str, str],
        extractors: Iterable[FeatureExtractor],
        num_seeds: int,
        *,
        with_shares: bool = False,
        neighbour_feature: str | None = None,
    ) -> None:
        """Train and test probes on features.

        Args:
            names: the names of the results by feature.
            extractors: one extractor, or several (untrained models of several seeds) whose answers are averaged.
            num_seeds: number of probes for each feature.
            with_shares: also train probes on shares of the labels.
            neighbour_feature: the feature for nearest neighbours; None: no nearest neighbours.
        """
        answers: dict[tuple[str, str], list[Answers]] = defaultdict(list)
        rows = np.unique(np.concatenate([task.rows for task in self.probed]))
        for extractor in extractors:
            store = self._store(extractor, rows)
            for (feature, name), task in product(names.items(), self.probed):
                self.geometries[name], self.num_empty[name] = extractor.geometry(feature), store.num_empty
                fit = partial(self._fit, self._title(name, task), num_seeds)
                task_answers, judge = over_folds(task, store, feature, fit)
                answers[task.name, name] += task_answers
                self.results[task.name][name] = judge(answers[task.name, name])
                for subset in self.subsets[task.name] if with_shares else ():
                    fit = partial(self._fit, self._title(f"{name} of {len(subset.train)} labels", task), num_seeds)
                    task_answers, judge = over_folds(subset, store, feature, fit)
                    self._add_to_curve(task.name, name, judge(task_answers))
                if feature == neighbour_feature:
                    task_answers, judge = over_folds(task, store, feature, answer_by_neighbours)
                    self.results[task.name]["neighbours"] = judge(task_answers)
            del store, judge  # before the next extractor allocates its features

    def guess(self, name: str, model: CPC) -> None:
        """Predict the most frequent class of every task, on the same vectors as a probe of this model."""
        extractor = self.probe_data.feature_extractor([self.probe_data.supervised_feature], model)
        for task in self.probed:
            label_store = FeatureStore(extractor, task.rows, extractor.num_vectors(task.rows), {})
            answers, judge = over_folds(task, label_store, None, answer_by_frequency)
            self.results[task.name][name] = judge(answers)

    def supervise(self, name: str, model: CPC, protocol: SupervisedProtocol, *, is_pretrained: bool = False) -> None:
        """Train copies of a model for each task's labels, on its whole training part and on shares of the labels.

        Networks average their vectors over an observation, also if probes pool otherwise.
        """
        for task in self.tasks:
            self.results[task.name][name] = self._supervise_task(name, model, task, protocol, is_pretrained)
            for subset in self.subsets[task.name]:
                title = f"{name} of {len(subset.train)} labels"
                self._add_to_curve(task.name, name, self._supervise_task(title, model, subset, protocol, is_pretrained))

    def _supervise_task(
        self, name: str, model: CPC, task: Task, protocol: SupervisedProtocol, is_pretrained: bool
    ) -> ProbeResult:
        feature, folds, steps = self.probe_data.supervised_feature, [], []
        for fold in task.averaged().folds:
            trained, title = copy.deepcopy(model), self._title(name, task)
            head, num_steps = train_supervised(
                trained, self.probe_data, fold, protocol, is_pretrained=is_pretrained, title=title
            )
            extractor = self.probe_data.feature_extractor([feature], trained)
            test = fold.examples("test", self._store(extractor, fold.test), feature)
            label_store = FeatureStore(extractor, fold.train, extractor.num_vectors(fold.train), {})
            folds.append(Fold([head.answer(test)], test, len(fold.examples("train", label_store, None))))
            steps.append(num_steps)
        answers, judge = join_folds(folds, len(task.classes))
        return replace(judge(answers), num_network_steps=round(np.mean(steps)))

    def _fit(
        self, title: str | None, num_seeds: int, train: Examples, test: Examples, num_classes: int
    ) -> list[Answers]:
        device = self.extraction.device
        options: dict[str, Any] = {"title": title, "penalty_chosen_by": self.probe_data.penalty_chosen_by}
        probes = (fit_probe(train, num_classes, self.protocol, seed, device, **options) for seed in range(num_seeds))
        return [probe.answer(test) for probe in probes]

    def _add_to_curve(self, task: str, name: str, result: ProbeResult) -> None:
        curve = self.curves[task]
        curve["accuracy_percent"].setdefault(name, []).append(result.accuracy_percent)
        if result.num_network_steps is not None:
            curve["num_steps"].setdefault(name, []).append(result.num_network_steps)

    def _title(self, name: str, task: Task) -> str | None:
        return f"probe {name}: {task.name}" if self.extraction.progress else None

    def _store(self, extractor: FeatureExtractor, rows: np.ndarray) -> FeatureStore:
        return FeatureStore.extract(extractor, rows, self.probe_data.name, self.extraction)
