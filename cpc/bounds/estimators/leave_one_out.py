"""An upper bound, where the conditional density is known.

N pairs (x_i, y_i).
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.estimators.reading import Reading, part


def leave_one_out(log_conditional: Float[Tensor, "M N"]) -> Reading:
    """E[log p(y_i | x_i) - log mean over j != i of p(y_i | x_j)]: section 2.5 of Poole et al. 2019 (arXiv:1905.06922).

    An **upper bound** in expectation: the mean over other x stands for p(y), and the mean of -log of an average is at
    least -log of the mean. Bias: positive, vanishing once N is large against exp(I), and without limit below that.
    Variance: moderate, no exponential is outside a logarithm. A learnt critic is no conditional density: its constants
    of the row would count.

    Args:
        log_conditional: log p(y_j | x_i), rows x_i; any function of y_j alone may be added, so that log p(y | x) / p(y)
            serves as well.

    Raises:
        ValueError: if there are fewer than two pairs, or the matrix is not square.
    """
    num_rows, num_columns = log_conditional.shape
    if num_rows != num_columns:
        raise ValueError(f"log_conditional [{num_rows}, {num_columns}] must be square: pair i is its entry (i, i)")
    parted = part(rearrange(log_conditional, "x y -> y x"), None, None)
    joint = -parted.relative.log_mean_exp_negatives
    return Reading(joint, torch.full_like(joint, -math.inf), is_log=False)
