"""The definition of the loss, computed fast: in tiles, with gradients from the forward pass.

`info_nce_rows` has the signature of `cpc.losses.definition.info_nce_rows` and the same results. `tiled_loss` is the
same arithmetic for class tables, and `partition_sums` for banks of any size. Code outside this folder imports only the
names in `__all__`.

| file | content |
|---|---|
| `blocks.py` | the parts of the score matrix that are computed |
| `tiled_loss.py` | a loop over tiles of rows: losses and gradients in one pass |
| `tiles.py`, `drawn_tiles.py`, `rounding.py` | the matrix products of a tile |
| `score_gradients.py`, `kernel.py` | losses, accuracies and derivatives by the scores of a tile: in torch, in Triton |
| `partition.py` | the same sums over a bank, tiled over candidates too |
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.losses.definition import CandidateSet
from cpc.losses.definition import info_nce_rows as info_nce_definition
from cpc.losses.engine.blocks import Block, layout_of
from cpc.losses.engine.partition import partition_sums
from cpc.losses.engine.rounding import ROUNDINGS, rounding_of, score_dtype
from cpc.losses.engine.score_gradients import ScoreCorrections, accuracy_of, loss_and_factor, softplus, tie_width
from cpc.losses.engine.tiled_loss import attach_gradients, divide_by_temperature, mask_unused, tiled_loss
from cpc.losses.output import RowLosses

REFERENCE = "reference"
COMPUTE = ("auto", *ROUNDINGS, REFERENCE)

__all__ = [
    "COMPUTE",
    "Block",
    "ScoreCorrections",
    "accuracy_of",
    "attach_gradients",
    "divide_by_temperature",
    "info_nce_rows",
    "loss_and_factor",
    "mask_unused",
    "partition_sums",
    "rounding_of",
    "score_dtype",
    "softplus",
    "tie_width",
    "tiled_loss",
]


def info_nce_rows(
    queries: Float[Tensor, "Q D"],
    candidates: Float[Tensor, "N D"],
    rows: CandidateSet,
    drawn: Int[Tensor, "M R"] | None = None,
    bias: Float[Tensor, " N"] | None = None,
    compute: str = "auto",
) -> RowLosses:
    """Return the losses of all rows, as `cpc.losses.definition.info_nce_rows` defines them.

    No step depends on values of tensors or waits for a GPU.

    Raises:
        ValueError: if `compute` is unknown, or would round float64 queries.
    """
    if compute not in COMPUTE:
        raise ValueError(f"compute={compute!r} is not one of {', '.join(COMPUTE)}")
    if compute == REFERENCE:
        return info_nce_definition(queries, candidates, rows, drawn, bias)
    dtype = score_dtype(queries)
    if dtype == torch.float64 and compute not in ("auto", "float32"):
        raise ValueError(f"compute={compute!r} rounds operands, but the queries are float64: pass float32 ones")
    blocks, num_negatives, is_used = layout_of(rows)
    loss, *of_rows = tiled_loss(
        queries,
        mask_unused(candidates.to(dtype), is_used),
        blocks,
        rows.weight.to(dtype),
        query_index=rows.query_index,
        drawn=drawn,
        bias=bias,
        compute=compute,
    )
    num_candidates = 1 + (num_negatives if drawn is None else torch.full_like(num_negatives, drawn.shape[1]))
    return RowLosses(loss, of_rows[0], num_candidates, of_rows[1])
