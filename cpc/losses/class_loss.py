"""Every objective of candidate sampling against a table of class vectors.

M queries (rows), T targets of each, n classes, N of them drawn, D dims.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers import NO_TARGET, Draw
from cpc.losses.candidate_loss import ClassLoss, Shifts, candidate_loss
from cpc.losses.objectives import correction_of, objective_of


def class_loss(
    queries: Float[Tensor, "M D"],
    classes: Float[Tensor, "n D"],
    targets: Int[Tensor, "M ..."],
    draw: Draw | None = None,
    *,
    objective: str,
    correction: str | None = None,
    bias: Float[Tensor, " n"] | None = None,
    temperature: float | Tensor = 1.0,
    weight: Float[Tensor, " M"] | None = None,
) -> ClassLoss:
    """The loss of finding each query's targets among the classes, or among those drawn.

    F(x, y) = q . c_y / temperature + bias_y. A softmax takes the distribution that is uniform over a row's targets for
    the wanted one; in a logistic loss each target is a positive of its own. Classes drawn more than once count as
    often. Gradients of expected counts there are none.

    Args:
        queries: what the classes are scored with.
        classes: a vector per class.
        targets: the classes to be found, `[M]` or `[M, T]`, -1 where a row has fewer than T; none of them twice.
        draw: the candidates, from a sampler that was asked for hits that the objective accepts; None for the full ones.
        objective: a name in `cpc.losses.OBJECTIVES`.
        correction: one that the objective accepts; None: its usual one.
        bias: a score per class.
        temperature: divides the products; a positive tensor of one element gets a gradient.
        weight: of each row in the loss; None: 1 / M.

    Raises:
        ValueError: on an unknown objective, a correction or hits that it does not accept, a missing or superfluous
            draw, shapes that do not fit, targets out of range or twice in a row, a row without a target, or a target
            whose expected count is zero or not known where the correction needs it.

    Example:
        >>> zeros = torch.zeros(3, 8)
        >>> result = class_loss(zeros, torch.zeros(5, 8), torch.tensor([0, 4, 4]), objective="full_softmax")
        >>> bool(torch.isclose(result.loss, torch.tensor(5.0).log())), result.accuracy.tolist()
        (True, [0.20000000298023224, 0.20000000298023224, 0.20000000298023224])
    """
    correction = correction_of(objective, correction)
    _check(queries, classes, targets, bias, temperature, weight)
    targets = targets.reshape(len(targets), -1)
    check_draw(objective, correction, draw, targets)
    present, shifts = targets_and_shifts(objective, correction, draw, targets)
    ids = slice(None) if draw is None else draw.ids
    is_one = not isinstance(temperature, Tensor) and temperature == 1
    return candidate_loss(
        queries if is_one else queries / temperature,
        classes[present],
        classes[ids],
        form=objective_of(objective).form,
        shifts=shifts,
        target_bias=None if bias is None else bias[present],
        candidate_bias=None if bias is None else bias[ids],
        weight=weight,
    )


def targets_and_shifts(
    objective: str, correction: str, draw: Draw | None, targets: Int[Tensor, "M T"]
) -> tuple[Int[Tensor, "M T"], Shifts]:
    """Targets whose empty places hold another target of the row, and what is subtracted from which score."""
    is_target = targets != NO_TARGET
    # an empty place adds a gradient of zero to a class: let it be one that gets a gradient in any case
    present = torch.where(is_target, targets, targets.amax(1, keepdim=True))
    there = torch.where(is_target, 0.0, torch.inf)
    if draw is None:
        return present, Shifts(there, own=present)
    log_count = draw.log_count_sampled
    met = torch.where(log_count < torch.inf, 0.0, torch.inf).to(log_count)
    if correction == "posterior":
        return present, Shifts(there + torch.where(is_target, _of(targets, draw.log_count_targets), 0), log_count)
    if correction == "none":
        return present, Shifts(there, met)
    if objective_of(objective).form == "softmax":
        return present, Shifts(there, log_count)
    return present, Shifts(there, met, (-log_count).exp())


def check_draw(objective: str, correction: str, draw: Draw | None, targets: Int[Tensor, "M T"]) -> None:
    """Refuse a draw that does not go with the objective or the targets.

    Raises:
        ValueError: as `class_loss` says.
    """
    hits = objective_of(objective).hits
    if not hits:
        if draw is not None:
            raise ValueError(f"objective={objective!r} meets every class: give it no sampler and no draw")
        return
    if draw is None:
        raise ValueError(
            f"objective={objective!r} needs candidates: give it a sampler or a draw, or choose full_softmax or "
            "full_logistic"
        )
    ids, log_count, log_count_targets = draw
    of_rows = (len(targets), ids.shape[-1])
    if ids.shape not in ((of_rows[1],), of_rows) or log_count.shape not in (ids.shape, of_rows):
        raise ValueError(
            f"the draw holds ids {tuple(ids.shape)} and log_count_sampled {tuple(log_count.shape)}, but for "
            f"{len(targets)} queries they are [m], or [{len(targets)}, m] each"
        )
    is_known = _of(targets, log_count_targets).isfinite() | (targets == NO_TARGET)
    if correction == "posterior" and not bool(is_known.all()):
        row, place = (int(each) for each in (~is_known).nonzero()[0])
        raise ValueError(
            f"log_count_targets of class {int(targets[row, place])}, a target, is "
            f"{float(_of(targets, log_count_targets)[row, place])}: correction='posterior' needs a sampler that can "
            "draw every possible target; mix it with a uniform one, or leave the class out"
        )
    if bool((log_count == -torch.inf).any() | log_count.isnan().any()):
        raise ValueError("log_count_sampled is -inf or nan for a drawn class: what was drawn had a probability")
    is_hit = (rearrange(ids, "... m -> ... 1 m") == rearrange(targets, "q t -> q t 1")).any(1)
    is_there = log_count < torch.inf
    if "keep" not in hits and bool((is_hit & is_there).any()):
        raise ValueError(
            f"the draw holds a row's own target, but {objective} accepts hits={' or '.join(hits)}: ask the sampler so"
        )
    if hits == ("keep",) and bool((is_hit & ~is_there).any()):
        raise ValueError(f"the draw's hits were removed, but {objective} accepts hits='keep' alone: ask the sampler so")


def check_targets(num_classes: int, targets: Int[Tensor, "M T"]) -> None:
    """Refuse targets that name no class, a class twice, or nothing at all.

    Raises:
        ValueError: naming it.
    """
    if not -1 <= int(targets.min()) <= int(targets.max()) < num_classes:
        raise ValueError(
            f"targets run from {int(targets.min())} to {int(targets.max())}, but the {num_classes} classes from 0 to "
            f"{num_classes - 1} (-1: no further target)"
        )
    is_empty = (targets == NO_TARGET).all(1)
    if bool(is_empty.any()):
        raise ValueError(f"row {int(is_empty.nonzero()[0])} has no target: leave such rows out")
    ordered = targets.sort(1).values
    is_twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_TARGET)
    if bool(is_twice.any()):
        row, place = (int(each) for each in is_twice.nonzero()[0])
        raise ValueError(f"row {row} names class {int(ordered[row, place])} twice among its targets: name it once")


def _check(
    queries: Tensor,
    classes: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    weight: Tensor | None,
) -> None:
    num_rows, num_classes = len(queries), len(classes)
    if targets.ndim not in (1, 2) or len(targets) != num_rows or targets.numel() == 0:
        raise ValueError(f"targets {tuple(targets.shape)} do not fit {num_rows} queries: they are [M] or [M, T], M >= 1")
    if queries.shape[1] != classes.shape[1]:
        raise ValueError(f"queries have {queries.shape[1]} dims, classes {classes.shape[1]}")
    for name, given, expected in (("bias", bias, num_classes), ("weight", weight, num_rows)):
        if given is not None and given.shape != (expected,):
            raise ValueError(
                f"{name} {tuple(given.shape)} does not fit {num_rows} queries and {num_classes} classes: it needs "
                f"[{expected}]"
            )
    if not temperature > 0:
        raise ValueError(f"temperature={float(temperature)} must be positive")
    check_targets(num_classes, targets.reshape(num_rows, -1))


def _of(targets: Int[Tensor, "M T"], log_count_targets: Tensor) -> Float[Tensor, "M T"]:
    if log_count_targets.numel() != targets.numel():
        raise ValueError(f"log_count_targets {tuple(log_count_targets.shape)} is not of the targets' shape")
    return log_count_targets.reshape(targets.shape)
