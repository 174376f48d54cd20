"""The benchmark's laws, after a run was interrupted."""

import torch

from benchmarks.language import Dense
from cpc.candidates.kernels import RandomFourier


def test_a_restored_law_is_the_one_that_was_saved() -> None:
    laws = [Dense(7, RandomFourier(4, 32, nu=1.0, seed=3)) for _ in range(2)]
    laws[0].refresh(torch.nn.functional.normalize(torch.randn(7, 4), dim=1))
    laws[1].load_state_dict(laws[0].state_dict())
    queries = torch.nn.functional.normalize(torch.randn(5, 4), dim=1)
    assert torch.equal(laws[1].log_prob(queries), laws[0].log_prob(queries))
