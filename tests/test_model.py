from typing import Any

import torch

from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder
from cpc.losses import Contrastive, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear


def small(**options: Any) -> CPC:
    torch.manual_seed(0)
    return CPC(AudioEncoder(dim=8), GRU(dim=6), Bilinear(num_steps=3), Contrastive(**options))


def test_contexts_do_not_see_the_future() -> None:
    model = small()
    x = torch.randn(1, 8000)
    changed = x.clone()
    changed[:, 4000:] = torch.randn(4000)
    last_untouched = int((4000 - model.encoder.first_centre_samples - model.encoder.receptive_field_samples / 2) // 160)
    torch.testing.assert_close(*(model(each).contexts[:, : last_untouched + 1] for each in (x, changed)))


def test_permuting_the_batch_permutes_everything() -> None:
    model = small()
    x, order = torch.randn(4, 3200), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(x).contexts[order], model(x[order]).contexts)
    torch.testing.assert_close(model.loss(x).loss, model.loss(x[order]).loss)


def test_auxiliary_strategies_share_the_training_loss_and_leave_the_bound_alone() -> None:
    shares = {"sequence_only": 0.5, "mixed_excluding": 0.2}
    model, x = small(auxiliary_negatives=shares), torch.randn(4, 3200)
    assert model.loss_part.training_strategies == ("mixed", "sequence_only", "mixed_excluding")
    alone = {strategy: small(negatives=strategy) for strategy in model.loss_part.training_strategies}
    together = model.loss(x)
    together.loss.backward()
    expected = sum(share * alone[strategy].loss(x).loss for strategy, share in ({"mixed": 0.3} | shares).items())
    torch.testing.assert_close(together.loss, expected)
    expected.backward()
    for name, parameter in model.named_parameters():
        gradient = sum(dict(one.named_parameters())[name].grad for one in alone.values())
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)
    assert torch.equal(together.loss_nats, alone["mixed"].loss(x).loss_nats)
    assert torch.equal(model.loss(x, measure=EvalProtocol("mixed", None)).loss, alone["mixed"].loss(x).loss)


def test_a_step_that_is_not_finite_with_an_auxiliary_strategy_shows() -> None:
    """Latents of the own sequence break `sequence_only` alone: the bound's own scores would not tell."""
    model = small(negatives="mixed_excluding", auxiliary_negatives={"sequence_only": 0.5})
    batch = Batch.of(torch.randn(2, 3200))
    output = model(batch.x)
    broken = output.latents.detach().clone()
    broken[0, 0] = torch.inf  # never a positive, and a candidate of its own sequence
    output = output._replace(latents=broken)
    result = model.contrast(output, batch)
    alone = model.contrast(output, batch, measure=EvalProtocol("mixed_excluding", None))
    assert torch.isfinite(alone.loss_nats[:, 0]).all()
    assert not torch.isfinite(result.loss_nats[:, 0]).any()
