import math

import pytest

from cpc.bounds.advice import advice
from cpc.bounds.gaussian import information_at_reading_nats, optimal_reading_nats


@pytest.mark.parametrize("num_candidates", [2, 16, 129, 1024])
@pytest.mark.parametrize("information_nats", [0.2, 1.0, 2.5])
def test_the_inverse_gives_the_information_back(information_nats: float, num_candidates: int) -> None:
    reading = optimal_reading_nats(information_nats, num_candidates)
    assert information_at_reading_nats(reading, num_candidates) == pytest.approx(information_nats, abs=5e-3)


def test_the_ends_of_the_inverse() -> None:
    assert information_at_reading_nats(-0.1, 16) == 0
    assert information_at_reading_nats(0, 16) == 0
    assert information_at_reading_nats(math.log(16) - 0.01, 16) == math.inf
    assert information_at_reading_nats(math.log(16) - 0.03, 16) < 20
    assert information_at_reading_nats(0.3, 10**6) == pytest.approx(0.3, abs=2e-3)


@pytest.mark.parametrize(
    ("reading", "num_candidates", "expected"),
    [
        (4.103, 129, "at N = 129 a true 6.0 nats reads 4.1 at best: raise the batch or add a queue"),
        (4.86, 129, "at N = 129 nothing reads above 4.9: raise the batch or add a queue"),
        (1.88, 129, ""),  # of 2 nats
        (-0.5, 16, ""),
        (math.nan, math.nan, ""),  # a step without rows
    ],
)
def test_advice(reading: float, num_candidates: float, expected: str) -> None:
    assert advice(reading, num_candidates) == expected
