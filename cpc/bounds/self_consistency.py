"""Checks of an estimate with data whose information is known relative to the data: is the estimate self-consistent?

- `shuffled`: each query with the positive of an independent sequence. The information is 0, so no estimate may be
  above 0.
- `data_processing`: the latents are replaced by a function of them, half of their channels. The information cannot
  grow, so neither may the estimate.
- `rescaling`: the latents are halved, and all scores with them. The information stays, so the estimate may not grow.
  It grows for a critic whose scores are too large, such as one that has memorised its training data.
- `additivity`: pairs of rows from two independent sequences. The information is the sum of both, so the estimate is
  also the sum.

Independence, data processing and additivity are the self-consistency tests of Song and Ermon 2020 (arXiv:1910.06222; of
the paper only the abstract was at hand, and it names the last two). The paper trains a critic for each test. Derived
here, for one critic that stays as it is: the pairing within held-out batches, the mask of channels, the halved latents,
the added scores, the errors over batches and the verdicts.
Abdelaleem, Martini and Nemenman 2025 (arXiv:2506.00330) ask that estimates carry such checks and error bars; of the
paper only the abstract was at hand, and it names none of the three.

K steps, B sequences, T latents, D latent dim, M rows, R rows of a step, N = B T columns.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr, stdtrit
from torch import Tensor

from cpc.bounds.gaussian import is_saturated, optimal_reading_nats
from cpc.bounds.sequences import ScoredRows, split_by_sequence
from cpc.losses.candidate_sets import Sequences, plan

STRATEGY = "mixed_excluding"  # the only strategy whose estimates bound information
NUM_ERRORS = 3.0
NEGLIGIBLE_NATS = 0.1  # sums may be wrong by this much because N is finite
MOST_ALLOWED_NATS = 1.0  # if chance may move a difference further than this, a check that does not fail shows nothing
MOST_ROWS = 64
Check = Literal["shuffled", "data_processing", "rescaling", "additivity"]
Verdict = Literal["passed", "failed", "limited by the ceiling", "not measured"]
CHECKS: tuple[Check, ...] = get_args(Check)


class CheckedRows(NamedTuple):
    """Rows of one step of a batch, scored as they are and as the checks need them; None if no row can be used.

    Attributes:
        plain: the rows as they are.
        processed: the same rows, scored with processed latents.
        shuffled: rows with the positive of an independent sequence.
        parts: rows of two sequences; row i of one is paired with row i of the other, and so are their candidates.
    """

    plain: ScoredRows
    processed: ScoredRows
    shuffled: ScoredRows | None
    parts: tuple[ScoredRows, ScoredRows] | None


def pair_of(parts: tuple[ScoredRows, ScoredRows], offset: int | float = 0.0) -> ScoredRows:
    """Return the rows of the pairs, whose scores are the sums of the scores of both parts.

    log p(y1, y2 | x1, x2) / p(y1, y2) is the sum of both log ratios. A critic that is a log ratio plus `offset` has the
    offset twice in the sum, so it is subtracted once.
    """
    first, second = parts
    return first._replace(scores=first.scores + second.scores - offset)


def checked_rows(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    sequences: Sequences,
    channels: Bool[Tensor, " D"],
    *,
    generator: torch.Generator,
    num_negatives: int | None = None,
    steps: tuple[int, ...] | None = None,
    has_baseline: bool = False,
    keeps_groups: bool = False,
    most_rows: int = MOST_ROWS,
) -> Iterator[tuple[int, CheckedRows]]:
    """Yield the index of a step and its rows for the checks, for all steps that have rows. Negatives exclude the
    sequence of the row (`mixed_excluding`).

    - Shuffled positives are positives of the same step, of a sequence with another id, and are among the row's
      candidates before any are sampled.
    - Processed latents keep only some channels. Masked queries give the same scores. So the estimate is at most the
      information of the masked latents about the context, and that of the latents about masked queries.
    - Pairs join each sequence with the next one in a random order, if both are independent. The candidates are latents
      of further sequences, paired by the same order and a random order of time. Both parts and the pair have the same
      number of candidates. So each pair needs four sequences.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        sequences: lengths and ids of the sequences.
        channels: channels of z that the processed latents keep; all others are 0.
        generator: source of random numbers, on the CPU.
        num_negatives: negatives per row, sampled with replacement; a repeated negative counts once. None: all
            candidates.
        steps: the step k of each query, in increasing order; None: 1..K.
        has_baseline: use half of the sequences for a baseline, and only the other half for candidates.
        keeps_groups: whether batches hold more sequences of a group than the corpus does. Sequences of one group are
            then independent only given the group, unless the batch has a single group.
        most_rows: largest number of rows of a step, sampled without replacement.

    Raises:
        ValueError: the errors of `scored_rows`.
    """
    num_steps, num_sequences, num_latents, _ = queries.shape
    planned = plan(STRATEGY, sequences, num_latents, steps or tuple(range(1, num_steps + 1)))
    query_index = planned.query_index
    assert query_index is not None
    pool = planned.candidate_mask
    kept = torch.zeros_like(pool)
    if has_baseline:
        kept, pool = split_by_sequence(pool, repeat(sequences.sequence_id, "b -> (b t)", t=num_latents))
    independent = independent_sequences(sequences, keeps_groups)
    order = torch.randperm(num_sequences, generator=generator)
    if has_baseline:  # neighbours in the order are then mostly both baseline or both candidates
        ids = sequences.sequence_id[order]
        order = order[(ids > ids.median()).int().sort(stable=True).indices]
    following = torch.empty_like(order).scatter(0, order, order.roll(-1))
    times = torch.randperm(num_latents, generator=generator)
    partner = rearrange(rearrange(following * num_latents, "b -> b 1") + times, "b t -> (b t)")
    joins = independent[torch.arange(num_sequences), following]  # [B]
    joins_columns = repeat(joins, "b -> (b t)", t=num_latents)
    columns = rearrange(latents, "b t d -> (b t) d").double()
    flat = rearrange(queries, "k b t d -> (b t k) d").double()
    channels = channels.to(columns)

    def scored(rows: Tensor, positives: Tensor, mask: Tensor, baseline: Tensor) -> ScoredRows:
        scores = flat[query_index[rows].to(flat.device)] @ columns.T
        return _move(ScoredRows(scores, positives, mask, baseline), scores.device)

    for step in range(num_steps):
        rows = (planned.step == step).nonzero()[:, 0]
        if len(rows) == 0:
            continue
        positives, sequence = planned.positive_index[rows], planned.sequence[rows]
        chosen = torch.randperm(len(rows), generator=generator)[:most_rows]
        own = sequence[chosen]
        masks, baseline = pool[own], kept[own]
        negatives = _sampled(masks, num_negatives, generator)
        plain = scored(rows[chosen], positives[chosen], negatives, baseline)
        processed = plain._replace(scores=(flat[query_index[rows[chosen]].to(flat.device)] * channels) @ columns.T)

        other, has_other = _draw_one(masks[:, positives] & independent[own][:, sequence], generator)
        without = masks.scatter(1, rearrange(positives[other], "m -> m 1"), False)
        has_other &= without.any(1)
        shuffled = None
        if has_other.any():
            is_shuffled = has_other.to(plain.scores.device)
            shuffled = _move(
                ScoredRows(
                    plain.scores[is_shuffled],
                    positives[other[has_other]],
                    _sampled(without[has_other], num_negatives, generator),
                    baseline[has_other],
                ),
                plain.scores.device,
            )

        second, has_second = _draw_one(
            (rearrange(following[own], "m -> m 1") == sequence) & rearrange(joins[own], "m -> m 1"), generator
        )
        both = [mask[own] & mask[following[own]] for mask in (pool, kept)]  # latents of neither sequence
        candidates, pair_baseline = (mask & mask[:, partner] & joins_columns for mask in both)
        has_second &= candidates.any(1) & (pair_baseline.any(1) if has_baseline else True)
        parts = None
        if has_second.any():
            pair_masks = _sampled(candidates[has_second], num_negatives, generator), pair_baseline[has_second]
            latter = scored(rows[second[has_second]], positives[second[has_second]], *pair_masks)
            has_pair = has_second.to(plain.scores.device)
            first = latter._replace(scores=plain.scores[has_pair], positives=plain.positives[has_pair])
            parts = (_positive_first(first), _positive_first(latter, partner))
        yield step, CheckedRows(plain, processed, shuffled, parts)


def independent_sequences(sequences: Sequences, keeps_groups: bool = False) -> Bool[Tensor, "B B"]:
    """Return the pairs of sequences that are independent: their ids differ.

    With `keeps_groups`, known groups differ too, unless the batch has a single group: then everything is measured given
    this group.
    """
    ids, groups = sequences.sequence_id, sequences.group_id
    independent = rearrange(ids, "b -> b 1") != ids
    if not keeps_groups or groups is None or len(groups.unique()) == 1:
        return independent
    return independent & ((rearrange(groups, "b -> b 1") != groups) | (groups < 0))


def largest_error(num_matrices: int) -> float:
    """Return how many standard errors, estimated from this many matrices, chance exceeds as rarely as 3 known errors.

    The standard error of few matrices is itself uncertain; this is a quantile of Student's t.
    """
    return float(stdtrit(num_matrices - 1, ndtr(NUM_ERRORS))) if num_matrices > 1 else math.inf


def verdict(
    check: Check,
    difference_nats: float,
    error_nats: float,
    num_matrices: int,
    reading_nats: float,
    reference_nats: float,
    num_candidates: int | float | None = None,
) -> Verdict:
    """Return the verdict on a check.

    Args:
        check: the check.
        difference_nats: `reading_nats` minus `reference_nats`, the value that the check expects or does not allow to be
            exceeded.
        error_nats: standard error of the difference.
        num_matrices: number of independent batches.
        reading_nats: the estimate of shuffled, processed, rescaled or joined data.
        reference_nats: 0, the estimate of the data as they are, or the sum of the estimates of both parts.
        num_candidates: N, if no estimate can exceed log N; None: the estimator has no such ceiling.

    Returns:
        - `failed`: the difference is above 0 by more than chance allows; for sums, it differs from 0 by more than
          chance and 0.1 nats together.
        - `limited by the ceiling`: processed or rescaled data are within 0.3 nats of log N; or the ceiling explains at
          least half of what a sum lacks, for Gaussians and an exact critic.
        - `not measured`: the difference or its error is not finite, or the error is so large that chance may move the
          difference by a nat.
        - `passed`: otherwise.
    """
    allowed = largest_error(num_matrices) * error_nats
    if not (math.isfinite(difference_nats) and math.isfinite(allowed)):
        return "not measured"
    is_sum = check == "additivity"
    gap = abs(difference_nats) - NEGLIGIBLE_NATS if is_sum else difference_nats
    if gap > allowed:
        if is_sum and num_candidates is not None and difference_nats < 0 < reference_nats:
            lacking = reference_nats - optimal_reading_nats(reference_nats, num_candidates)
            if gap - allowed <= 2 * lacking:
                return "limited by the ceiling"
        return "failed"
    if allowed > MOST_ALLOWED_NATS and (is_sum or gap > -allowed):
        return "not measured"
    if check in ("shuffled", "additivity") or num_candidates is None:
        return "passed"
    return "limited by the ceiling" if is_saturated(reading_nats, math.log(num_candidates)) else "passed"


def _positive_first(rows: ScoredRows, partner: Int[Tensor, " N"] | None = None) -> ScoredRows:
    """Return the rows with the positive as first column; the other columns are those of `partner`, if given."""
    scores, positives, candidates, baseline = rows
    positive = scores.gather(1, rearrange(positives, "m -> m 1"))
    others = scores if partner is None else scores[:, partner.to(scores.device)]
    no_column = torch.zeros_like(candidates[:, :1])
    return ScoredRows(
        torch.cat([positive, others], 1),
        torch.zeros_like(positives),
        torch.cat([no_column, candidates], 1),
        torch.cat([no_column, baseline], 1),
    )


def _draw_one(mask: Bool[Tensor, "M R"], generator: torch.Generator) -> tuple[Int[Tensor, " M"], Bool[Tensor, " M"]]:
    """Return one True entry of each row, uniformly, and whether the row has any; a row without any gets 0."""
    has_any = mask.any(1)
    index = torch.zeros(len(mask), dtype=torch.long)
    if has_any.any():
        index[has_any] = torch.multinomial(mask[has_any].float(), 1, generator=generator)[:, 0]
    return index, has_any


def _sampled(mask: Bool[Tensor, "M N"], num: int | None, generator: torch.Generator) -> Bool[Tensor, "M N"]:
    """Return the entries of each row that are sampled, uniformly with replacement; None: all."""
    if num is None:
        return mask
    drawn = torch.multinomial(mask.float(), num, replacement=True, generator=generator)
    return torch.zeros_like(mask).scatter(1, drawn, True)


def _move(rows: ScoredRows, device: torch.device) -> ScoredRows:
    return ScoredRows(*(each.to(device) for each in rows))
