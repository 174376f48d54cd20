import pytest
import torch
from oracles import is_allowed
from refusals import refuses

from cpc.candidates import STRATEGIES, allowed_matrix, bounds_information
from cpc.candidates.strategies import includes_own_sequence, num_candidates_of


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_matches_the_definition_pair_by_pair(strategy: str) -> None:
    ids, groups = [0, 1, 1, 2, 3], [0, 0, 0, 1, 1]
    allowed = allowed_matrix(strategy, torch.tensor(ids), torch.tensor(groups))
    for b in range(5):
        for c in range(5):
            assert bool(allowed[b, c]) == is_allowed(strategy, b, c, ids, groups)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("within", [None, torch.tensor([0, 1, 1, 0, 1])])
def test_latents_that_are_lent_are_the_sums_of_the_matrix(strategy: str, within: torch.Tensor | None) -> None:
    ids, groups, num = torch.tensor([0, 1, 1, 2, 1]), torch.tensor([0, 0, 1, 1, 0]), torch.tensor([3, 4, 5, 6, 7])
    allowed = allowed_matrix(strategy, ids, groups)
    assert (allowed.diagonal() == includes_own_sequence(strategy)).all()
    if within is not None:
        allowed &= within[:, None] == within
    assert torch.equal(num_candidates_of(strategy, num, ids, groups, within), (allowed * num).sum(1))


def test_unknown_strategy_is_named() -> None:
    refuses(r"negatives='all' is not one of mixed, same_speaker", allowed_matrix, "all", torch.arange(2))


@pytest.mark.parametrize("groups", [None, torch.tensor([0, -1])])
def test_same_speaker_needs_speakers(groups: torch.Tensor | None) -> None:
    refuses("needs the speaker", allowed_matrix, "same_speaker", torch.arange(2), groups)


def test_only_mixed_excluding_bounds_the_information() -> None:
    assert [s for s in STRATEGIES if bounds_information(s)] == ["mixed_excluding"]
