"""What a model's held-out batches say: the bound, and other estimators' readings."""

from cpc.evaluation.command import evaluate
from cpc.evaluation.held_out import OnBatch, held_out_bound, measured_tallies
from cpc.evaluation.readings import (
    READABLE,
    HeldOutReadings,
    check_readable,
    reading_by,
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
    "measured_tallies",
    "reading_by",
    "readings_table",
    "recorded_data",
]
