"""The description of a quickstart: its corpus, its models and probes, and the text of its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class Study:
    """A model that is trained on one corpus, and its probes."""

    config: Callable[[Path, int], Config]  # the config by source and seed; the engine adds folder, seed and trainer
    num_steps: int  # optimiser steps
    evaluation: Mapping[str, Any] = field(default_factory=dict)  # options of `cpc.evaluate`
    tasks: Mapping[str, str] = field(default_factory=dict)  # tasks of `cpc.probe` by their names in report.json
    probe: Mapping[str, Any] = field(default_factory=dict)  # further options of `cpc.probe`


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that differs between quickstarts."""

    extras: Mapping[str, str] = field(default_factory=dict)  # necessary modules, and the extra that installs each
    making: str  # name of the corpus stage in the report's `seconds`
    # Makes the corpus in a folder from a seed, unless it exists. Returns the source of each study, and facts for the
    # report.
    make: Callable[[Path, int], tuple[Mapping[str, Path], dict[str, Any]]]
    chosen_on: str  # how the recipe was chosen; may name facts in braces
    studies: Mapping[str, Study]  # by name; a run's folder has the name of its study
    heading: str  # of the page, as HTML
    how_to_read: Sequence[str] = (CEILING, WHICH_ARE_BOUNDS, BASELINES)
    facts: Mapping[str, str] = field(default_factory=dict)  # texts on the page by key of the report
    representations: Sequence[str] = ()  # names of the probed representations in report.json
    caption: str = ""  # the data on which the probes are tested


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
    """Return the config of `cpc pretrain` with steps between two records, two evaluations, and two checkpoints."""
    defaults = {"learning_rate": 2e-3, "warmup_steps": 50, "schedule": "cosine"}
    names = ("record_every_steps", "eval_every_steps", "checkpoint_every_steps")
    return dict(zip(names, every_steps, strict=True)) | {"model": defaults | model, "data": data}
