"""The plan of a probe report: the features, baselines and networks to measure, and their protocols."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpc.data.probe_data import ProbeData
from cpc.model import CPC
from cpc.probes.classifier import ProbeProtocol
from cpc.probes.clock import Clock
from cpc.probes.comparison import Comparison
from cpc.probes.open import check_names
from cpc.probes.results import CONFIDENCE
from cpc.probes.supervised import SupervisedProtocol
from cpc.probes.task import Task

BASELINES = ("majority", "random", "neighbours")
NETWORKS = ("supervised", "fine_tuned")


@dataclass(frozen=True)
class Plan:
    """The measurements of a report; `cpc.probes.report.probe` describes the options.

    Raises:
        ValueError: if a name is unknown, or neighbours are chosen without a feature of the model.
    """

    probe_data: ProbeData
    features: Sequence[str]
    baselines: Sequence[str]
    label_shares: Sequence[float] | None
    train_minutes: float | None
    num_random_models: int
    probe: ProbeProtocol
    supervised: SupervisedProtocol

    def __post_init__(self) -> None:
        probe_data = self.probe_data
        networks = NETWORKS if probe_data.supervised is not None else ()
        check_names("features", self.features, [*probe_data.features, *probe_data.hand_made])
        check_names("baselines", self.baselines, [*BASELINES, *networks, *probe_data.hand_made])
        if "neighbours" in self.baselines and not self.model_features:
            known = ", ".join(probe_data.features)
            raise ValueError(f"baselines: neighbours need a feature of the model: name one in `features`, {known}")

    @property
    def model_features(self) -> list[str]:
        """The features that come from the model."""
        return [name for name in self.features if name in self.probe_data.features]

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Check that every task has neighbours, coarse features and subsets of its labels, if the plan includes them.

        Raises:
            ValueError: if a task does not support them. The message names the task and the option.
        """
        coarse = [name for name in (*self.features, *self.baselines) if name in self.probe_data.coarse]
        for task in tasks:
            if task.pool == "frames" and coarse:
                raise ValueError(
                    f"{coarse[0]} has no vector for each frame of a {self.probe_data.unit}, but task {task.name!r} "
                    f"labels every frame: set `pool` to mean_std, or leave {coarse[0]} out"
                )
            if task.pool == "frames" and "neighbours" in self.baselines:
                raise ValueError(
                    f"baselines: neighbours are whole {self.probe_data.unit}s, but task {task.name!r} labels every "
                    "frame: set `pool` to mean, or leave neighbours out"
                )
            for share in self.label_shares or ():
                task.subset(share)

    def measure(self, comparison: Comparison, model: CPC, build_model: Callable[[int], CPC]) -> dict[str, float]:
        """Extract the features, train all probes and networks, and return the seconds of each stage.

        Args:
            comparison: collects the results.
            model: the model that is probed.
            build_model: builds an untrained model from a seed.
        """
        data, learnt, clock = self.probe_data, self.model_features, Clock()
        num_seeds = self.probe.num_seeds or 1
        hand_made = [name for name in data.hand_made if name in (*self.features, *self.baselines)]
        hand_made_extractors = {name: data.feature_extractor([name]) for name in hand_made}
        if learnt:
            with clock("cpc"):
                comparison.probe(
                    {name: f"cpc{data.features[name]}" for name in learnt},
                    [data.feature_extractor(learnt, model)],
                    num_seeds,
                    with_shares=True,
                    neighbour_feature=learnt[0] if "neighbours" in self.baselines else None,
                )
        for name, extractor in hand_made_extractors.items():
            with clock(name):
                comparison.probe({name: name}, [extractor], num_seeds)
        if "random" in self.baselines:
            untrained = data.untrained_names(learnt)
            with clock("random"):
                names = {name: f"random{data.features[name]}" for name in untrained}
                extractors = (
                    data.feature_extractor(untrained, build_model(seed)) for seed in range(self.num_random_models)
                )
                comparison.probe(names, extractors, num_seeds=1)
        if "supervised" in self.baselines:
            with clock("supervised"):
                comparison.supervise("supervised", build_model(self.supervised.seed), self.supervised)
        if "fine_tuned" in self.baselines:
            with clock("fine_tuned"):
                comparison.supervise("fine_tuned", model, self.supervised, is_pretrained=True)
        if "majority" in self.baselines:
            comparison.guess("majority", model)
        return clock.seconds

    def record(self, comparison: Comparison) -> dict[str, Any]:
        """Return the `protocol` of `probe.json`."""
        return {
            "probe": asdict(self.probe),
            "standardisation": "mean and deviation of each feature over the training examples",
            "confidence": CONFIDENCE,
            "train_minutes": self.train_minutes,
            "num_random_models": self.num_random_models,
            "supervised": asdict(self.supervised),
            "features": comparison.geometries,
            "num_without_features": comparison.num_empty,
            **comparison.extraction.record(),
        }
