"""The loss of every objective of candidate sampling, against a table of class vectors.

M queries (rows), T targets of each query, n classes, N drawn classes, D dims.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers import NO_TARGET, Draw
from cpc.candidates.samplers.sampler import hits_among, target_sets
from cpc.data.tensors import check_finite, check_precision, check_tensor
from cpc.losses.engine import (
    Block,
    ScoreCorrections,
    divide_by_temperature,
    mask_unused,
    score_dtype,
    tie_width,
    tiled_loss,
)
from cpc.losses.objectives import accepted, objective_of
from cpc.losses.output import RowLosses


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
) -> RowLosses:
    """Return the loss of finding each query's targets among all classes, or among the drawn ones.

    F(x, y) = q . c_y / temperature + bias_y. In a softmax the target distribution is uniform over a row's targets; in a
    logistic loss each target is a positive. A class that is drawn twice counts twice. Expected counts get no gradient.

    Args:
        queries: a vector per row.
        classes: a vector per class.
        targets: the classes to find, `[M]` or `[M, T]`, padded with -1 if a row has fewer than T. A class may occur
            only once in a row.
        draw: the candidates, from a sampler; the objective must accept its treatment of hits. None for full objectives.
        objective: a name in `cpc.losses.OBJECTIVES`.
        correction: a correction that the objective accepts; None: its default.
        bias: a score per class.
        temperature: divides the products; a positive tensor of one element gets a gradient.
        weight: weight of each row in the loss; None: 1 / M.

    Raises:
        ValueError: if the objective is unknown, or does not accept the correction, the draw, or its treatment of hits
            (excluded hits look like removed ones); if shapes do not fit; if a target is out of range or twice in a row,
            or a row has no target; or if the correction needs the expected count of a target and it is zero or unknown.

    Example:
        >>> zeros = torch.zeros(3, 8)
        >>> result = class_loss(zeros, torch.zeros(5, 8), torch.tensor([0, 4, 4]), objective="full_softmax")
        >>> bool(torch.isclose(result.loss, torch.tensor(5.0).log())), result.num_candidates.tolist()
        (True, [5, 5, 5])
    """
    correction = accepted(objective, "correction", correction)
    check_tensor("queries", queries, "floats", ("M", "D"))
    check_tensor("classes", classes, "floats", ("n", queries.shape[1]))
    check_precision(queries=queries, classes=classes)
    if bias is not None:
        check_tensor("bias", bias, "floats", (len(classes),))
        check_finite("bias", bias)
    if weight is not None:
        check_tensor("weight", weight, "floats", (len(queries),))
        check_finite("weight", weight, least=0.0)
    targets = target_sets(targets, len(queries), len(classes))
    hits = objective_of(objective).hits
    if draw is None and hits:
        raise ValueError(f"objective={objective!r} needs candidates: give a draw, or choose a full objective")
    if draw is not None:
        if not hits:
            raise ValueError(f"objective={objective!r} scores every class: give no draw")
        draw.check(len(targets), len(classes), "classes")
        draw.check_hits(targets, hits)

    def lookup(ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return (classes, bias) if ids is None else (classes[ids], None if bias is None else bias[ids])

    scaled = divide_by_temperature(queries, temperature)
    return loss_on_table(scaled, lookup, targets, draw, objective, correction, weight)


def loss_on_table(
    queries: Float[Tensor, "M D"],
    lookup: Callable[[Tensor | None], tuple[Tensor, Tensor | None]],
    targets: Int[Tensor, "M T"],
    draw: Draw | None,
    objective: str,
    correction: str,
    weight: Float[Tensor, " M"] | None,
    form: str | None = None,
) -> RowLosses:
    """Return `class_loss` of checked arguments, for tables that look up classes themselves.

    The queries must already be divided by the temperature. `lookup` returns the vectors and biases of class ids, or of
    all classes if the ids are None. `form` replaces the form of the objective.
    """
    is_target = targets != NO_TARGET
    # A missing target adds a gradient of zero to some class: choose one that gets a gradient in any case.
    present = torch.where(is_target, targets, targets.amax(1, keepdim=True))
    target_counts = torch.where(is_target, 0.0, torch.inf)
    form = form or objective_of(objective).form
    if draw is None:
        corrections = ScoreCorrections(None, target_counts)
        found = candidate_loss(queries, *lookup(None), present, corrections, form, weight)
        return found._replace(objective=objective)
    log_count, term_weight = draw.log_count_sampled, None
    if correction == "posterior":
        target_counts = draw.target_counts(targets)
    elif correction == "none" or form != "softmax":
        if correction == "importance":
            term_weight = (-log_count).exp()
        log_count = torch.where(log_count < torch.inf, 0.0, torch.inf)
    hits = hits_among(draw.ids, targets) if "keep" in objective_of(objective).hits else None
    corrections = ScoreCorrections(log_count, target_counts, term_weight, hits)
    found = candidate_loss(queries, *lookup(draw.ids), lookup(present), corrections, form, weight)
    return found._replace(objective=objective)


def candidate_loss(
    queries: Float[Tensor, "M D"],
    candidates: Float[Tensor, "N D"] | Float[Tensor, "M N D"],
    bias: Float[Tensor, " N"] | Float[Tensor, "M N"] | None,
    targets: tuple[Float[Tensor, "M T D"], Float[Tensor, "M T"] | None] | Int[Tensor, "M T"],
    corrections: ScoreCorrections,
    form: str = "softmax",
    weight: Float[Tensor, " M"] | None = None,
) -> RowLosses:
    """Return the loss of targets against candidate vectors, from a table or a bank; F = query . vector + bias.

    Queries are already divided by the temperature. Candidates are shared by all rows or separate for each row. Targets
    are vectors and biases, or indices of candidates. Log counts of +inf mark candidates and targets that do not exist.
    Scores and sums are float32 (float64 for float64 queries) whatever the autocast dtype. Accuracy compares F, not the
    corrected scores.
    """
    dtype = score_dtype(queries)
    queries, candidates, bias = queries.to(dtype), candidates.to(dtype), None if bias is None else bias.to(dtype)
    log_count, log_count_targets, *_ = corrections
    assert log_count_targets is not None
    is_target = log_count_targets < torch.inf
    if isinstance(targets, Tensor):
        own, target_scores, width = targets, None, None
        num_candidates = torch.full_like(is_target.sum(1), len(candidates))
    else:
        vectors, target_bias = targets
        assert log_count is not None
        own, vectors, is_present = None, mask_unused(vectors.to(dtype), lambda: is_target), log_count < torch.inf
        shared = is_present.ndim == candidates.ndim  # [M, N] with [N, D]
        candidates = mask_unused(candidates, lambda: is_present.any(0) if shared else is_present)
        width = tie_width(queries, vectors.norm(dim=-1), target_bias)
        num_candidates = is_target.sum(1) + is_present.sum(-1)
        with torch.autocast(queries.device.type, enabled=False):
            target_scores = torch.einsum("md,mtd->mt", queries, vectors)
        target_scores = target_scores if target_bias is None else target_scores + target_bias
    fields = (each if each is None or each.dtype == torch.bool else each.to(dtype) for each in corrections)
    corrections = ScoreCorrections(*fields)._replace(tie_width=width)
    weight = queries.new_full((len(queries),), 1 / len(queries)) if weight is None else weight.to(dtype)
    options = {"form": form, "bias": bias, "target_scores": target_scores, "corrections": corrections}
    loss, loss_nats, accuracy = tiled_loss(queries, candidates, [Block(positives=own)], weight, **options)
    return RowLosses(loss, loss_nats, num_candidates, accuracy)
