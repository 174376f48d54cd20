"""How scores become a loss.

`definition` is InfoNCE as the paper writes it. `ranks` gathers the latents of all ranks, `candidate_sets` chooses the
candidates of each row, and `engine` computes the same loss fast. `info_nce`, `class_loss` and `bank_loss` take anyone's
tensors. `Contrastive`, `LocalContrastive` and `ClassTableLoss` are parts of a model.
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
