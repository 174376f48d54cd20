"""From sums over independent units, batches or the sequences of one, to the averages of a bound and their error.

U units, K steps.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.losses.result import Contrast

SUMMED = Contrast._fields[1:]  # rows, loss, log N, N, accuracy, the draws' excess


def products_of(sums: Float[Tensor, "*U S K"]) -> Float[Tensor, "*U 4 K"]:
    """What a standard error needs of each unit, to be added up: whether it has rows, gap^2, gap rows and rows^2.

    The gap is log N - L, added up over rows.

    Args:
        sums: the fields `SUMMED` of a contrast, added up over the unit.
    """
    rows, loss, log_n = sums[..., :3, :].unbind(-2)
    gap = log_n - loss
    return torch.stack([(rows > 0).to(rows), gap * gap, gap * rows, rows * rows], -2)


def averages(sums: Float[Tensor, "S K"], products: Float[Tensor, "4 K"]) -> dict[str, Tensor]:
    """The lists of a `Bound`, each over the steps; NaN where a step had no row, an error NaN where it had one unit.

    log N - L is a ratio of sums, whose error is that of its linearisation over the units that had rows.

    Args:
        sums: over all units.
        products: likewise, as `products_of` gives them.
    """
    rows, loss, log_n, n, accuracy, excess = sums
    bound = (log_n - loss) / rows
    num_units, gap_gap, gap_rows, rows_rows = products
    squares = (gap_gap - 2 * bound * gap_rows + bound.square() * rows_rows).clamp(min=0)
    correction = (num_units / (num_units - 1)).where(num_units > 1, math.nan)
    return {
        "num_rows": rows.long(),
        "loss_nats": loss / rows,
        "num_candidates": n / rows,
        "mi_ceiling_nats": log_n / rows,
        "mi_bound_nats": bound,
        "standard_error_nats": (correction * squares).sqrt() / rows,
        "accuracy": accuracy / rows,
        "draw_excess_nats": excess / rows,
    }
