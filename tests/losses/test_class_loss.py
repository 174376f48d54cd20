"""Every objective against loops in float64, its derivatives, published figures, and what it refuses."""

import math

import pytest
import torch
from torch import Tensor

import cpc.losses.engine.tiles as tiles
from cpc.candidates.samplers import Draw, Uniform, drop_hits
from cpc.losses import OBJECTIVES, class_loss

N, D = 9, 5
TARGETS = torch.tensor([[0, -1, -1], [3, 8, -1], [8, 0, 2], [-1, 4, -1]])
CASES = [(name, correction) for name, objective in OBJECTIVES.items() for correction in objective.corrections]


def problem(num_rows: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
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
    ids[..., -1], log_count[..., -1] = 0, torch.inf
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
        others = [float(scores[i, j]) for j, _ in met if j not in mine]
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


@pytest.mark.usefixtures("unchecked_types")  # of hundreds of equal calls
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("objective", "correction"), CASES)
def test_gradients(objective: str, correction: str, shared: bool) -> None:
    queries, classes, bias = problem()
    temperature = torch.tensor(0.6, dtype=torch.float64)
    draw = draw_for(objective, TARGETS, shared)

    def loss(queries: Tensor, classes: Tensor, bias: Tensor, temperature: Tensor) -> Tensor:
        options = {"objective": objective, "correction": correction, "bias": bias, "temperature": temperature}
        return 3 * class_loss(queries, classes, TARGETS, draw, **options).loss

    inputs = tuple(each.requires_grad_() for each in (queries, classes, bias, temperature))
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tiles_of_any_size_agree(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = draw_for(objective, TARGETS, shared=True)

    def outcome() -> list[Tensor]:
        queries, classes, bias = (each.requires_grad_() for each in problem())
        found = class_loss(queries, classes, TARGETS, draw, objective=objective, bias=bias)
        return [*(each.detach() for each in found[:4]), *torch.autograd.grad(found.loss, (queries, classes, bias))]

    whole = outcome()
    monkeypatch.setattr(tiles, "TILE_ROWS", 3)
    for found, wanted in zip(outcome(), whole, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("objective", "correction"), CASES)
def test_equal_scores_have_closed_forms(objective: str, correction: str) -> None:
    """All of F zero, m candidates of 9 drawn uniformly: sampled softmax by `posterior` reads log(1 + m), and so on."""
    targets, m = torch.tensor([0, 5]), 3
    log_count = torch.full((m,), math.log(m / N))
    draw = Draw(torch.tensor([1, 2, 2]), log_count, torch.full((2,), math.log(m / N)))
    given = draw if OBJECTIVES[objective].hits else None
    found = class_loss(torch.zeros(2, D), torch.zeros(N, D), targets, given, objective=objective, correction=correction)
    odds = N / m  # exp G of every class, after the correction
    expected = {
        ("full_softmax", "none"): math.log(N),
        ("full_logistic", "none"): N * math.log(2),
        ("sampled_softmax", "posterior"): math.log(1 + m),
        ("sampled_softmax", "importance"): math.log(1 + N),
        ("sampled_logistic", "posterior"): math.log1p(1 / odds) + m * math.log1p(odds),
        ("sampled_logistic", "importance"): (1 + N) * math.log(2),
        ("nce", "posterior"): math.log1p(1 / odds) + m * math.log1p(odds),
        ("negative_sampling", "none"): (1 + m) * math.log(2),
        ("info_nce", "none"): math.log(1 + m),
    }[objective, correction]
    assert found.loss.item() == pytest.approx(expected, rel=1e-6)
    assert found.accuracy.tolist() == pytest.approx([1 / found.num_candidates[0].item()] * 2)


@pytest.mark.parametrize("scale", [1e-3, 40.0, 1e4])
@pytest.mark.parametrize(("objective", "correction"), CASES)
def test_float32_holds_for_any_scale(objective: str, correction: str, scale: float) -> None:
    """Tiny and huge scores against float64: neither overflows nor loses a small loss to cancellation."""
    draw = draw_for(objective, TARGETS, shared=True)
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        queries, classes, _ = problem(dtype=dtype)
        queries = (scale * problem()[0]).to(dtype).requires_grad_()
        classes = problem()[1].to(dtype).requires_grad_()
        found = class_loss(queries, classes, TARGETS, draw, objective=objective, correction=correction)
        outcomes.append([found.loss_nats.double(), *torch.autograd.grad(found.loss, (queries, classes))])
    (loss, *gradients), (exact_loss, *exact_gradients) = outcomes
    torch.testing.assert_close(loss, exact_loss, rtol=2e-5, atol=2e-6 * scale)
    for found, exact in zip(gradients, exact_gradients, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=2e-5 * float(exact.abs().max()))


def test_no_candidate_left_is_no_loss() -> None:
    """All that was drawn were hits: nothing to tell the target from, and no gradient."""
    queries, classes, _ = problem()
    draw = Draw(torch.tensor([2, 2]), torch.full((2,), torch.inf), torch.zeros(4))
    queries.requires_grad_()
    found = class_loss(queries, classes, torch.full((4,), 2), draw, objective="sampled_softmax")
    found.loss.backward()
    assert found.loss.item() == 0
    assert found.num_candidates.tolist() == [1] * 4
    assert found.accuracy.tolist() == [1] * 4
    assert not queries.grad.any()


ONE = torch.tensor([3, 4])
COUNTS, ABSENT = torch.zeros(2), torch.tensor([0.0, -torch.inf])
SAMPLED = {"objective": "sampled_softmax"}


@pytest.mark.parametrize(
    ("targets", "draw", "options", "message"),
    [
        (ONE, None, {"objective": "softmax"}, "objective='softmax' is not one of full_softmax, full_logistic, sampled"),
        (ONE, None, {"objective": "nce"}, "objective='nce' needs candidates: give a draw"),
        (ONE, Draw(ONE, COUNTS, COUNTS), {"objective": "full_softmax"}, "scores every class: give no draw"),
        (ONE, None, {"correction": "posterior"}, "correction='posterior': full_softmax accepts none"),
        (ONE, Draw(ONE, COUNTS, COUNTS), {"objective": "nce", "correction": "importance"}, "nce accepts posterior"),
        (ONE, Draw(torch.tensor([3, 1]), COUNTS, COUNTS), SAMPLED, "own target, but .* only hits=remove or exclude"),
        (ONE, Draw(ONE - 3, COUNTS, ABSENT), SAMPLED, "targets of target 4 is -inf: correction='posterior' needs"),
        (ONE, Draw(ONE - 3, ABSENT, COUNTS), {"objective": "nce"}, "log_count_sampled is -inf or nan"),
        (torch.tensor([3, 9]), None, {}, "targets run from 3 to 9, but the 9 classes have the numbers 0 to 8"),
        (torch.tensor([3, -1]), None, {}, "row 1 has no target"),
        (torch.tensor([[3, -1, -1], [4, 2, 4]]), None, {}, "row 1 names class 4 twice"),
    ],
)
def test_bad_input_is_named(targets: Tensor, draw: Draw | None, options: dict, message: str) -> None:
    check = getattr(class_loss, "__wrapped__", class_loss)  # annotations would refuse some first
    with pytest.raises(ValueError, match=message):
        check(torch.zeros(2, D), torch.zeros(N, D), targets, draw, **{"objective": "full_softmax", **options})


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["nce", "negative_sampling"])
def test_hits_that_were_removed_are_refused_where_they_must_be_kept(name: str, shared: bool) -> None:
    queries, classes, _ = problem(dtype=torch.float32)
    targets = torch.arange(4)
    for seed in range(5):
        kept, removed = (
            Uniform(N, shared=shared).sample(None, 6, targets, hits, torch.Generator().manual_seed(seed))
            for hits in ("keep", "remove")
        )
        class_loss(queries, classes, targets, kept, objective=name)
        with pytest.raises(ValueError, match=r"lacks a row's own target.*but the objective accepts only hits=keep"):
            class_loss(queries, classes, targets, removed, objective=name)
        class_loss(queries, classes, targets, removed, objective="info_nce")


@pytest.mark.parametrize("name", ["nce", "negative_sampling"])
def test_class_0_removed_from_the_last_shared_place_is_refused(name: str) -> None:
    """Rows with other targets still have the candidate, so that its place is not empty."""
    queries, classes, _ = problem(dtype=torch.float32)
    targets, ids = torch.arange(4), torch.tensor([7, 5, 0])
    counts = torch.zeros(4, 3)
    empty = Draw(ids, torch.tensor([0.0, 0.0, torch.inf]), torch.zeros(4))
    class_loss(queries, classes, targets, empty, objective=name)
    class_loss(queries, classes, targets, empty._replace(log_count_sampled=counts), objective=name)
    removed = Draw(ids, drop_hits(ids, counts[0], targets), torch.zeros(4))
    with pytest.raises(ValueError, match=r"lacks a row's own target.*but the objective accepts only hits=keep"):
        class_loss(queries, classes, targets, removed, objective=name)


def test_a_target_of_unknown_count_matters_to_the_posterior_alone() -> None:
    draw = Draw(torch.tensor([0, 1]), COUNTS, torch.full((2,), -torch.inf))
    options = {"objective": "sampled_softmax", "correction": "importance"}
    assert class_loss(torch.zeros(2, D), torch.zeros(N, D), ONE, draw, **options).loss.isfinite()
