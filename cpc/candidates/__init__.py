"""Candidates of contrastive losses: strategies, sampled negatives, banks of latents, class tables and samplers."""

from cpc.candidates import samplers
from cpc.candidates.bank import LatentBank
from cpc.candidates.class_table import ClassTable
from cpc.candidates.draws import draw_excess_nats, draw_negatives
from cpc.candidates.strategies import (
    BANK,
    MOST_DRAW_EXCESS_NATS,
    STRATEGIES,
    Strategy,
    allowed_matrix,
    bounds_information,
    check_num_latents,
    interpretation,
)

__all__ = [
    "BANK",
    "MOST_DRAW_EXCESS_NATS",
    "STRATEGIES",
    "ClassTable",
    "LatentBank",
    "Strategy",
    "allowed_matrix",
    "bounds_information",
    "check_num_latents",
    "draw_excess_nats",
    "draw_negatives",
    "interpretation",
    "samplers",
]
