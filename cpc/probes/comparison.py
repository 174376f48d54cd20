"""One comparison: several features and networks, the same tasks, the same observations, the same protocol."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from cpc.data.probe_data import FeatureExtractor, ProbeData
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency, answer_by_neighbours
from cpc.probes.classifier import ProbeProtocol
from cpc.probes.folds import Fold, joined, over_folds
from cpc.probes.linear import fit_probe
from cpc.probes.results import Answers, ProbeResult
from cpc.probes.store import Extraction, FeatureStore
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.task import Examples, Task


class Comparison:
    """Collects what features, networks and no knowledge at all say about every task.

    Args:
        probe_data: of the corpus.
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
        probe_data: ProbeData,
        tasks: Sequence[Task],
        learnt: Sequence[Task],
        protocol: ProbeProtocol,
        extraction: Extraction,
        shares: Sequence[float] = (),
    ) -> None:
        self.probe_data = probe_data
        self.tasks, self.learnt = tasks, learnt
        self.protocol = protocol
        self.extraction = extraction
        self.by_share = {task.name: [task.subset(share) for share in shares] for task in learnt}
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
        extractors: Iterable[FeatureExtractor],
        num_seeds: int,
        *,
        with_shares: bool = False,
        neighbour_feature: str | None = None,
    ) -> None:
        """Train and test probes on features.

        Args:
            names: which features to probe, and what their results are called.
            extractors: one, or several whose answers are averaged (untrained models of several seeds).
            num_seeds: probes for each.
            with_shares: also on shares of the labels.
            neighbour_feature: ask the nearest neighbours in this feature, too.
        """
        answers: dict[tuple[str, str], list[Answers]] = defaultdict(list)
        rows = np.unique(np.concatenate([task.rows for task in self.learnt]))
        for extractor in extractors:
            store = self._store(extractor, rows)
            for (feature, name), task in product(names.items(), self.learnt):
                self.geometries[name], self.num_empty[name] = extractor.geometry(feature), store.num_empty
                fit = partial(self._fitted, self._title(name, task), num_seeds)
                found, judge = over_folds(task, store, feature, fit)
                answers[task.name, name] += found
                self.results[task.name][name] = judge(answers[task.name, name])
                for smaller in self.by_share[task.name] if with_shares else ():
                    fit = partial(self._fitted, self._title(f"{name} of {len(smaller.train)} labels", task), num_seeds)
                    found, judge = over_folds(smaller, store, feature, fit)
                    self._add_to_curve(task.name, name, judge(found))
                if feature == neighbour_feature:
                    found, judge = over_folds(task, store, feature, answer_by_neighbours)
                    self.results[task.name]["neighbours"] = judge(found)
            del store, judge  # the next front end's features take their room

    def guess(self, name: str, model: CPC) -> None:
        """Answer every task by the frequency of its classes, of vectors where this model has them."""
        extractor = self.probe_data.front_end([self.probe_data.supervised_feature], model)
        for task in self.learnt:
            labels_alone = FeatureStore(extractor, task.rows, extractor.num_vectors(task.rows), {})
            found, judge = over_folds(task, labels_alone, None, answer_by_frequency)
            self.results[task.name][name] = judge(found)

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
        feature, folds, steps = self.probe_data.supervised_feature, [], []
        for fold in task.folds:
            trained, title = copy.deepcopy(model), self._title(name, task)
            head, num_steps = train_supervised(
                trained, self.probe_data, fold, protocol, is_pretrained=is_pretrained, title=title
            )
            extractor = self.probe_data.front_end([feature], trained)
            test = fold.examples("test", self._store(extractor, fold.test), feature)
            labels_alone = FeatureStore(extractor, fold.train, extractor.num_vectors(fold.train), {})
            folds.append(Fold([head.answer(test)], test, len(fold.examples("train", labels_alone, None))))
            steps.append(num_steps)
        answers, judge = joined(folds, len(task.classes))
        return replace(judge(answers), num_network_steps=round(np.mean(steps)))

    def _fitted(
        self, title: str | None, num_seeds: int, train: Examples, test: Examples, num_classes: int
    ) -> list[Answers]:
        device = self.extraction.device
        how: dict[str, Any] = {"title": title, "penalty_chosen_by": self.probe_data.penalty_chosen_by}
        probes = (fit_probe(train, num_classes, self.protocol, seed, device, **how) for seed in range(num_seeds))
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
