"""The objectives of candidate sampling: how scores of drawn candidates become a loss, by name.

F is the score q . c of a class c, Q its expected count in the drawn set, G what the loss sees. docs/theory.md derives
what each of them learns.
"""

from typing import Any, Literal, NamedTuple

from cpc.candidates.samplers import Hits

Form = Literal["softmax", "logistic"]
Correction = Literal["none", "posterior", "importance"]


class Objective(NamedTuple):
    """A form of loss with the draws and corrections that it accepts.

    Attributes:
        form: `softmax`: which of the candidates is the target? `logistic`: of each candidate, is it one?
        hits: what may become of drawn candidates that are targets, the usual one first; empty: all classes are met.
        corrections: those that it accepts, the usual one first. `none`: G = F. `posterior`: G = F - log Q, of targets
            and candidates. `importance`: G = F, and every candidate's term in the sum over classes counts 1 / Q (in a
            softmax that is F - log Q of the candidates, but not of the target): an estimate of the full loss.
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
    """The objective of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective={name!r} is not one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


def learns_log_odds(name: str) -> bool:
    """Whether F becomes log(P / (1 - P)): in a logistic loss whose targets are not candidates too."""
    form, hits, _ = objective_of(name)
    return form == "logistic" and "keep" not in hits


def correction_of(name: str, correction: str | None) -> Correction:
    """The correction asked for, or the objective's usual one where it is None.

    Raises:
        ValueError: if the objective does not accept it.
    """
    return _accepted(name, "correction", objective_of(name).corrections, correction)


def hits_of(name: str, hits: str | None) -> Hits:
    """What becomes of hits: what is asked for, or the objective's usual way where it is None.

    Raises:
        ValueError: if the objective does not accept it, or draws nothing.
    """
    return _accepted(name, "hits", objective_of(name).hits, hits)


def _accepted(name: str, option: str, accepted: tuple[Any, ...], asked: str | None) -> Any:
    if asked is not None and asked not in accepted:
        raise ValueError(f"{option}={asked!r}: {name} accepts {', '.join(accepted) or 'none: it draws no candidates'}")
    return asked or accepted[0]
