"""How scores become a loss."""

from cpc.losses.bank_loss import BankLoss, bank_loss
from cpc.losses.candidate_loss import ClassLoss, candidate_loss
from cpc.losses.class_loss import class_loss
from cpc.losses.class_table_loss import ClassTableLoss
from cpc.losses.contrast import Contrast, contrast
from cpc.losses.contrastive import Contrastive
from cpc.losses.info_nce import InfoNCE, info_nce
from cpc.losses.loss_part import LossPart, Measure
from cpc.losses.objectives import OBJECTIVES, Objective

__all__ = [
    "OBJECTIVES",
    "BankLoss",
    "ClassLoss",
    "ClassTableLoss",
    "Contrast",
    "Contrastive",
    "InfoNCE",
    "LossPart",
    "Measure",
    "Objective",
    "bank_loss",
    "candidate_loss",
    "class_loss",
    "contrast",
    "info_nce",
]
