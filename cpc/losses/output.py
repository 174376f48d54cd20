"""The results of a loss: one value per row, and sums by step and sequence.

M rows, K steps, B sequences.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor


class RowLosses(NamedTuple):
    """The loss and accuracy of each row; only `loss` carries gradients.

    Attributes:
        loss: scalar, nats: the weighted sum of `loss_nats`, by default their mean.
        loss_nats: `[M]`, minus the log probability of the positive among the row's candidates (or a logistic loss).
        num_candidates: `[M]`, N of each row, including the positive. With draws from a bank, N counts the whole bank.
        accuracy: `[M]`, [no negative scores higher] / (1 + ties), so that equal scores give exactly 1/N. With draws
            from a bank, nan for a row without a negative.
        num_negatives: `[M]`, number of negatives of each row among its draws from a bank. None: N - 1.
        num_sampled: number of draws from a bank; None: every candidate was scored.
        objective: for a class table, a name in `cpc.losses.OBJECTIVES`; None: candidates are latents.
    """

    loss: Tensor
    loss_nats: Tensor
    num_candidates: Tensor
    accuracy: Tensor
    num_negatives: Tensor | None = None
    num_sampled: int | None = None
    objective: str | None = None

    @property
    def mi_nats(self) -> float:
        """Mean of log N - L over the rows that have a negative; `reading` is its interpretation."""
        if self.objective is not None:
            raise ValueError(f"log N - L of classes ({self.objective}) is no information: use their entropy minus L")
        read = self.num_candidates.double().log() - self.loss_nats.double()
        read = read if self.num_negatives is None else read[self.num_negatives > 0]
        if len(read) == 0:
            raise ValueError(f"no row has a negative: all {self.num_sampled} draws were from the row's own sequence")
        return float(read.mean())

    @property
    def reading(self) -> str:
        """The meaning of log N - L, in words for a legend."""
        if self.objective is not None:
            return f"{self.objective} of classes, not a bound on I(z; c)"
        if self.num_negatives is None:
            return "lower bound on I(z; c), if the negatives are this encoder's and independent of the contexts"
        num_without = int((self.num_negatives == 0).sum())
        left_out = f" (without {num_without} rows without a negative)" if num_without else ""
        return f"estimate from {self.num_sampled} draws{left_out}, too high in the mean, not a bound on I(z; c)"


class ContrastiveOutput(NamedTuple):
    """The loss of a batch, with sums over rows by step and sequence.

    Attributes:
        loss: scalar, nats: the unweighted mean over steps of the mean over rows; carries the gradients.
        num_rows: `[K, B]`, number of rows (b, t) whose z_t and z_{t+k} are both valid.
        loss_nats: `[K, B]`, sum over rows.
        log_num_candidates: `[K, B]`, sum over rows of log N_i.
        num_candidates: `[K, B]`, sum over rows of N_i.
        accuracy: `[K, B]`, sum over rows.
        draw_excess_nats: `[K, B]`, sum over rows of the nats that repeated draws may add to log N_i - L_i.
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
    """Return the sums over rows by step and sequence; `.loss` is the loss of the rows."""
    losses = row.loss_nats  # float32 also if the model is bfloat16
    counts = row.num_candidates.to(losses)
    excess = torch.zeros_like(losses) if draw_excess_nats is None else draw_excess_nats.to(losses)
    per_row = torch.stack([torch.ones_like(counts), losses, counts.log(), counts, row.accuracy.to(losses), excess])
    sums = losses.new_zeros(6, num_steps * num_sequences)
    sums.index_add_(1, step * num_sequences + sequence, per_row)
    return ContrastiveOutput(row.loss, *rearrange(sums, "n (k b) -> n k b", k=num_steps))
