"""The tasks of known information by name."""

from collections.abc import Callable

from cpc.bounds.tasks.ar1 import LaggedAR1
from cpc.bounds.tasks.discrete import DiscreteChannel
from cpc.bounds.tasks.gaussian import CorrelatedGaussians
from cpc.bounds.tasks.student import StudentT
from cpc.bounds.tasks.task import Task
from cpc.bounds.tasks.transformed import Transformed, inverse_sinh, signed_power, spiral
from cpc.bounds.tasks.uniform import AdditiveUniform


def _cubic(information_nats: int | float, dim: int) -> Task:
    return Transformed(CorrelatedGaussians.with_information(information_nats, dim), None, signed_power(3))


def _half_cube(information_nats: int | float, dim: int) -> Task:
    bend = signed_power(1.5)
    return Transformed(CorrelatedGaussians.with_information(information_nats, dim), bend, bend)


def _spiral(information_nats: int | float, dim: int) -> Task:
    if dim < 2:
        raise ValueError(f"task 'spiral' turns pairs of coordinates: dim={dim} must be at least 2")
    return Transformed(CorrelatedGaussians.with_information(information_nats, dim), spiral(), spiral())


def _student_asinh(information_nats: int | float, dim: int) -> Task:
    return Transformed(StudentT.with_information(information_nats, dim), inverse_sinh(), inverse_sinh())


TASKS: dict[str, Callable[[int | float, int], Task]] = {
    "gaussian": CorrelatedGaussians.with_information,
    "cubic": _cubic,
    "half_cube": _half_cube,
    "spiral": _spiral,
    "vector_ar1": LaggedAR1.with_information,
    "student": StudentT.with_information,
    "student_asinh": _student_asinh,
    "uniform": AdditiveUniform.with_information,
    "discrete": DiscreteChannel.with_information,
}


def task_named(name: str, information_nats: int | float, dim: int) -> Task:
    """A task with this information.

    Args:
        name: in `TASKS`.
        information_nats: I(x; y).
        dim: of x and of y; letters of the discrete channel.

    Raises:
        ValueError: on an unknown name, or an information that the task does not reach.
    """
    if name not in TASKS:
        raise ValueError(f"tasks names {name!r}, which is not one of {', '.join(TASKS)}")
    return TASKS[name](information_nats, dim)
