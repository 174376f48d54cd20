"""log N - L as a first-class result, and tasks whose information is known."""

from cpc.bounds.bound import SCHEMA, Bound, BoundTally
from cpc.bounds.gaussian import optimal_reading_nats
from cpc.bounds.vector_ar1 import VectorAR1

__all__ = ["SCHEMA", "Bound", "BoundTally", "VectorAR1", "optimal_reading_nats"]
