"""Evaluation of models on held-out batches: the bound, and the estimates of other estimators."""

from cpc.evaluation.command import evaluate
from cpc.evaluation.held_out import OnBatch, held_out_bound, measured_tallies
from cpc.evaluation.readings import (
    READABLE,
    HeldOutReadings,
    check_readable,
    interpretation,
    readings_table,
)
from cpc.evaluation.recorded import data_class, recorded_data

__all__ = [
    "READABLE",
    "HeldOutReadings",
    "OnBatch",
    "check_readable",
    "data_class",
    "evaluate",
    "held_out_bound",
    "interpretation",
    "measured_tallies",
    "readings_table",
    "recorded_data",
]
