"""The bank of latents."""

import torch
from refusals import refuses

from cpc.candidates import LatentBank


def test_it_counts_the_latents_of_sequences() -> None:
    bank = LatentBank(torch.zeros(5, 1), torch.tensor([2**42, -1, 2**42, 0, -1]))
    assert bank.num_of(torch.tensor([0, 1, 2**42, 2**43, -1])).tolist() == [1, 0, 2, 0, 0]
    assert LatentBank(torch.zeros(2, 1)).num_of(torch.tensor([0, -1])).tolist() == [0, 0]


def test_a_bank_without_latents_is_refused() -> None:
    refuses("the number of latents=0 must be at least 1", LatentBank, torch.zeros(0, 2))
