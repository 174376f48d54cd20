"""The bound log N - L, other estimators of mutual information, and tasks with known information."""

from cpc.bounds import estimators, tasks
from cpc.bounds.bound import Bound, BoundTally
from cpc.bounds.gaussian import information_at_bound_nats, optimal_bound_nats
from cpc.bounds.vector_ar1 import VectorAR1

__all__ = ["Bound", "BoundTally", "VectorAR1", "estimators", "information_at_bound_nats", "optimal_bound_nats", "tasks"]
