"""Every objective against loops in float64, its derivatives, published figures, and what it refuses."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

import cpc.losses.tiles as tiles
from cpc.candidates.samplers import Draw
from cpc.losses import OBJECTIVES, ClassLoss, class_loss

N, D = 9, 5
TARGETS = torch.tensor([[0, -1, -1], [3, 8, -1], [8, 0, 2], [-1, 4, -1]])
SAMPLED = [name for name, objective in OBJECTIVES.items() if objective.hits]
CASES = [(name, correction) for name, objective in OBJECTIVES.items() for correction in objective.corrections]


def problem(num_rows: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, classes, bias."""
    generator = torch.Generator().manual_seed(0)
    queries, classes = (torch.randn(k, D, generator=generator, dtype=dtype) for k in (num_rows, N))
    return queries, classes, torch.randn(N, generator=generator, dtype=dtype)


def draw_for(objective: str, targets: Tensor, shared: bool, num: int = 6) -> Draw | None:
    """Ids with repetitions and hits, made-up counts, one place left empty; hits as the objective's usual way is."""
    accepted = OBJECTIVES[objective].hits
    if not accepted:
        return None
    generator = torch.Generator().manual_seed(1)
    targets = targets.reshape(len(targets), -1)
    ids = torch.randint(N, (num,) if shared else (len(targets), num), generator=generator)
    log_count = torch.randn(ids.shape, generator=generator, dtype=torch.float64)
    log_count[..., -1] = torch.inf
    log_count_targets = torch.randn(targets.shape, generator=generator, dtype=torch.float64)
    if accepted[0] != "keep":
        is_hit = (ids.expand(len(targets), num)[:, None] == targets[:, :, None]).any(1)
        log_count = torch.where(is_hit, torch.inf, log_count)
    return Draw(ids, log_count, log_count_targets)


def loop_loss(
    scores: Tensor, targets: Tensor, draw: Draw | None, form: str, correction: str
) -> tuple[list[float], list[int], list[float]]:
    """Losses, numbers of candidates and accuracies by row, from the definitions; scores `[M, n]` of all classes."""
    losses, nums, accuracies = [], [], []
    for i, row in enumerate(targets.reshape(len(targets), -1).tolist()):
        places = [place for place, target in enumerate(row) if target != -1]
        mine = [row[place] for place in places]
        if draw is None:
            met = [(j, 0.0) for j in range(scores.shape[1]) if j not in mine]
        else:
            of_row = [each.expand(len(targets), each.shape[-1])[i].tolist() for each in draw[:2]]
            met = [(j, c) for j, c in zip(*of_row, strict=True) if c != math.inf]
        of_targets = [0.0] * len(places) if draw is None else [float(draw.log_count_targets[i, p]) for p in places]
        positives = [float(scores[i, t]) for t in mine]
        if correction == "posterior":
            positives = [s - c for s, c in zip(positives, of_targets, strict=True)]
        shift = 0 if correction == "none" else 1
        if form == "softmax":
            negatives = [float(scores[i, j]) - shift * c for j, c in met]
            total = sum(math.exp(s) for s in positives + negatives)
            losses.append(sum(math.log(total) - s for s in positives) / len(positives))
        elif correction == "importance":
            losses.append(
                sum(math.log1p(math.exp(-s)) for s in positives)
                + sum(math.exp(-c) * math.log1p(math.exp(float(scores[i, j]))) for j, c in met)
            )
        else:
            losses.append(
                sum(math.log1p(math.exp(-s)) for s in positives)
                + sum(math.log1p(math.exp(float(scores[i, j]) - shift * c)) for j, c in met)
            )
        nums.append(len(mine) + len(met))
        best = max(float(scores[i, t]) for t in mine)
        others = [float(scores[i, j]) for j, _ in met]
        accuracies.append(0.0 if any(s > best for s in others) else 1 / (1 + sum(s == best for s in others)))
    return losses, nums, accuracies


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("targets", [TARGETS, torch.tensor([3, 3, 0, 8])], ids=["several", "one"])
@pytest.mark.parametrize(("objective", "correction"), CASES)
def test_equals_the_loop_reference(objective: str, correction: str, targets: Tensor, shared: bool) -> None:
    queries, classes, bias = problem()
    draw = draw_for(objective, targets, shared)
    weight = torch.tensor([0.1, 0.7, 0.2, 0.5], dtype=torch.float64)
    options = {"objective": objective, "correction": correction, "bias": bias, "temperature": 0.6}
    found = class_loss(queries, classes, targets, draw, weight=weight, **options)
    scores = queries @ classes.T / 0.6 + bias
    losses, nums, accuracies = loop_loss(scores, targets, draw, OBJECTIVES[objective].form, correction)
    assert found.loss_nats.tolist() == pytest.approx(losses, rel=1e-12)
    assert found.loss.item() == pytest.approx(sum(w * x for w, x in zip(weight.tolist(), losses, strict=True)))
    assert found.num_candidates.tolist() == nums
    assert found.accuracy.tolist() == pytest.approx(accuracies)
    mean = class_loss(queries, classes, targets, draw, **options)
    assert mean.loss.item() == pytest.approx(sum(losses) / 4)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("objective", "correction"), CASES)
def test_gradients(objective: str, correction: str, shared: bool) -> None:
    """Of queries, classes, bias and temperature, by finite differences; repeated candidates add up."""
    queries, classes, bias = problem()
    temperature = torch.tensor(0.6, dtype=torch.float64)
    draw = draw_for(objective, TARGETS, shared)

    def loss(queries: Tensor, classes: Tensor, bias: Tensor, temperature: Tensor) -> Tensor:
        options = {"objective": objective, "correction": correction, "bias": bias, "temperature": temperature}
        return 3 * class_loss(queries, classes, TARGETS, draw, **options).loss

    inputs = tuple(each.requires_grad_() for each in (queries, classes, bias, temperature))
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("size", [1, 3])
def test_tiles_of_any_size_agree(objective: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = draw_for(objective, TARGETS, shared=True)

    def outcome() -> list[Tensor]:
        queries, classes, bias = (each.requires_grad_() for each in problem())
        found = class_loss(queries, classes, TARGETS, draw, objective=objective, bias=bias)
        return [*(each.detach() for each in found), *torch.autograd.grad(found.loss, (queries, classes, bias))]

    whole = outcome()
    monkeypatch.setattr(tiles, "TILE_ROWS", size)
    for found, wanted in zip(outcome(), whole, strict=True):
        torch.testing.assert_close(found, wanted)
