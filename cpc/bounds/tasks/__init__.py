"""Pairs of known mutual information, each with the critic that knows everything."""

from cpc.bounds.tasks.ar1 import LaggedAR1
from cpc.bounds.tasks.discrete import DiscreteChannel
from cpc.bounds.tasks.gaussian import CorrelatedGaussians
from cpc.bounds.tasks.registry import TASKS, task_named
from cpc.bounds.tasks.student import StudentT
from cpc.bounds.tasks.task import Task
from cpc.bounds.tasks.transformed import Bend, Transformed, inverse_sinh, signed_power, spiral
from cpc.bounds.tasks.uniform import AdditiveUniform

__all__ = [
    "TASKS",
    "AdditiveUniform",
    "Bend",
    "CorrelatedGaussians",
    "DiscreteChannel",
    "LaggedAR1",
    "StudentT",
    "Task",
    "Transformed",
    "inverse_sinh",
    "signed_power",
    "spiral",
    "task_named",
]
