"""What a loss says: row by row, and summed per step and sequence.

M rows, K steps, B sequences.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor


class RowLosses(NamedTuple):
    """The loss of each row with its company; only `loss` carries gradients.

    Attributes:
        loss: scalar, nats: the mean of `loss_nats`, or their sum with the weights that were given.
        loss_nats: `[M]`, minus the log probability of the positive among the row's candidates (or a logistic loss).
        num_candidates: `[M]`, N of each row, positives included; of draws from a bank, N of the whole bank.
        accuracy: `[M]`, [no negative scores higher] / (1 + ties): equal scores give exactly 1/N. nan for a row that
            met no negative of a bank.
        num_met: `[M]`, negatives that a row met, of draws from a bank; None elsewhere: N - 1.
        num_sampled: how many were drawn from a bank; None: every candidate was met.
        objective: of a class table, a name in `cpc.losses.OBJECTIVES`; None: candidates are latents.
    """

    loss: Tensor
    loss_nats: Tensor
    num_candidates: Tensor
    accuracy: Tensor
    num_met: Tensor | None = None
    num_sampled: int | None = None
    objective: str | None = None

    @property
    def mi_nats(self) -> float:
        """Mean of log N - L over the rows that met a negative. What it says is in `reading`.

        Raises:
            ValueError: of classes, whose information is H - L; if no row met a negative.
        """
        if self.objective is not None:
            raise ValueError(f"log N - L says nothing of classes ({self.objective}): take L from their entropy instead")
        read = self.num_candidates.double().log() - self.loss_nats.double()
        if self.num_met is not None:
            read = read[self.num_met > 0]
            if len(read) == 0:
                raise ValueError(f"no row met a negative: all {self.num_sampled} draws were the rows' own; draw more")
        return float(read.mean())

    @property
    def reading(self) -> str:
        """What log N - L is, in words for a legend."""
        if self.objective is not None:
            return f"{self.objective} of classes, not a bound on I(z; c)"
        if self.num_met is None:
            return "lower bound on I(z; c), if the negatives are this encoder's and independent of the contexts"
        num_left_out = int((self.num_met == 0).sum())
        left_out = f" (without {num_left_out} rows that met no negative)" if num_left_out else ""
        return f"estimate from {self.num_sampled} draws{left_out}, too high in the mean, not a bound on I(z; c)"


class ContrastiveOutput(NamedTuple):
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


def sum_by_step(
    row: RowLosses,
    step: Int[Tensor, " M"],
    sequence: Int[Tensor, " M"],
    num_steps: int,
    num_sequences: int,
    draw_excess_nats: Float[Tensor, " M"] | None = None,
) -> ContrastiveOutput:
    """Add rows up by step and sequence; `.loss` is passed on."""
    losses = row.loss_nats  # float32 also in pure bfloat16
    counts = row.num_candidates.to(losses)
    excess = torch.zeros_like(losses) if draw_excess_nats is None else draw_excess_nats.to(losses)
    per_row = torch.stack([torch.ones_like(counts), losses, counts.log(), counts, row.accuracy.to(losses), excess])
    sums = losses.new_zeros(6, num_steps * num_sequences)
    sums.index_add_(1, step * num_sequences + sequence, per_row)
    return ContrastiveOutput(row.loss, *rearrange(sums, "n (k b) -> n k b", k=num_steps))


def concatenate_directions(contrasts: Sequence[ContrastiveOutput], num_images: int) -> ContrastiveOutput:
    """One contrast of several directions of the same images: steps one direction after the other, sums per image.

    Args:
        contrasts: of each direction, the sequences of an image next to each other.
        num_images: B.
    """
    loss = torch.stack([one.loss for one in contrasts]).mean()
    sums = zip(*(one[1:] for one in contrasts), strict=True)
    return ContrastiveOutput(
        loss, *(torch.cat([reduce(part, "k (b s) -> k b", "sum", b=num_images) for part in field]) for field in sums)
    )
