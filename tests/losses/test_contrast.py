"""Any steps, drawn negatives and missing samples, against loops over rows in float64."""

from typing import Any

import pytest
import torch
from oracles import assert_rows, contrast_rows
from refusals import refuses
from torch import Tensor

from cpc.bounds import BoundTally
from cpc.candidates import STRATEGIES, LatentBank
from cpc.config.description import build as build_part
from cpc.config.description import describe
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import SignalEncoder, VectorEncoder
from cpc.evaluation.bank import bank_contrast
from cpc.losses import Contrastive, contrast
from cpc.model import CPC
from cpc.predictors import Bilinear, Output, TransformerPredictor
from cpc.pretraining.resume import differences

B, T, D = 6, 11, 4
NUM_VALID, IDS, GROUPS = [11, 3, 10, 9, 8, 11], [0, 1, 1, 2, 3, 4], [0, 0, 0, 1, 1, 0]
IDENTITIES = {"sequence_id": torch.tensor(IDS), "group_id": torch.tensor(GROUPS)}
TENSORS = {"num_latents": torch.tensor(NUM_VALID), **IDENTITIES}


def vectors(num_steps: int, generator: torch.Generator, is_known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Unknown latents and their queries hold NaN: no number depends on them."""
    queries = torch.randn(num_steps, B, T, D, generator=generator, dtype=torch.float64)
    latents = torch.randn(B, T, D, generator=generator, dtype=torch.float64)
    if is_known is None:
        return queries, latents
    return tuple(each.masked_fill(~is_known[:, :, None], torch.nan) for each in (queries, latents))


def some_known() -> Tensor:
    is_known = torch.rand(B, T, generator=torch.Generator().manual_seed(0)) < 0.7
    is_known[5] = False
    return is_known


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("steps", "skip_steps"), [([1, 2, 3], 0), ([9], 0), ([2, 5], 3), ([3, 20], 0)])
@pytest.mark.parametrize("is_known", [None, some_known()], ids=["whole", "missing"])
def test_losses_are_those_of_loops(
    strategy: str, steps: list[int], skip_steps: int, is_known: Tensor | None, generator: torch.Generator
) -> None:
    queries, latents = vectors(len(steps), generator, is_known)
    known, ahead = None if is_known is None else is_known.tolist(), [skip_steps + step for step in steps]
    reference = contrast_rows(queries, latents, strategy, NUM_VALID, IDS, GROUPS, known, ahead)
    options: dict[str, Any] = {"strategy": strategy, "skip_steps": skip_steps, "steps": steps, "is_known": is_known}
    is_ignored = torch.arange(T) >= torch.tensor(NUM_VALID)[:, None]
    for compute in ("float32", "reference"):
        leaf = latents.clone().requires_grad_()
        found = contrast(queries, leaf, compute=compute, **options, **TENSORS)
        assert_rows(found, reference, rel=1e-9, abs_=1e-9)
        found.loss.backward()
        assert not leaf.grad[is_ignored if is_known is None else is_ignored | ~is_known].any()
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("is_known", [None, some_known()], ids=["whole", "missing"])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_neither_positives_nor_unknown_latents_are_drawn(
    strategy: str, is_shared: bool, is_known: Tensor | None, generator: torch.Generator
) -> None:
    """The positive alone scores 100: one draw of it among the negatives would lift the loss to ln 2 (facts T1)."""
    latents = torch.eye(B * T).reshape(B, T, B * T)
    queries = torch.stack([100 * latents.roll(-k, 1) for k in range(1, 4)])
    if is_known is not None:
        queries, latents = (each.masked_fill(~is_known[:, :, None], torch.nan) for each in (queries, latents))
    options = {"num_negatives": 200, "shared_across_steps": is_shared, "is_known": is_known}
    found = contrast(queries, latents, strategy=strategy, generator=generator, **options, **IDENTITIES)
    known = None if is_known is None else is_known.tolist()
    reference = contrast_rows(queries, latents, strategy, [T] * B, IDS, GROUPS, known)
    assert found.loss.item() < 1e-6
    assert found.num_rows.sum(1).tolist() == [len(rows) for rows in reference]
    assert torch.equal(found.num_candidates, 201 * found.num_rows)


def test_drawn_negatives_of_far_steps(generator: torch.Generator) -> None:
    """So many draws of the 10 other latents that their sum of exp s is near 400 times the sum of all."""
    queries, latents = vectors(2, generator)
    queries, steps = queries / 4, [3, 9]
    found = contrast(queries, latents, strategy="sequence_only", steps=steps, num_negatives=4000, generator=generator)
    for place, k in enumerate(steps):
        total = 0.0
        for b in range(B):
            for t in range(T - k):
                scores = (latents[b] @ queries[place, b, t]).exp()
                total += float((1 + 400 * (scores.sum() - scores[t + k]) / scores[t + k]).log())
        assert found.num_candidates[place].sum() == 4001 * B * (T - k)
        assert float(found.loss_nats[place].sum()) == pytest.approx(total, rel=2e-3)


def test_shared_draws_leave_sequences_without_rows_alone(generator: torch.Generator) -> None:
    """A file shorter than one latent has no row: nothing is drawn for it, and nobody complains."""
    options = {"num_latents": torch.tensor([6, 6, 0, 5, 1, 1]), "num_negatives": 4, "shared_across_steps": True}
    found = contrast(*vectors(3, generator), strategy="sequence_only", generator=generator, **options)
    assert found.num_rows.sum(0).tolist() == [12, 12, 0, 9, 0, 0]


@pytest.mark.parametrize("build", [Bilinear, TransformerPredictor])
def test_a_model_predicts_its_steps(build: Any, generator: torch.Generator) -> None:
    model = CPC(VectorEncoder(3, dim=8), GRU(16), build(steps=[1, 4, 8]), Contrastive(skip_steps=1)).eval()
    assert [step.k for step in model.steps] == [2, 5, 9]
    x = torch.randn(B, T, 3, generator=generator)
    output = model(x)
    found = model.contrast(output, Batch.of(x))
    queries, latents = output.queries[""].detach(), output.latents.detach()
    reference = contrast_rows(queries, latents, "mixed", [T] * B, list(range(B)), [0] * B, ahead=[2, 5, 9])
    assert_rows(found, reference, rel=1e-4, abs_=1e-4)
    tally = BoundTally(model.steps)
    tally.update(found)
    record = tally.compute("mixed", "valid").record(1)
    assert record["steps"] == [2, 5, 9]
    assert record["num_rows"] == [B * (T - 2), B * (T - 5), B * (T - 9)]
    assert build_part(describe(model.predictor)).steps == (1, 4, 8)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("steps", [[], [0], [-1, 2], [2, 2], [3, 1], [True], [1.0], 14])
def test_steps_that_are_none(steps: list[Any]) -> None:
    words = "must be increasing whole numbers of at least 1"
    refuses(rf"^`predictor.steps`=.* {words}", Bilinear, steps=steps)
    refuses(rf"^steps=.* {words}", contrast, torch.zeros(1, B, T, D), torch.zeros(B, T, D), steps=steps)


def test_steps_that_do_not_fit_each_other_or_the_sequences() -> None:
    refuses(r"num_steps`=12 is not one of None, 1", Bilinear, 12, steps=[14])
    queries, latents = torch.zeros(1, B, T, D), torch.zeros(B, T, D)
    refuses(r"steps=\[1, 2\] are 2 steps for 1 queries", contrast, queries, latents, steps=[1, 2])
    refuses(r"11 latents, but a prediction 11 ahead .*`predictor.steps`", contrast, queries, latents, steps=[11])


def test_descriptions_from_before_steps_are_those_of_today() -> None:
    """A checkpoint from then resumes: `steps` is not in its description."""
    for build in (Bilinear, TransformerPredictor):
        for today in (build(3), build(steps=[1, 2, 3])):
            before = describe(today)
            del before["init_args"]["steps"]
            assert not list(differences(before, describe(today)))
            assert build_part(before).steps is None
        (difference,) = differences(before, describe(build(steps=[1, 2, 14])))
        assert difference == "model.steps is None in the checkpoint, (1, 2, 14) now"


def test_a_batch_without_rows_is_refused_and_rows_without_negatives_are_left_out() -> None:
    queries, latents = torch.randn(3, 3, T, D), torch.randn(3, T, D)
    is_known = torch.zeros(3, T, dtype=torch.bool)
    is_known[0, :3] = is_known[1, 2] = True
    found = contrast(queries, latents, strategy="mixed_excluding", is_known=is_known)
    assert found.num_rows.tolist() == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]
    is_known[1] = False  # no sequence but the first has a known latent
    for strategy, known in (("mixed_excluding", is_known), ("mixed", is_known & (torch.arange(T) == 0))):
        refuses(r"no row of .* with [31] known", contrast, queries, latents, strategy=strategy, is_known=known)


def test_a_bank_reads_known_latents_only(generator: torch.Generator) -> None:
    is_known, ids = some_known(), torch.tensor(IDS)
    queries, latents = vectors(3, generator, is_known)
    bank = LatentBank(latents[is_known].float(), ids.repeat_interleave(is_known.sum(1)))
    output = Output(latents.float(), latents.float(), {"": queries.float()}, None)
    found = bank_contrast(output, Contrastive().sequences(output, None, ids, None, is_known), bank)
    reference = contrast_rows(queries, latents, "mixed_excluding", [T] * B, IDS, GROUPS, is_known.tolist())
    assert found.num_rows.sum(1).tolist() == [len(rows) for rows in reference]
    assert float(found.loss_nats.sum()) == pytest.approx(sum(row[1] for rows in reference for row in rows), rel=1e-5)


def test_a_model_of_signals_leaves_missing_samples_out() -> None:
    """From samples to the loss: a latent is known if a sample of its hop is known in a channel."""
    torch.manual_seed(0)
    model = CPC(SignalEncoder(2, D, kernels=(4, 2), strides=(2, 2)), GRU(5), Bilinear(3), Contrastive("mixed")).double()
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
