"""Losses: from scores to nats.

| file | content |
|---|---|
| `definition.py` | InfoNCE on one page: rows, candidates and equation 4 |
| `contrastive.py`, `local_contrastive.py` | the parts of a model: output and sequences -> loss |
| `ranks.py` | latents and identities of all ranks |
| `sequences.py` | lengths and identities; queries and the latents that they predict |
| `candidate_sets.py` | rows, candidates and negatives of a batch, on the host |
| `engine/` | the definition, computed fast |
| `output.py` | losses of rows, and their sums by step and sequence |
| `info_nce.py`, `class_loss.py`, `bank_loss.py` | losses on tensors, for any training loop |
| `class_table_loss.py`, `objectives.py` | the loss of a language model, and its objectives |
| `loss.py` | the interface of all parts |
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
