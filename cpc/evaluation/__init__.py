"""Evaluation of models on held-out batches: the bound, and other estimates of information."""

from cpc.evaluation.command import evaluate
from cpc.evaluation.held_out import held_out_bounds
from cpc.evaluation.recorded import data_class, recorded_data
from cpc.evaluation.tables import bound_table

__all__ = ["bound_table", "data_class", "evaluate", "held_out_bounds", "recorded_data"]
