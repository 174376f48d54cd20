"""First places against a loop, by both ways of finding them."""

import pytest
import torch

from cpc.candidates.samplers.arrivals import MOST_TABLE_ENTRIES, first_occurrences


@pytest.mark.parametrize("num_classes", [30, MOST_TABLE_ENTRIES])
def test_first_occurrences(num_classes: int, generator: torch.Generator) -> None:
    ids = torch.randint(30, (3, 50), generator=generator)
    assert first_occurrences(ids, num_classes).tolist() == [[row.index(each) for each in row] for row in ids.tolist()]
