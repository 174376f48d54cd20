"""The objectives of candidate sampling, by name. An objective turns scores of drawn candidates into a loss.

F is the score q . c of a class c, Q its expected count in the drawn set, G the corrected score that the loss reads.
docs/theory.md derives what each objective learns.
"""

from typing import Any, Literal, NamedTuple

from cpc.candidates.samplers import Hits
from cpc.config.argument_rules import Choices

Form = Literal["softmax", "logistic"]
Correction = Literal["none", "posterior", "importance"]


class Objective(NamedTuple):
    """A form of loss with the draws and corrections that it accepts.

    Attributes:
        form: `softmax`: find the target among the candidates. `logistic`: classify each candidate as target or not.
        hits: accepted treatments of accidental hits (drawn candidates that are targets), the default first; empty if
            all classes are candidates.
        corrections: accepted corrections, the default first. `none`: G = F. `posterior`: G = F - log Q, for targets and
            candidates. `importance`: G = F, and every candidate's term in the sum over classes is divided by Q, which
            estimates the full loss. In a softmax this equals F - log Q for candidates and F for the target.
    """

    form: Form
    hits: tuple[Hits, ...]
    corrections: tuple[Correction, ...]


FULL_SOFTMAX = "full_softmax"
OBJECTIVES: dict[str, Objective] = {
    FULL_SOFTMAX: Objective("softmax", (), ("none",)),
    "full_logistic": Objective("logistic", (), ("none",)),
    "sampled_softmax": Objective("softmax", ("remove", "exclude"), ("posterior", "importance")),
    "sampled_logistic": Objective("logistic", ("remove", "exclude"), ("posterior", "importance")),
    "nce": Objective("logistic", ("keep",), ("posterior",)),
    "negative_sampling": Objective("logistic", ("keep",), ("none",)),
    "info_nce": Objective("softmax", ("exclude", "remove", "keep"), ("none",)),
}


def objective_of(name: str) -> Objective:
    """Return the objective of a name; ValueError if there is none."""
    Choices(tuple(OBJECTIVES)).check("objective", name)
    return OBJECTIVES[name]


def accepted(name: str, option: Literal["hits", "correction"], choice: str | None) -> Any:
    """Return a choice of hits or correction, or the default if it is None; ValueError if it is not accepted."""
    choices = objective_of(name).hits if option == "hits" else objective_of(name).corrections
    if choice is not None and choice not in choices:
        raise ValueError(f"{option}={choice!r}: {name} accepts {', '.join(choices) or 'none: it draws no candidates'}")
    return choice or choices[0]
