"""InfoNCE for every prediction step of a batch of sequences: the training loss of CPC.

K steps, B sequences, T latents, D latent dim.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.draws import draw_excess_nats, draw_negatives
from cpc.candidates.strategies import allowed_matrix, check_num_valid
from cpc.losses.info_nce import Sequences, info_nce_of_rows


class Contrast(NamedTuple):
    """The loss of a batch, and per step and sequence the sums from which every mean follows.

    Attributes:
        loss: scalar, nats: the unweighted mean over steps of the mean over rows; carries the gradients.
        num_rows: `[K, B]`, rows (b, t) whose z_t and z_{t+k} are both valid.
        loss_nats: `[K, B]`, sum over rows.
        log_num_candidates: `[K, B]`, sum over rows of log N_i.
        num_candidates: `[K, B]`, sum over rows of N_i.
        accuracy: `[K, B]`, sum over rows.
        draw_excess_nats: `[K, B]`, sum over rows of what repeated draws may add to log N_i - L_i; 0 without draws.
    """

    loss: Tensor
    num_rows: Tensor
    loss_nats: Tensor
    log_num_candidates: Tensor
    num_candidates: Tensor
    accuracy: Tensor
    draw_excess_nats: Tensor


def contrast(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    *,
    strategy: str = "mixed",
    num_valid: Int[Tensor, " B"] | None = None,
    sequence_id: Int[Tensor, " B"] | None = None,
    group_id: Int[Tensor, " B"] | None = None,
    num_negatives: int | None = None,
    shared_across_steps: bool = False,
    skip_steps: int = 0,
    generator: torch.Generator | None = None,
    compute: str = "float32",
) -> Contrast:
    """Score z_{t+k} against the row's candidates with the query W_k c_t, for every step k and every t.

    Candidates are all valid latents of the allowed sequences, the same set for every k, plus the positive.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        strategy: whose latents a sequence is compared with, a name in `cpc.candidates.STRATEGIES`.
        num_valid: how many latents of each sequence are signal (the rest is padding, neither target nor candidate);
            None: all.
        sequence_id: sequences that may overlap share an id; None: all distinct.
        group_id: the speaker of each sequence, -1 where unknown.
        num_negatives: drawn per row and step, uniformly with replacement; None: all candidates.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does; where such a draw is z_{t+k}
            itself it is drawn anew for that step, so that each step's draws stay uniform over its negatives.
        skip_steps: the first step is k = skip_steps + 1: the latents between are neither predicted nor left out of the
            candidates.
        generator: source of the draws.
        compute: precision of the products' operands, as in `info_nce`.

    Raises:
        ValueError: if `num_valid` counts more latents than there are, no sequence is longer than the first step, or
            the strategy leaves a row without negatives.
    """
    num_steps, num_sequences, num_latents, _ = queries.shape
    if latents.shape != queries.shape[1:]:
        raise ValueError(f"queries {tuple(queries.shape)} are [K, *latents], but latents are {tuple(latents.shape)}")
    device = latents.device
    if num_valid is None:
        num_valid = torch.full((num_sequences,), num_latents, device=device)
    check_num_valid(num_valid, num_latents)
    if sequence_id is None:
        sequence_id = torch.arange(num_sequences, device=device)
    check_rows(strategy, num_valid, sequence_id, group_id, skip_steps)
    allowed = allowed_matrix(strategy, sequence_id, group_id)

    # one row per sequence, time and step: (b t k), the order in which a bilinear predictor lays its queries out
    candidate_sequence = repeat(torch.arange(num_sequences, device=device), "b -> (b t)", t=num_latents)
    place = torch.arange(num_sequences * num_latents, device=device)  # of z_t among the candidates
    time, length = place % num_latents, num_valid[candidate_sequence]
    ahead = skip_steps + torch.arange(1, num_steps + 1, device=device)
    is_row = rearrange(time, "m -> m 1") + ahead < rearrange(length, "m -> m 1")
    position, step = is_row.nonzero().unbind(1)
    of_row = candidate_sequence[position]
    positives = position + ahead[step]

    pool = allowed[:, candidate_sequence] & (time < length)
    negatives = None
    excess = torch.zeros(len(positives), dtype=torch.float64, device=device)
    if num_negatives is not None:
        excess = draw_excess_nats(num_negatives, pool.sum(1)[of_row] - pool[of_row, positives].long())
        negatives = draw_negatives(pool, of_row, positives, num_negatives, generator)
        if shared_across_steps:
            has_row = is_row.any(1)
            of_time = draw_negatives(pool, candidate_sequence[has_row], None, num_negatives, generator)
            shared = of_time[(has_row.cumsum(0) - 1)[position]]
            negatives = torch.where(shared == rearrange(positives, "m -> m 1"), negatives, shared)

    num_rows = torch.bincount(step, minlength=num_steps)
    row = info_nce_of_rows(
        rearrange(queries, "k b t d -> (b t k) d"),
        rearrange(latents, "b t d -> (b t) d"),
        positives,
        query=position * num_steps + step,
        weight=1 / (num_rows[step] * (num_rows > 0).sum()).double(),  # no row: no sequence of this batch is that long
        pool=pool,
        sequences=Sequences(allowed, of_row, candidate_sequence),
        negatives=negatives,
        compute=compute,
    )
    losses = row.loss_nats  # float32 also in pure bfloat16
    counts = row.num_candidates.to(losses)
    accuracy, excess = row.accuracy.to(losses), excess.to(losses)
    per_row = torch.stack([torch.ones_like(counts), losses, counts.log(), counts, accuracy, excess])
    sums = losses.new_zeros(6, num_steps * num_sequences)
    sums.index_add_(1, step * num_sequences + of_row, per_row)
    return Contrast(row.loss, *rearrange(sums, "n (k b) -> n k b", k=num_steps))


def side_by_side(contrasts: Sequence[Contrast], num_images: int) -> Contrast:
    """One contrast of several directions of the same images: steps one direction after the other, sums per image.

    Args:
        contrasts: of each direction, the sequences of an image next to each other.
        num_images: B.
    """
    loss = torch.stack([one.loss for one in contrasts]).mean()
    sums = zip(*(one[1:] for one in contrasts), strict=True)
    return Contrast(
        loss, *(torch.cat([reduce(part, "k (b s) -> k b", "sum", b=num_images) for part in field]) for field in sums)
    )


def check_rows(
    strategy: str,
    num_valid: Int[Tensor, " B"],
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    skip_steps: int = 0,
) -> None:
    """Refuse a batch that cannot be contrasted, from its identities alone.

    Raises:
        ValueError: if no sequence is longer than the first step, or the strategy leaves a row without negatives.
    """
    longest = int(num_valid.max())
    if longest < 2 + skip_steps:
        raise ValueError(
            f"the longest sequence has {longest} latents, a prediction {1 + skip_steps} ahead needs at least "
            f"{2 + skip_steps}: use longer windows (data.window_samples) or larger images (data.image_size), or leave "
            "such short files out"
        )
    allowed = allowed_matrix(strategy, sequence_id, group_id)
    num_negatives = (allowed * num_valid).sum(1) - allowed.diagonal().long()
    alone = (num_negatives < 1) & (num_valid > 1 + skip_steps)
    if bool(alone.any()):
        raise ValueError(
            f"negatives={strategy!r} leaves {int(alone.sum())} of {len(alone)} sequences of a batch without a single "
            "negative: raise data.batch_size, or, for a same-speaker strategy, choose data.sampler=same_speaker, "
            "which puts several sequences of a speaker in each batch"
        )
