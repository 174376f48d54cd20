"""Whom the positive is compared with."""

from cpc.candidates.class_table import ClassTable
from cpc.candidates.draws import draw_excess_nats, draw_negatives
from cpc.candidates.strategies import (
    MOST_DRAW_EXCESS_NATS,
    STRATEGIES,
    Strategy,
    allowed_matrix,
    bounds_information,
    reading_of,
)

__all__ = [
    "MOST_DRAW_EXCESS_NATS",
    "STRATEGIES",
    "ClassTable",
    "Strategy",
    "allowed_matrix",
    "bounds_information",
    "draw_excess_nats",
    "draw_negatives",
    "reading_of",
]
