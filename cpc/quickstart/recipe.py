"""The description of a quickstart: its corpus, its models and probes, and the text of its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cpc.data.batch import Batch
from cpc.pages.chart import Chart
from cpc.probes.store import Extraction
from cpc.quickstart.time_budget import MOST_STEPS, PRECISIONS, Precision

Config = dict[str, Any]


class Run(NamedTuple):
    """A model after pretraining and evaluation.

    Attributes:
        folder: folder of the run.
        source: the corpus.
        measured: result of `cpc.evaluation.evaluate`.
        extraction: device, and precision of pretraining, for probes.
        seed: seed of the model and the batches.
    """

    folder: Path
    source: Path
    measured: dict[str, Any]
    extraction: Extraction
    seed: int


class ProbeResults(NamedTuple):
    """Results of the probes of a run.

    Attributes:
        shared: keys of report.json, such as accuracies by representation.
        own: further keys of the run's record, under `runs` in report.json.
    """

    shared: dict[str, Any]
    own: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A model that is trained on one corpus.

    Attributes:
        config: returns the config of `cpc pretrain` from source, seed and precision; the engine adds folder, seed,
            number of steps and trainer.
        noise: returns a batch of noise for timing the training steps.
        seconds: time for training steps; loading, recording and held-out evaluations are not included.
        most_steps: upper limit of the number of steps.
        precisions: precisions to choose from.
        evaluation: options of `cpc.evaluation.evaluate`.
        probe: probes a trained run; None: no probes.
        figures: returns further figures of the page; None: no further figures.
    """

    config: Callable[[Path, int, Precision], Config]
    noise: Callable[[], Batch]
    seconds: float
    most_steps: int = MOST_STEPS
    precisions: Sequence[Precision] = PRECISIONS
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    probe: Callable[[Run], ProbeResults] | None = None
    figures: Callable[[Run], Sequence[Chart]] | None = None


@dataclass(frozen=True)
class Recipe:
    """Everything that differs between quickstarts.

    Attributes:
        extras: modules that must be installed, and the extra that installs each.
        making: name of the corpus stage in the report's `seconds`.
        make: makes the corpus in a folder from a seed, unless it exists. Returns the source of each study, and facts
            for the report; one fact is `recipe_chosen_on`.
        studies: studies by name; a run's folder has the name of its study.
        heading: heading of the page, as HTML.
        facts: texts on the page by key of the report; the page leaves out keys that the report lacks.
        run_facts: likewise, texts by key of the record of a run.
        comparison: plots the first chart of the page from the report.
        how_to_read: explanation of the charts, as HTML.
    """

    extras: Mapping[str, str]
    making: str
    make: Callable[[Path, int], tuple[Mapping[str, Path], dict[str, Any]]]
    studies: Mapping[str, Study]
    heading: str
    facts: Mapping[str, str]
    comparison: Callable[[dict[str, Any]], Chart]
    how_to_read: Sequence[str]
    run_facts: Mapping[str, str] = field(default_factory=dict)


def accuracies(task: str, results: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a task's part of report.json: percent by representation, intervals, steps of the supervised network.

    Args:
        task: name of the task in report.json.
        results: `results` of the task in `probe.json`.
        names: for each representation of report.json, the name in `results`.
    """
    return {
        task: {name: round(results[key]["accuracy_percent"], 2) for name, key in names.items()},
        f"{task}_interval": {name: results[key]["accuracy_interval_percent"] for name, key in names.items()},
        f"{task}_num_steps": {"supervised": results["supervised"]["num_network_steps"]},
    }
