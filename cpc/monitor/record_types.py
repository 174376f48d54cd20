"""The record types of docs/records.md: files, keys and fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NUMBER = int | float | None


class RecordType(NamedTuple):
    """The fields of one file of records."""

    file: str  # file name in a run's folder
    key: tuple[str, ...]  # fields whose values distinguish curves
    numbers: dict[str, str]  # fields that are plotted over training, with descriptions
    per_step: bool = False  # whether the numbers are lists with a value per step k
    last: Mapping[str, tuple[Any, str]] = MappingProxyType({})  # fields read only from the last record: type, shape
    schema: int = 1  # the newest supported schema


BOUND = RecordType(
    "bound.jsonl",
    ("split", "strategy"),
    {
        "loss_nats": "InfoNCE loss L",
        "num_candidates": "N, including the positive",
        "mi_ceiling_nats": "log N, which log N - L cannot exceed",
        "mi_bound_nats": "log N - L; cpc_num_candidates is N. Only some strategies for negatives make it a bound",
        "standard_error_nats": "standard error of log N - L over batches",
        "accuracy": "rate at which no negative scores higher than the positive",
    },
    per_step=True,
    last={
        "num_rows": (NUMBER, "per step"),
        "information_for_gaussians_nats": (NUMBER, "per step"),
        "saturated": (bool, "per step"),
        "biased": (bool, "per step"),
        "reading": (str, "one"),
    },
)
PROBE = RecordType(
    "probe.jsonl",
    ("task", "features"),
    {
        "accuracy": "accuracy of the online probe",
        "majority_accuracy": "accuracy of always predicting the most frequent class",
        "label_entropy_nats": "H(Y) of the test labels",
        "label_information_nats": "H(Y) - CE of the online probe",
    },
)
HEALTH = RecordType(
    "health.jsonl",
    (),
    {
        "time_unix_seconds": "when the last line of health.jsonl was written",
        "trained_seconds": "wall time of training so far",
        "windows_per_second": "training examples per second",
        "learning_rate": "learning rate of the optimiser's last step",
        "gradient_norm": "mean norm of the gradient before clipping, since the previous record",
        "gradient_norm_max": "largest norm of the gradient before clipping, since the previous record",
        "z_variance": "variance of the latents, mean over dimensions",
        "c_variance": "variance of the contexts, mean over dimensions",
        "z_effective_rank": "dimensions that the latents fill",
        "c_effective_rank": "dimensions that the contexts fill",
    },
    last={"collapsed": (str, "list")},
)
RETURNS = RecordType(
    "returns.jsonl",
    (),
    {
        "mean_return": "mean return of the episodes that ended since the previous record",
        "num_episodes": "episodes that ended since the previous record",
        "steps_per_second": "steps per second, in all environments",
    },
)
EVENT = RecordType("events.jsonl", (), {}, last={"event": (str, "one"), "message": (str, "one")})
RECORD_TYPES = (BOUND, PROBE, HEALTH, RETURNS, EVENT)
