"""Latents of missing samples are neither targets nor negatives: a loop over the known latents, in float64."""

import pytest
import torch
from oracles import assert_rows, contrast_rows

from cpc.candidates import STRATEGIES, LatentBank
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import SignalEncoder
from cpc.evaluation.bank import bank_contrast
from cpc.losses import Contrastive, contrast
from cpc.model import CPC
from cpc.predictors import Bilinear, Output

K, B, T, D = 3, 6, 7, 4
IDS, GROUPS = [0, 1, 1, 2, 3, 4], [0, 0, 0, 1, 1, 0]
NUM_VALID = [7, 3, 6, 5, 4, 7]


def random_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unknown latents and their queries hold NaN: no number depends on them."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(K, B, T, D, generator=generator, dtype=torch.float64)
    latents = torch.randn(B, T, D, generator=generator, dtype=torch.float64)
    is_known = torch.rand(B, T, generator=generator) < 0.7
    is_known[5] = False
    return (
        queries.masked_fill(~is_known[:, :, None], torch.nan),
        latents.masked_fill(~is_known[:, :, None], torch.nan),
        is_known,
    )


@pytest.mark.parametrize("compute", ["float32", "reference"])
@pytest.mark.parametrize("num_latents", [[T] * B, NUM_VALID], ids=["whole", "padded"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equals_the_loop_over_known_latents(strategy: str, num_latents: list[int], compute: str) -> None:
    queries, latents, is_known = random_inputs()
    latents.requires_grad_()
    found = contrast(
        queries,
        latents,
        strategy=strategy,
        num_latents=torch.tensor(num_latents),
        sequence_id=torch.tensor(IDS),
        group_id=torch.tensor(GROUPS),
        is_known=is_known,
        compute=compute,
    )
    values = latents.detach()
    reference = contrast_rows(queries, values, strategy, num_latents, IDS, GROUPS, is_known.tolist())
    assert_rows(found, reference, rel=1e-6, abs_=1e-9)
    found.loss.backward()
    is_padding = torch.arange(T) >= torch.tensor(num_latents)[:, None]
    assert not latents.grad[~is_known | is_padding].any()
    assert latents.grad.isfinite().all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_unknown_latents_are_never_drawn(strategy: str, shared: bool) -> None:
    queries, latents, is_known = random_inputs()
    found = contrast(
        queries,
        latents,
        strategy=strategy,
        sequence_id=torch.tensor(IDS),
        group_id=torch.tensor(GROUPS),
        is_known=is_known,
        num_negatives=50,
        shared_across_steps=shared,
        generator=torch.Generator().manual_seed(0),
    )
    reference = contrast_rows(queries, latents, strategy, [T] * B, IDS, GROUPS, is_known.tolist())
    assert found.num_rows.sum(1).tolist() == [len(rows) for rows in reference]
    assert found.loss_nats.isfinite().all()
    assert torch.equal(found.num_candidates, 51 * found.num_rows)


def test_a_batch_without_rows_is_refused_and_rows_without_negatives_are_left_out() -> None:
    queries, latents = torch.randn(K, 3, T, D), torch.randn(3, T, D)
    is_known = torch.zeros(3, T, dtype=torch.bool)
    is_known[0, :3] = is_known[1, 2] = True
    found = contrast(queries, latents, strategy="mixed_excluding", is_known=is_known)
    assert found.num_rows.tolist() == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]
    is_known[1] = False  # no sequence but the first has a known latent
    for strategy, known in (("mixed_excluding", is_known), ("mixed", is_known & (torch.arange(T) == 0))):
        with pytest.raises(ValueError, match=r"no row of a batch of 3 sequences with [31] known latents"):
            contrast(queries, latents, strategy=strategy, is_known=known)


def test_a_bank_reads_known_latents_only() -> None:
    queries, latents, is_known = random_inputs()
    ids = torch.tensor(IDS)
    bank = LatentBank(latents[is_known].float(), ids.repeat_interleave(is_known.sum(1)))
    output = Output(latents.float(), latents.float(), {"": queries.float()}, None)
    found = bank_contrast(output, Contrastive().sequences(output, None, ids, None, is_known), bank)
    reference = contrast_rows(queries, latents, "mixed_excluding", [T] * B, IDS, GROUPS, is_known.tolist())
    assert found.num_rows.sum(1).tolist() == [len(rows) for rows in reference]
    assert float(found.loss_nats.sum()) == pytest.approx(sum(row[1] for rows in reference for row in rows), rel=1e-5)


def test_a_model_of_signals_leaves_missing_samples_out() -> None:
    """From samples to the loss: a latent is known if a sample of its hop is known in a channel."""
    torch.manual_seed(0)
    model = CPC(SignalEncoder(2, D, kernels=(4, 2), strides=(2, 2)), GRU(5), Bilinear(K), Contrastive("mixed")).double()
    x = torch.randn(3, 30, 2, dtype=torch.float64)
    x[0, 5:16] = x[1, :8] = torch.nan  # latents 2 and 3, and 0 and 1
    x[1, 8:12, 0] = torch.nan  # the other channel is known
    x[2, 21:] = torch.nan  # padding
    num_valid = torch.tensor([30, 30, 21])
    batch = Batch.of(x)._replace(num_valid=num_valid, is_known=~x.isnan().all(2))
    known = [[any(not x[b, s].isnan().all() for s in range(4 * t, 4 * t + 4)) for t in range(7)] for b in range(3)]
    assert [sum(row) for row in known] == [5, 5, 6]
    output = model(x)
    queries, latents = output.queries[""].detach(), output.latents.detach()
    reference = contrast_rows(queries, latents, "mixed", [7, 7, 5], [0, 1, 2], [0] * 3, known)
    assert_rows(model.loss(batch), reference, rel=1e-6, abs_=1e-9)
    assert not latents[~torch.tensor(known)].any()
