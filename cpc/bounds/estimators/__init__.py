"""Estimators of mutual information from one score matrix: rows are queries, columns candidates."""

from cpc.bounds.estimators.donsker_varadhan import MovingAverageGradient, donsker_varadhan, smile
from cpc.bounds.estimators.info_nce import info_nce
from cpc.bounds.estimators.interpolated import interpolated
from cpc.bounds.estimators.jackknife import standard_error_nats
from cpc.bounds.estimators.jensen_shannon import jensen_shannon, jensen_shannon_nwj
from cpc.bounds.estimators.leave_one_out import leave_one_out
from cpc.bounds.estimators.reading import Reading, pooled
from cpc.bounds.estimators.registry import ESTIMATORS, Estimator, estimator_named
from cpc.bounds.estimators.split_baseline import mean_baseline, split_by_sequence
from cpc.bounds.estimators.tuba import nwj, tuba

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "MovingAverageGradient",
    "Reading",
    "donsker_varadhan",
    "estimator_named",
    "info_nce",
    "interpolated",
    "jensen_shannon",
    "jensen_shannon_nwj",
    "leave_one_out",
    "mean_baseline",
    "nwj",
    "pooled",
    "smile",
    "split_by_sequence",
    "standard_error_nats",
    "tuba",
]
