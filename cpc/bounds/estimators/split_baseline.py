"""A baseline for a critic that does not know its rows' constants, as one trained by InfoNCE does not.

B rows of a pool, M rows (queries), N candidates.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def split_by_sequence(
    pool: Bool[Tensor, "B N"], sequence_id: Int[Tensor, " N"]
) -> tuple[Bool[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Part each row's candidates into those for a baseline and those to be read, whole sequences to either side.

    Latents of one sequence depend on each other, and negatives drawn from one pool meet the same latents: only halves
    without a sequence in common, parted before anything is drawn, make the baseline independent of what it divides.
    With an odd number of sequences the baseline has one less.

    Args:
        pool: candidates of each row.
        sequence_id: whose each candidate is; windows of one file share an id.

    Raises:
        ValueError: if a row's candidates are of fewer than two sequences.
    """
    first = torch.zeros_like(pool)
    for row, of_row in enumerate(pool):
        ids = sequence_id[of_row].unique()
        if len(ids) < 2:
            raise ValueError(
                f"a baseline takes half of the sequences that candidates come from, here {len(ids)}: raise "
                "data.batch_size, so that two others are in each batch, or choose estimators without a baseline"
            )
        first[row] = of_row & torch.isin(sequence_id, ids[: len(ids) // 2])
    return first, pool & ~first


def mean_baseline(scores: Float[Tensor, "M N"], columns: Bool[Tensor, "M N"]) -> Float[Tensor, " M"]:
    """Log of the mean of exp s over some columns of each row; the row's positive should not be among them.

    TUBA and I_alpha with this baseline stay lower bounds if the candidates that they read are independent of these.
    """
    return scores.masked_fill(~columns, -math.inf).logsumexp(1) - columns.sum(1).to(scores.dtype).log()
