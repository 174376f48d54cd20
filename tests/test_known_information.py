"""A trained model against a truth in closed form: the whole chain of encoder, context, predictor, loss and bound."""

import pytest
import torch

from cpc.bounds import BoundTally, VectorAR1
from cpc.contexts import GRU
from cpc.encoders import VectorEncoder
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.predictors import Bilinear

K, B, T = 4, 32, 32


@pytest.mark.slow
def test_the_curve_over_steps_lies_on_the_closed_form() -> None:
    """After 1000 steps every step reads within 0.1 nats of the truth: N = 993 hides 0.02 of 2.04 nats at most."""
    process = VectorAR1(coefficient=0.8, dim=4)
    model = trained(process, num_train_steps=1000)
    generator = torch.Generator().manual_seed(1)
    tally = BoundTally()
    for _ in range(100):
        with torch.no_grad():
            tally.update(model.loss(process.sample(B, T, generator)))
    bound = tally.compute("mixed_excluding", "test")
    assert max(bound.standard_error_nats) < 0.02
    for k in range(K):
        truth = process.mutual_information_nats(k + 1)
        assert bound.mi_bound_nats[k] == pytest.approx(truth, abs=0.1)
        assert bound.mi_bound_nats[k] < min(truth + 3 * bound.standard_error_nats[k], bound.mi_ceiling_nats[k])


def trained(process: VectorAR1, num_train_steps: int) -> CPC:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = CPC(VectorEncoder(process.dim, dim=32), GRU(64), Bilinear(K), Contrastive("mixed_excluding"))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_train_steps)
    for _ in range(num_train_steps):
        optimiser.zero_grad()
        model.loss(process.sample(B, T, generator)).loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()
