"""A comparison of features, networks and baselines on the same tasks, observations and protocol."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from cpc.data.probe_data import FeatureExtractor, ProbeData
from cpc.model import CPC
from cpc.probes.classifier import answer_by_frequency, answer_by_neighbours
from cpc.probes.fit import fit_probe
from cpc.probes.reading import Reading
from cpc.probes.record import add_seconds
from cpc.probes.results import CONFIDENCE, Answers, ProbeResult, cross_validate, summarise
from cpc.probes.store import Extraction, FeatureStore, check_names
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.task import Examples, Task

BASELINES = ("majority", "random", "neighbours")
NETWORKS = ("supervised", "fine_tuned")
Classify = Callable[[Examples, Examples, int], Sequence[Answers]]  # (train, test, num_classes) -> answers of each seed


@dataclass
class Comparison:
    """The features, baselines and networks of a report, and their results; `cpc.probes.report.probe` has the options.

    Attributes:
        results: results by task and name.
        curves: `label_efficiency` of `probe.json` by task.
        geometries: geometry of each feature, by name.
        num_empty: number of observations without a vector, by name of the feature.
        seconds: duration of each stage.
    """

    probe_data: ProbeData
    features: Sequence[str]
    baselines: Sequence[str]
    l2: float | None = None
    supervised: SupervisedProtocol = field(default_factory=SupervisedProtocol)
    extraction: Extraction = field(default_factory=Extraction)
    label_shares: Sequence[float] = ()
    num_random_models: int = 1
    reading: Reading = field(default_factory=Reading)
    results: dict[str, dict[str, ProbeResult]] = field(default_factory=lambda: defaultdict(dict), init=False)
    curves: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    geometries: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    num_empty: dict[str, int] = field(default_factory=dict, init=False)
    seconds: dict[str, float] = field(default_factory=dict, init=False)
    _subsets: dict[str, list[Task]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        data = self.probe_data
        networks = NETWORKS if data.supervised is not None else ()
        check_names("features", self.features, [*data.features, *data.hand_made])
        check_names("baselines", self.baselines, [*BASELINES, *networks, *data.hand_made])
        self.model_features = [name for name in self.features if name in data.features]
        if "neighbours" in self.baselines and not self.model_features:
            raise ValueError(f"baselines: neighbours need one of the `features` {', '.join(data.features)}")

    def check(self, task: Task) -> None:
        """Check that a task has the neighbours, coarse features and shares of its labels that are to be measured."""
        self.reading.check(task)
        pooled = {"neighbours", *self.probe_data.coarse} if task.pool == "frames" else set()
        for name in (*self.features, *self.baselines):
            if name in pooled:
                whole = f"{name} has one vector for a whole {self.probe_data.unit}"
                raise ValueError(f"{whole}, but task {task.name!r} labels every frame: set `pool` to mean or mean_std")
        for share in self.label_shares:
            task.subset(share)

    def measure(
        self, tasks: Sequence[Task], model: CPC, build_model: Callable[[int], CPC], probed: Sequence[Task] | None = None
    ) -> None:
        """Extract the features, and train and test all probes and networks.

        `tasks` have all training labels; `probed` are the same tasks as probes are trained on them, if they have less
        training data. `build_model` builds an untrained model from a seed.
        """
        data, learnt, probed = self.probe_data, self.model_features, tasks if probed is None else probed
        for task in probed:
            self._subsets[task.name] = [task.subset(share) for share in self.label_shares]
            nums = [len(subset.train) for subset in self._subsets[task.name]]
            shares = {"shares": list(self.label_shares), "num_labels": nums}
            self.curves[task.name] = {**shares, "accuracy_percent": {}, "num_steps": {}}
        chosen = (*self.features, *self.baselines)
        hand_made = {name: data.feature_extractor([name]) for name in data.hand_made if name in chosen}
        if learnt:
            with add_seconds(self.seconds, "cpc"):
                names = {name: f"cpc{data.features[name]}" for name in learnt}
                self._probe(probed, names, [data.feature_extractor(learnt, model)], is_model=True)
        for name, extractor in hand_made.items():
            with add_seconds(self.seconds, name):
                self._probe(probed, {name: name}, [extractor])
        if "random" in self.baselines:
            with add_seconds(self.seconds, "random"):
                untrained = data.untrained_names(learnt)
                names = {name: f"random{data.features[name]}" for name in untrained}
                models = map(build_model, range(self.num_random_models))
                extractors = (data.feature_extractor(untrained, each) for each in models)
                self._probe(probed, names, extractors)
        for name in [name for name in NETWORKS if name in self.baselines]:
            with add_seconds(self.seconds, name):
                initial = model if name == "fine_tuned" else build_model(self.supervised.seed)
                rows = _all_rows(tasks)
                for task in tasks:
                    self._add(name, task, self._train(name, task, initial, rows))
                    for subset in self._subsets[task.name]:
                        self._add_to_curve(name, task, self._train(name, subset, initial, rows))
        if "majority" in self.baselines:
            extractor = data.feature_extractor([data.supervised_feature], model)
            for task in probed:  # on the same vectors as a probe of this model
                store = _without_values(extractor, task.rows)
                self._add("majority", task, _classified(task, store, None, answer_by_frequency))

    def record(self) -> dict[str, Any]:
        """Return the `protocol` of `probe.json`."""
        return {
            "probe": {"l2": self.l2, **asdict(self.reading)},
            "standardisation": "mean and deviation of each feature over the training examples",
            "confidence": CONFIDENCE,
            "num_random_models": self.num_random_models,
            "supervised": asdict(self.supervised),
            "features": self.geometries,
            "num_without_features": self.num_empty,
            **self.extraction.record(),
        }

    def _probe(
        self,
        tasks: Sequence[Task],
        names: Mapping[str, str],
        extractors: Iterable[FeatureExtractor],
        *,
        is_model: bool = False,
    ) -> None:
        """Train and test probes on features, whose names in the results are the values of `names`.

        The answers of several extractors (untrained models of several seeds) are averaged. Features of the model are
        also probed with shares of the labels, and the first of them by nearest neighbours.
        """
        answers: dict[tuple[str, str], list[Answers]] = defaultdict(list)
        rows = _all_rows(tasks)
        for extractor in extractors:
            store = self.reading.change(self._store(extractor, rows), self.probe_data, tasks[0].name)
            for (feature, name), task in product(names.items(), tasks):
                self.geometries[name], self.num_empty[name] = extractor.geometry(feature), store.num_empty
                answers[name, task.name] += _classified(task, store, feature, self._fit(name, task))
                self._add(name, task, answers[name, task.name])
                for subset in self._subsets[task.name] if is_model else ():
                    fit = self._fit(name, subset)
                    self._add_to_curve(name, task, _classified(subset, store, feature, fit))
                if is_model and "neighbours" in self.baselines and feature == self.model_features[0]:
                    self._add("neighbours", task, _classified(task, store, feature, answer_by_neighbours))
            del store  # before the next extractor allocates its features

    def _fit(self, name: str, task: Task) -> Classify:
        options: dict[str, Any] = {"device": self.extraction.device, "title": self._title(name, task)}
        options["penalty_chosen_by"] = self.probe_data.penalty_chosen_by

        def answer(train: Examples, test: Examples, num_classes: int) -> list[Answers]:
            return [fit_probe(train, num_classes, self.l2, **options).answer(test)]

        return answer

    def _train(self, name: str, task: Task, model: CPC, rows: np.ndarray) -> list[Answers]:
        """Train copies of a model for the labels; they average their vectors, also if probes pool otherwise.

        `rows` are those whose vectors a change of the reading takes into account.
        """
        feature = self.probe_data.supervised_feature

        def answer(fold: Task) -> tuple[int, list[Answers]]:
            trained, is_pretrained = copy.deepcopy(model), name == "fine_tuned"
            options: dict[str, Any] = {"is_pretrained": is_pretrained, "title": self._title(name, task)}
            head, num_steps = train_supervised(trained, self.probe_data, fold, self.supervised, **options)
            extractor = self.probe_data.feature_extractor([feature], trained)
            if self.reading != Reading():  # the softmax was trained on other vectors
                store = self.reading.change(self._store(extractor, rows), self.probe_data, task.name)
                (answers,) = _classified(fold, store, feature, self._fit(name, task))
                return answers.num_train, [answers._replace(num_steps=num_steps)]
            test = fold.examples("test", self._store(extractor, fold.test), feature)
            train = fold.examples("train", _without_values(extractor, fold.train), None)
            return len(train), [head.answer(test)._replace(num_steps=num_steps)]

        return cross_validate(task.averaged(), answer)

    def _add(self, name: str, task: Task, answers: Sequence[Answers]) -> None:
        self.results[task.name][name] = summarise(answers, len(task.classes))

    def _add_to_curve(self, name: str, task: Task, answers: Sequence[Answers]) -> None:
        result, curve = summarise(answers, len(task.classes)), self.curves[task.name]
        curve["accuracy_percent"].setdefault(name, []).append(result.accuracy_percent)
        if result.num_network_steps is not None:
            curve["num_steps"].setdefault(name, []).append(result.num_network_steps)

    def _title(self, name: str, task: Task) -> str | None:
        name = f"{name} of {len(task.train)} labels" if task.is_subset else name
        return f"probe {name}: {task.name}" if self.extraction.progress else None

    def _store(self, extractor: FeatureExtractor, rows: np.ndarray) -> FeatureStore:
        return FeatureStore.extract(extractor, rows, self.probe_data.name, self.extraction)


def _all_rows(tasks: Sequence[Task]) -> np.ndarray:
    return np.unique(np.concatenate([task.rows for task in tasks]))


def _classified(task: Task, store: FeatureStore, feature: str | None, classify: Classify) -> list[Answers]:
    """Return the answers of a classifier of features; None: a classifier that uses only the labels."""

    def answer(fold: Task) -> tuple[int, Sequence[Answers]]:
        train, test = fold.examples("train", store, feature), fold.examples("test", store, feature)
        return len(train), classify(train, test, len(task.classes))

    return cross_validate(task, answer)


def _without_values(extractor: FeatureExtractor, rows: np.ndarray) -> FeatureStore:
    """Return a store that knows the vectors' labels, but not the vectors."""
    return FeatureStore(extractor, rows, extractor.num_vectors(rows), {})
