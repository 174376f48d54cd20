"""The description of a quickstart: its corpus, its models and probes, and the text of its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Config = dict[str, Any]
CEILING = """<p><b>Ceiling.</b> With N candidates, including the positive, <i>log N - L</i> never exceeds <i>log N</i>,
however large the information is. Near the ceiling a curve shows the number of candidates, not the information.</p>
"""
WHICH_ARE_BOUNDS = """<p><b>Which curves are bounds.</b> With candidates from the query's own sequence
(<code>mixed</code>, <code>same_speaker</code>, <code>sequence_only</code>) the context contains some of them and can
rule them out, so such a curve is not a bound on I(z; c). <code>mixed_excluding</code> takes its candidates only from
other sequences. Its curve is a lower bound if these sequences are independent of the query's sequence.</p>
"""


BASELINES = """<p><b>Baselines.</b> <i>Majority</i> always answers the most frequent class. <i>Random</i> is the same
architecture, initialised from data and never trained; it shows the contribution of the architecture. <i>MFCC</i>,
<i>HOG</i>, <i>pixels</i> and <i>hand-made</i> are features without learning. <i>Supervised</i> is the same encoder or
architecture trained on the labels, for as many steps as fit in its seconds; the number of steps is given
with its accuracy. <i>CPC</i> is the model pretrained here, without labels: z are its latents, c its contexts.</p>
"""


class Run(NamedTuple):
    """A model after pretraining: its folder, its corpus, its device and its seed."""

    folder: Path
    source: Path
    device: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Study:
    """A model that is trained on one corpus, and its probes.

    Attributes:
        config: returns the config of `cpc pretrain` from source and seed; the engine adds folder, seed and trainer.
        num_steps: optimiser steps.
        evaluation: options of `cpc.evaluation.evaluate`.
        tasks: tasks of `cpc.probes.report.probe` by their names in report.json; without tasks, nothing is probed.
        probe: further options of `cpc.probes.report.probe`.
    """

    config: Callable[[Path, int], Config]
    num_steps: int
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    probe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that differs between quickstarts.

    Attributes:
        extras: modules that must be installed, and the extra that installs each.
        making: name of the corpus stage in the report's `seconds`.
        make: makes the corpus in a folder from a seed, unless it exists. Returns the source of each study, and facts
            for the report; one fact is `recipe_chosen_on`.
        studies: studies by name; a run's folder has the name of its study.
        heading: heading of the page, as HTML.
        how_to_read: explanation of the figures, as HTML.
        facts: texts on the page by key of the report; the page leaves out keys that the report lacks.
        representations: names of the probed representations in report.json.
        caption: the data on which the probes are tested.
    """

    extras: Mapping[str, str] = field(default_factory=dict)
    making: str
    make: Callable[[Path, int], tuple[Mapping[str, Path], dict[str, Any]]]
    studies: Mapping[str, Study]
    heading: str
    how_to_read: Sequence[str]
    facts: Mapping[str, str] = field(default_factory=dict)
    representations: Sequence[str] = ()
    caption: str = ""


def heading(title: str, targets: str) -> str:
    """Return the heading of a page whose probes predict `targets`."""
    return f"""<h1>cpc quickstart: {title}</h1>
<p>This page has the accuracy of linear probes that predict {targets} from the pretrained features, with baselines. It
also has the information of contexts about latents ahead, during training.</p>
"""


def part(name: str, **init_args: Any) -> Config:
    """Return the config of a class of the package, such as `contexts.GRU`."""
    return {"class_path": f"cpc.{name}", "init_args": init_args}


def pretraining(every_steps: tuple[int, int, int], data: Config, **model: Any) -> Config:
    """Return the config of `cpc pretrain`.

    Args:
        every_steps: steps between two records, two held-out evaluations, and two checkpoints.
        data: the data.
        model: encoder, context, predictor, loss, and options that differ from those of most recipes.
    """
    defaults = {"learning_rate": 2e-3, "warmup_steps": 50, "schedule": "cosine"}
    names = ("record_every_steps", "eval_every_steps", "checkpoint_every_steps")
    return dict(zip(names, every_steps, strict=True)) | {"model": defaults | model, "data": data}
