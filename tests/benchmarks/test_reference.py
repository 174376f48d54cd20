"""The styles that the benchmarks measure against compute the very loss that ours does."""

import torch

from benchmarks.reference import draw_per_step, gather_style_loss, materialised_info_nce
from cpc import CPC
from cpc.contexts import GRU
from cpc.encoders import AudioEncoder
from cpc.losses import Contrastive, info_nce
from cpc.predictors import Bilinear


def test_the_gather_style_has_our_loss_and_gradients() -> None:
    torch.manual_seed(0)
    model = CPC(AudioEncoder(6, norm="layer"), GRU(5), Bilinear(3), Contrastive(num_negatives=7)).double()
    x = torch.randn(3, 1600, dtype=torch.float64)  # ten latents
    ours = model.loss(x, generator=torch.Generator().manual_seed(1)).loss
    negatives = draw_per_step(3, 3, 10, 7, torch.Generator().manual_seed(1))
    theirs = gather_style_loss(model, x, negatives)
    torch.testing.assert_close(theirs, ours)
    parameters = list(model.parameters())
    pairs = zip(torch.autograd.grad(theirs, parameters), torch.autograd.grad(ours, parameters), strict=True)
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted)


def test_materialised_scores_have_our_loss() -> None:
    queries, candidates, positives = torch.randn(4, 5), torch.randn(9, 5), torch.tensor([0, 3, 3, 8])
    expected = info_nce(queries, candidates, positives).loss
    torch.testing.assert_close(materialised_info_nce(queries, candidates, positives), expected)
