"""Any steps, not only 1..K, against loops over rows in float64."""

from typing import Any

import pytest
import torch
from oracles import assert_rows, contrast_rows
from torch import Tensor

import cpc
from cpc.bounds import BoundTally
from cpc.candidates import STRATEGIES
from cpc.config.description import build as build_part
from cpc.config.description import describe
from cpc.data.batch import Batch
from cpc.encoders import VectorEncoder
from cpc.losses import Contrastive, contrast
from cpc.predictors import Bilinear, TransformerPredictor
from cpc.pretraining.resume import differences

B, T, D = 4, 17, 5
NUM_VALID, IDS, GROUPS = [17, 16, 3, 17], [0, 1, 2, 2], [0, 0, 1, 1]
TENSORS = {"num_latents": torch.tensor(NUM_VALID), "sequence_id": torch.tensor(IDS), "group_id": torch.tensor(GROUPS)}


def vectors(num_steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    queries = torch.randn(num_steps, B, T, D, generator=generator, dtype=torch.float64)
    return queries, torch.randn(B, T, D, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each != "same_speaker_excluding"])
@pytest.mark.parametrize(("steps", "skip_steps"), [([14], 0), ([1, 3, 9], 0), ([2, 9], 4), ([3, 20], 0)])
@pytest.mark.parametrize("has_missing", [False, True])
def test_losses_are_those_of_loops(
    strategy: str, steps: list[int], skip_steps: int, has_missing: bool, generator: torch.Generator
) -> None:
    queries, latents = vectors(len(steps), generator)
    is_known = torch.rand(B, T, generator=generator) < 0.8 if has_missing else None
    ahead = [skip_steps + step for step in steps]
    known = None if is_known is None else is_known.tolist()
    reference = contrast_rows(queries, latents, strategy, NUM_VALID, IDS, GROUPS, known, ahead)
    options: dict[str, Any] = {"strategy": strategy, "skip_steps": skip_steps, "steps": steps, "is_known": is_known}
    for compute in ("float32", "reference"):
        found = contrast(queries, latents, compute=compute, **options, **TENSORS)
        assert_rows(found, reference, rel=1e-9, abs_=1e-9)


@pytest.mark.parametrize("options", [{}, {"skip_steps": 2}, {"num_negatives": 7}, {"num_negatives": 7, "shared": True}])
def test_the_first_steps_are_those_of_num_steps(options: dict[str, Any], generator: torch.Generator) -> None:
    queries, latents = (each.float() for each in vectors(3, generator))
    options = {("shared_across_steps" if name == "shared" else name): value for name, value in options.items()}
    losses, gradients = [], []
    for steps in (None, [1, 2, 3]):
        leaves = [each.clone().requires_grad_() for each in (queries, latents)]
        generator.manual_seed(3)
        losses.append(contrast(*leaves, steps=steps, generator=generator, **options, **TENSORS))
        gradients.append(torch.autograd.grad(losses[-1].loss, leaves))
    assert all(torch.equal(one, other) for one, other in zip(*losses, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_drawn_negatives_of_far_steps(generator: torch.Generator) -> None:
    """So many draws of the 16 other latents that their sum of exp s is near 250 times the sum of all."""
    queries, latents = vectors(2, generator)
    queries, steps = queries / 4, [3, 14]
    found = contrast(queries, latents, strategy="sequence_only", steps=steps, num_negatives=4000, generator=generator)
    for place, k in enumerate(steps):
        total = 0.0
        for b in range(B):
            for t in range(T - k):
                scores = (latents[b] @ queries[place, b, t]).exp()
                total += float((1 + 250 * (scores.sum() - scores[t + k]) / scores[t + k]).log())
        assert found.num_candidates[place].sum() == 4001 * B * (T - k)
        assert float(found.loss_nats[place].sum()) == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("build", [Bilinear, TransformerPredictor])
def test_a_model_predicts_its_steps(build: Any, generator: torch.Generator) -> None:
    model = cpc.CPC(VectorEncoder(3, dim=8), cpc.contexts.GRU(16), build(steps=[1, 4, 14]), Contrastive(skip_steps=1))
    model.eval()
    assert [step.k for step in model.steps] == [2, 5, 15]
    x = torch.randn(B, T, 3, generator=generator)
    output = model(x)
    found = model.contrast(output, Batch.of(x))
    queries, latents = output.queries[""].detach(), output.latents.detach()
    reference = contrast_rows(queries, latents, "mixed", [T] * B, list(range(B)), [0] * B, ahead=[2, 5, 15])
    assert_rows(found, reference, rel=1e-4, abs_=1e-4)
    tally = BoundTally(model.steps)
    tally.update(found)
    record = tally.compute("mixed", "valid").record(1)
    assert record["steps"] == [2, 5, 15]
    assert record["num_rows"] == [B * (T - 2), B * (T - 5), B * (T - 15)]
    assert build_part(describe(model.predictor)).steps == (1, 4, 14)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("steps", [[], [0], [-1, 2], [2, 2], [3, 1], [True], [1.0], 14])
def test_steps_that_are_none(steps: list[Any]) -> None:
    words = "must be increasing whole numbers of at least 1"
    with pytest.raises(ValueError, match=rf"^`predictor.steps`=.* {words}"):
        Bilinear(steps=steps)
    with pytest.raises(ValueError, match=rf"^steps=.* {words}"):
        contrast(torch.zeros(1, B, T, D), torch.zeros(B, T, D), steps=steps)


def test_steps_that_do_not_fit_each_other_or_the_sequences() -> None:
    with pytest.raises(ValueError, match=r"num_steps`=12 is not one of None, 1"):
        Bilinear(12, steps=[14])
    queries, latents = torch.zeros(1, B, T, D), torch.zeros(B, T, D)
    with pytest.raises(ValueError, match=r"steps=\[1, 2\] are 2 steps for 1 queries"):
        contrast(queries, latents, steps=[1, 2])
    with pytest.raises(ValueError, match=r"17 latents, but a prediction 17 ahead .*`predictor.steps`"):
        contrast(queries, latents, steps=[17])


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
