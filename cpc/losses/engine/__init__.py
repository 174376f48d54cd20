"""The definition of the loss, computed fast: in tiles, with gradients from the forward pass.

`info_nce_rows` has the signature of `cpc.losses.definition.info_nce_rows` and the same results. `tiled_loss` is the
same arithmetic for class tables, and `partition_loss` for banks of any size. Code outside this folder imports only the
names in `__all__`.

| file | content |
|---|---|
| `blocks.py` | the parts of the score matrix that are computed |
| `tiled_loss.py` | a loop over tiles of rows: losses and gradients in one pass |
| `tiles.py` | the matrix products of a tile |
| `score_gradients.py`, `kernel.py` | losses, accuracies and derivatives by the scores of a tile: in torch, in Triton |
| `partition.py` | the loss against a bank, tiled over candidates too |
"""

from cpc.losses.engine.blocks import Block, on_device
from cpc.losses.engine.partition import partition_loss
from cpc.losses.engine.score_gradients import ScoreCorrections, softplus, tie_width
from cpc.losses.engine.tiled_loss import attach_gradients, divide_by_temperature, info_nce_rows, mask_unused, tiled_loss
from cpc.losses.engine.tiles import rounding_of, score_dtype

__all__ = [
    "Block",
    "ScoreCorrections",
    "attach_gradients",
    "divide_by_temperature",
    "info_nce_rows",
    "mask_unused",
    "on_device",
    "partition_loss",
    "rounding_of",
    "score_dtype",
    "softplus",
    "tie_width",
    "tiled_loss",
]
