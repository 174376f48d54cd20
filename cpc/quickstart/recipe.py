"""What a recipe says: how its corpus is made, what is trained on it and probed, and the words of its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cpc.data.batch import Batch
from cpc.pages.charts import Chart
from cpc.pages.page import Picture
from cpc.quickstart.budget import MOST_STEPS, PRECISIONS, Precision

Config = dict[str, Any]


class Run(NamedTuple):
    """A trained and measured model.

    Attributes:
        folder: of the run.
        source: the corpus.
        measured: what `cpc.evaluation.evaluate` returned.
        precision: it was trained in.
        seed: of model and batches.
    """

    folder: Path
    source: Path
    measured: dict[str, Any]
    precision: Precision
    seed: int


class Findings(NamedTuple):
    """What probes read of a run.

    Attributes:
        shared: keys of report.json, such as accuracies by representation.
        own: further keys of the run's record, under `runs`.
    """

    shared: dict[str, Any]
    own: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A model of one corpus.

    Attributes:
        config: makes the config of `cpc pretrain` from source, seed and precision; the engine adds folder, seed,
            number of steps and trainer.
        noise: makes a batch to time steps with.
        seconds: of bare training steps; loading, recording and held-out evaluations come on top.
        most_steps: however fast the machine is.
        precisions: to choose from.
        evaluation: options of `cpc.evaluation.evaluate`.
        probe: probes a trained run; None where there are no probes.
        figures: draws what the page shows besides.
    """

    config: Callable[[Path, int, Precision], Config]
    noise: Callable[[], Batch]
    seconds: float
    most_steps: int = MOST_STEPS
    precisions: Sequence[Precision] = PRECISIONS
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    probe: Callable[[Run], Findings] | None = None
    figures: Callable[[Run], Sequence[Chart | Picture]] | None = None


@dataclass(frozen=True)
class Recipe:
    """All that differs between quickstarts.

    Attributes:
        extras: modules that must be there, and the extra that brings each.
        making: what making the corpus is called in the report's seconds.
        make: makes the corpus from folder and seed, unless it is there; returns the source of each study, and facts
            for the report: `recipe_chosen_on` among them.
        studies: by name, which is the run's folder too.
        heading: of the page, as HTML.
        facts: keys of the report in the page's words, shown where present.
        run_facts: likewise, of the record of each run.
        comparison: draws the chart that the page is about from the report.
        reading: how to read the page, as HTML.
    """

    extras: Mapping[str, str]
    making: str
    make: Callable[[Path, int], tuple[Mapping[str, Path], dict[str, Any]]]
    studies: Mapping[str, Study]
    heading: str
    facts: Mapping[str, str]
    comparison: Callable[[dict[str, Any]], Chart]
    reading: Sequence[str]
    run_facts: Mapping[str, str] = field(default_factory=dict)


def accuracies(task: str, results: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A task's part of report.json: percent by representation, intervals, steps of the network trained for the labels.

    Args:
        task: its name there.
        results: of `probe.json`.
        names: what each representation is called there.
    """
    return {
        task: {name: round(results[called]["accuracy_percent"], 2) for name, called in names.items()},
        f"{task}_interval": {name: results[called]["accuracy_interval_percent"] for name, called in names.items()},
        f"{task}_num_steps": {"supervised": results["supervised"]["num_network_steps"]},
    }
