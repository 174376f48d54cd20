"""Evaluation of models on held-out batches: the bound, and other estimates of information."""

from cpc.evaluation.command import evaluate
from cpc.evaluation.estimates import SCORE_ESTIMATORS, HeldOutEstimates, check_estimators, interpret
from cpc.evaluation.held_out import OnBatch, held_out_bounds
from cpc.evaluation.recorded import data_class, recorded_data
from cpc.evaluation.tables import bound_table, estimates_table

__all__ = [
    "SCORE_ESTIMATORS",
    "HeldOutEstimates",
    "OnBatch",
    "bound_table",
    "check_estimators",
    "data_class",
    "estimates_table",
    "evaluate",
    "held_out_bounds",
    "interpret",
    "recorded_data",
]
