"""First places against a loop, by both ways of finding them."""

import pytest
import torch

from cpc.candidates.samplers.arrivals import MOST_TABLE_ENTRIES, exponentials, first_occurrences, isin_rows


@pytest.mark.parametrize("num_classes", [30, MOST_TABLE_ENTRIES])
def test_first_places(num_classes: int, generator: torch.Generator) -> None:
    ids = torch.randint(30, (3, 50), generator=generator)
    assert first_occurrences(ids, num_classes).tolist() == [[row.index(each) for each in row] for row in ids.tolist()]


def test_members_of_the_same_row(generator: torch.Generator) -> None:
    ids, members = (torch.randint(-1, 9, (4, width), generator=generator) for width in (20, 3))
    expected = [[each in row for each in of_row] for of_row, row in zip(ids.tolist(), members.tolist(), strict=True)]
    assert isin_rows(ids, members).tolist() == expected
    assert not isin_rows(ids, members[:, :0]).any()


def test_waiting_times_are_exponential(generator: torch.Generator) -> None:
    times = exponentials((100_000,), generator)
    for moment, expected in ((1, 1), (2, 2), (3, 6)):
        powers = times**moment
        assert float(powers.mean()) == pytest.approx(expected, abs=4 * float(powers.std()) / 100_000**0.5)
