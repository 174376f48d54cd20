"""log N - L as a first-class result, its relatives, and tasks whose information is known."""

from cpc.bounds import estimators, tasks
from cpc.bounds.bound import Bound, BoundTally
from cpc.bounds.gaussian import information_at_reading_nats, optimal_reading_nats
from cpc.bounds.vector_ar1 import VectorAR1

__all__ = [
    "Bound",
    "BoundTally",
    "VectorAR1",
    "estimators",
    "information_at_reading_nats",
    "optimal_reading_nats",
    "tasks",
]
