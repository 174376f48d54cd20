"""How scores become a loss.

From below: `plan` (which rows are scored against which candidates), `gathered` (those of all ranks), `tiles` (scores),
`slopes` (losses and derivatives), `tiled_loss` (their sum, with gradients); then `info_nce`, `class_loss` and
`bank_loss` for anyone's tensors; and the parts of a model, `Contrastive`, `LocalContrastive` and `ClassTableLoss`.
"""

from cpc.losses.bank_loss import bank_loss
from cpc.losses.class_loss import class_loss
from cpc.losses.class_table_loss import ClassTableLoss
from cpc.losses.contrastive import Contrastive, contrast
from cpc.losses.info_nce import info_nce
from cpc.losses.local_contrastive import LocalContrastive
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.objectives import OBJECTIVES, Objective
from cpc.losses.output import ContrastiveOutput, RowLosses

__all__ = [
    "OBJECTIVES",
    "ClassTableLoss",
    "Contrastive",
    "ContrastiveOutput",
    "EvalProtocol",
    "LocalContrastive",
    "Loss",
    "Objective",
    "RowLosses",
    "bank_loss",
    "class_loss",
    "contrast",
    "info_nce",
]
