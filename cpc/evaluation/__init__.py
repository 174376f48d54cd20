"""What a model's held-out batches say: the bound, and other estimators' readings."""

from cpc.evaluation.command import evaluate
from cpc.evaluation.held_out import EVALUATION_SEED, HeldOut, OnBatch, measured_tallies
from cpc.evaluation.held_out_text import HeldOutText, class_tally
from cpc.evaluation.protocol import (
    AudioProtocol,
    ImageProtocol,
    Protocol,
    TextProtocol,
    WindowProtocol,
    recorded_image_protocol,
)
from cpc.evaluation.readings import (
    READABLE,
    HeldOutReadings,
    check_readable,
    reading_by,
    readings_table,
)

__all__ = [
    "EVALUATION_SEED",
    "READABLE",
    "AudioProtocol",
    "HeldOut",
    "HeldOutReadings",
    "HeldOutText",
    "ImageProtocol",
    "OnBatch",
    "Protocol",
    "TextProtocol",
    "WindowProtocol",
    "check_readable",
    "class_tally",
    "evaluate",
    "measured_tallies",
    "reading_by",
    "readings_table",
    "recorded_image_protocol",
]
