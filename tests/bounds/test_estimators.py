"""Every estimator against loops over its definition, in float64; many score matrices against one pass over all rows."""

import math
from collections.abc import Callable

import pytest
import torch
from refusals import refuses
from torch import Tensor

from cpc.bounds.estimates import Estimate, EstimateTally, pooled
from cpc.bounds.estimators import (
    ESTIMATORS,
    anchored_info_nce,
    donsker_varadhan,
    info_nce,
    interpolated,
    jensen_shannon,
    jensen_shannon_nwj,
    leave_one_out,
    moving_average_gradient,
    nwj,
    smile,
    tuba,
)

ALPHA, CLIP = 0.3, 1.5
LOG_BASELINE = [0.3, -0.7, 0.1, 1.1, -0.2]
Row = tuple[float, list[float]]  # the positive, the negatives


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def mean_over_rows(term: Callable[[float, list[float], float], float]) -> Callable[[list[Row]], float]:
    return lambda rows: mean([term(*row, a) for row, a in zip(rows, LOG_BASELINE, strict=False)])


def loop_interpolated(positive: float, negatives: list[float], a: float) -> float:
    terms = []
    for left_out, negative in enumerate(negatives):
        others = [positive, *negatives[:left_out], *negatives[left_out + 1 :]]
        mixed = ALPHA * mean([math.exp(s) for s in others]) + (1 - ALPHA) * math.exp(a)
        terms.append(1 + positive - math.log(mixed) - math.exp(negative) / mixed)
    return mean(terms)


def loop_partition(clip: float) -> Callable[[list[Row]], float]:
    def estimate(rows: list[Row]) -> float:
        clipped = [[math.exp(min(max(s, -clip), clip)) for s in negatives] for _, negatives in rows]
        return mean([positive for positive, _ in rows]) - math.log(mean([mean(row) for row in clipped]))

    return estimate


def softplus(s: float) -> float:
    return max(s, 0) + math.log1p(math.exp(-abs(s)))


LOOPS: dict[str, Callable[[list[Row]], float]] = {
    "info_nce": mean_over_rows(
        lambda p, n, a: math.log(len(n) + 1) + p - math.log(math.exp(p) + math.fsum(math.exp(s) for s in n))
    ),
    "nwj": mean_over_rows(lambda p, n, a: p - mean([math.exp(s - 1) for s in n])),
    "tuba": mean_over_rows(lambda p, n, a: 1 + p - a - mean([math.exp(s - a) for s in n])),
    "interpolated": mean_over_rows(loop_interpolated),
    "dv": loop_partition(math.inf),
    "mine": loop_partition(math.inf),
    "js": mean_over_rows(lambda p, n, a: p + 1 - mean([math.exp(s) for s in n])),
    "smile": loop_partition(CLIP),
    "goodness_of_fit": mean_over_rows(lambda p, n, a: p - math.log(mean([math.exp(s) for s in n]))),
    "anchor": lambda rows: mean([positive for positive, _ in rows]),
}
OPTIONS = {"tuba": ("log_baseline",), "interpolated": ("log_baseline", "alpha"), "smile": ("clip",)}


def read(name: str, scores: Tensor, *positions: Tensor) -> Tensor:
    baseline = torch.tensor(LOG_BASELINE[: len(scores)], dtype=scores.dtype)
    values = {"log_baseline": baseline, "alpha": ALPHA, "clip": CLIP}
    options = {option: values[option] for option in OPTIONS.get(name, ())}
    return ESTIMATORS[name].estimate(scores, *positions, **options).nats


@pytest.fixture
def scores(generator: torch.Generator) -> Tensor:
    return 2 * torch.randn(5, 7, generator=generator, dtype=torch.float64)


POSITIVES = torch.tensor([6, 0, 0, 3, 5])


@pytest.fixture
def candidates(generator: torch.Generator) -> Tensor:
    mask = torch.rand(5, 7, generator=generator) < 0.6
    mask[:, 1] = True  # every row has a negative
    return mask


def rows_of(scores: Tensor, candidates: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
    return [
        (s[p], [v for j, v in enumerate(s) if j != p and c[j]])
        for s, p, c in zip(scores, POSITIVES, candidates, strict=True)
    ]


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, scores: Tensor, candidates: Tensor) -> None:
    diagonal_rows = [(float(s[i]), [float(v) for j, v in enumerate(s) if j != i]) for i, s in enumerate(scores)]
    assert read(name, scores).item() == pytest.approx(LOOPS[name](diagonal_rows), rel=1e-12)
    chosen = [(float(positive), [*map(float, negatives)]) for positive, negatives in rows_of(scores, candidates)]
    assert len({len(negatives) for _, negatives in chosen}) > 1
    assert read(name, scores, POSITIVES, candidates).item() == pytest.approx(LOOPS[name](chosen), rel=1e-12)


def test_the_upper_bound_runs_over_the_other_x_of_each_y(scores: Tensor) -> None:
    square = scores[:, :5]
    terms = [
        float(square[j, j]) - math.log(mean([math.exp(square[i, j]) for i in range(5) if i != j])) for j in range(5)
    ]
    assert leave_one_out(square).nats.item() == pytest.approx(mean(terms), rel=1e-12)
    y_term = torch.randn(1, 5, dtype=torch.float64)
    assert leave_one_out(square + y_term).nats.item() == pytest.approx(mean(terms), rel=1e-12)


def test_the_jensen_shannon_objective(scores: Tensor) -> None:
    rows = [
        -softplus(-float(s[i])) - mean([softplus(float(v)) for j, v in enumerate(s) if j != i])
        for i, s in enumerate(scores)
    ]
    assert jensen_shannon(scores).item() == pytest.approx(mean(rows), rel=1e-12)
    zeros = torch.zeros(3, 3, dtype=torch.float64)
    assert jensen_shannon(zeros).item() == pytest.approx(-2 * math.log(2))


def test_identities(scores: Tensor) -> None:
    zeros, log_baseline = torch.zeros(5, dtype=torch.float64), torch.tensor(LOG_BASELINE, dtype=torch.float64)
    assert nwj(scores).nats == pytest.approx(tuba(scores, log_baseline=zeros + 1).nats.item())
    assert jensen_shannon_nwj(scores).nats == pytest.approx(tuba(scores, log_baseline=zeros).nats.item())
    tuba_nats = tuba(scores, log_baseline=log_baseline).nats.item()
    assert interpolated(scores, log_baseline=log_baseline, alpha=0).nats.item() == pytest.approx(tuba_nats)
    assert interpolated(scores, log_baseline=log_baseline, alpha=1e-14).nats.item() == pytest.approx(tuba_nats)
    mean_nats = interpolated(scores, log_baseline=log_baseline, alpha=1).nats.item()
    assert interpolated(scores, log_baseline=-log_baseline, alpha=1).nats.item() == mean_nats
    assert interpolated(scores, log_baseline=zeros, alpha=1 - 1e-14).nats.item() == pytest.approx(mean_nats)
    assert smile(scores, clip=100).nats.item() == pytest.approx(donsker_varadhan(scores).nats.item())


@pytest.mark.parametrize("name", ["info_nce", "goodness_of_fit", "dv"])
def test_what_cancels(name: str, scores: Tensor) -> None:
    constant = torch.tensor(3.0, dtype=torch.float64) if name == "dv" else torch.randn(5, 1, dtype=torch.float64)
    assert read(name, scores + constant).item() == pytest.approx(read(name, scores).item())


@pytest.mark.parametrize("name", [*LOOPS, "leave_one_out"])
def test_scores_that_say_nothing_read_nothing(name: str) -> None:
    """At each estimator's own zero of information, equal scores, of a row or of all."""
    scores = torch.full((5, 5), ESTIMATORS[name].best_offset, dtype=torch.float64)
    options = {"log_baseline": torch.zeros(5, dtype=torch.float64)} if ESTIMATORS[name].needs_baseline else {}
    assert ESTIMATORS[name].estimate(scores, **options).nats.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["info_nce", "tuba", "interpolated", "dv", "goodness_of_fit", "leave_one_out"])
def test_a_level_of_all_scores_costs_no_digits(name: str, generator: torch.Generator) -> None:
    """In float32, whose numbers near 1e4 lie 1e-3 apart: what cancels does so before anything is added."""
    scores = torch.randint(-16, 16, (5, 5), generator=generator) / 8

    def reading(level: float, dtype: torch.dtype) -> float:
        baseline = torch.tensor([level + 0.25] * 5, dtype=dtype)
        options = {"log_baseline": baseline} if ESTIMATORS[name].needs_baseline else {}
        return float(ESTIMATORS[name].estimate(scores.to(dtype) + level, **options).nats)

    assert reading(1e4, torch.float32) == pytest.approx(reading(0.0, torch.float64), abs=2e-6)


LARGE = {  # of positives at 1e4 and negatives at -1e4; others read the difference
    "info_nce": math.log(5),
    "nwj": 1e4,
    "js": 1e4 + 1,
    "tuba": 1e4 + 1 - mean(LOG_BASELINE),
    # all but the positive vanish from the mean of four; the baseline vanishes beside it
    "interpolated": 1 - math.log(ALPHA / 4),
    "smile": 1e4 + CLIP,
    "anchor": 1e4,
    **dict.fromkeys(("dv", "mine", "goodness_of_fit", "leave_one_out"), 2e4),
}
SMALL = {  # the other way round, where NWJ and TUBA are minus infinity in any dtype
    "info_nce": math.log(5 / 4) - 2e4,
    # the others' mean is 3/4 of exp(1e4)
    "interpolated": 1 - 2e4 - math.log(ALPHA * 3 / 4) - 1 / (ALPHA * 3 / 4),
    "smile": -1e4 - CLIP,
    "dv": -2e4,
    "leave_one_out": -2e4,
}


@pytest.mark.parametrize(
    ("positive", "name", "expected"), [(s, *item) for s, of in ((1e4, LARGE), (-1e4, SMALL)) for item in of.items()]
)
def test_large_scores(positive: float, name: str, expected: float) -> None:
    scores = torch.full((5, 5), -positive).fill_diagonal_(positive).requires_grad_()
    estimate = ESTIMATORS[name].estimate(scores).nats if name == "leave_one_out" else read(name, scores)
    assert estimate.item() == pytest.approx(expected, rel=1e-6)
    estimate.backward()
    assert scores.grad.isfinite().all()
    assert (nwj(scores).nats.item() == -math.inf) == (positive < 0)


@pytest.mark.parametrize("name", [*LOOPS, "leave_one_out"])
def test_gradients(name: str, generator: torch.Generator) -> None:
    scores = torch.randn(5, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    if name == "leave_one_out":
        assert torch.autograd.gradcheck(lambda s: leave_one_out(s).nats, scores)
    else:
        assert torch.autograd.gradcheck(lambda s: read(name, s), scores)


@pytest.mark.parametrize("name", LOOPS)
def test_one_pair_more_than_one_and_impossible_candidates(name: str) -> None:
    """N = 2 has gradients; a score of minus infinity takes nothing from the rest."""
    scores = torch.tensor([[0.5, -0.5], [0.2, 0.9]], dtype=torch.float64, requires_grad=True)
    read(name, scores).backward()
    assert scores.grad.isfinite().all()
    impossible = torch.tensor([[0.5, -math.inf, -0.3], [0.1, 0.9, -math.inf]], dtype=torch.float64)
    never = impossible.clamp(min=-800)
    assert read(name, impossible).item() == pytest.approx(read(name, never).item(), rel=1e-12)


@pytest.mark.parametrize("name", ["info_nce", "nwj", "dv"])
def test_pooling_is_one_pass_over_all_rows(name: str, scores: Tensor) -> None:
    parts = [ESTIMATORS[name].estimate(scores[:2]), ESTIMATORS[name].estimate(scores[2:], torch.arange(2, 5))]
    whole = ESTIMATORS[name].estimate(scores).nats.item()
    assert pooled(parts).nats.item() == pytest.approx(whole, rel=1e-12)
    assert mean([part.nats.item() for part in parts]) != pytest.approx(whole, rel=1e-3)


def test_mistakes() -> None:
    refuses(r"scores \[3, 2\] have no diagonal", info_nce, torch.zeros(3, 2))
    refuses("1 of 1 rows of the scores have no negative", nwj, torch.zeros(1, 1))
    refuses("2 of 2 rows", donsker_varadhan, torch.zeros(2, 3), candidates=torch.eye(2, 3).bool())
    refuses("clip`=0 must be positive", smile, torch.zeros(2, 2), clip=0)
    words = "alpha`=2 must be at least 0 and at most 1"
    refuses(words, interpolated, torch.zeros(2, 2), log_baseline=torch.zeros(2), alpha=2)
    refuses(r"of the shape \[N, 2\]", leave_one_out, torch.zeros(2, 3))
    refuses("anchor`=0 must be positive", anchored_info_nce, torch.zeros(2, 2), anchor=0)
    refuses("0 estimates", pooled, [])
    for decay in (1.0, math.nan):
        refuses(f"decay`={decay} must be at least 0 and below 1", moving_average_gradient, decay)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0])
def test_the_ceiling_of_the_interpolated_bound(alpha: float) -> None:
    """Scores that tell every positive beyond doubt reach 1 + log((N - 1) / alpha), not log(N / alpha)."""
    scores = 40 * torch.eye(9, dtype=torch.float64)
    reading = interpolated(scores, log_baseline=torch.zeros(9, dtype=torch.float64), alpha=alpha).nats
    assert reading.item() == pytest.approx(1 + math.log(8 / alpha), abs=1e-6)


def loop_anchored(rows: list[tuple[Tensor, list[Tensor]]], anchor: float) -> Tensor:
    """Minus the cross-entropy of K + 1 classes, with one sum for each negative that is left out."""
    values = []
    for positive, negatives in rows:
        num = len(negatives)
        log_anchor_share = (anchor / (anchor + sum(s.exp() for s in negatives))).log()
        value = anchor / (num + anchor) * log_anchor_share
        for left_out in range(num):
            others = [positive, *negatives[:left_out], *negatives[left_out + 1 :]]
            share = positive.exp() / (anchor + sum(s.exp() for s in others))
            value = value + num / (num + anchor) * share.log() / num
        values.append(value)
    return torch.stack(values).mean()


@pytest.mark.parametrize("anchor", [0.3, 1.0, 20.0])
def test_the_anchored_objective_and_its_gradient(anchor: float, scores: Tensor, candidates: Tensor) -> None:
    scores.requires_grad_()
    expected = loop_anchored(rows_of(scores, candidates), anchor)
    found = anchored_info_nce(scores, POSITIVES, candidates, anchor=anchor)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    (expected_grad,), (found_grad,) = (torch.autograd.grad(value, scores) for value in (expected, found))
    assert torch.allclose(found_grad, expected_grad, rtol=1e-10, atol=1e-14)
    assert torch.autograd.gradcheck(lambda s: anchored_info_nce(s, POSITIVES, candidates, anchor=anchor), scores)


def test_the_anchored_objective_lies_between_others(scores: Tensor) -> None:
    """One negative gives Jensen-Shannon, a tiny anchor InfoNCE, a huge one the gradient of E[s] - E[exp s]."""
    pairs = scores[:, :2]
    positives = torch.zeros(5, dtype=torch.long)
    pair_values = torch.stack([jensen_shannon(row[None, :]) for row in pairs]).mean()
    assert anchored_info_nce(pairs, positives).item() == pytest.approx(pair_values.item() / 2, rel=1e-12)
    others = torch.stack([info_nce(scores[:, torch.arange(7) != j], positives).nats for j in range(1, 7)]).mean()
    no_anchor = anchored_info_nce(scores, positives, anchor=1e-12)
    assert no_anchor.item() == pytest.approx(others.item() - math.log(6), abs=1e-9)
    scores.requires_grad_()
    (found,) = torch.autograd.grad(anchored_info_nce(scores, positives, anchor=1e9) * (1e9 / 6), scores)
    (expected,) = torch.autograd.grad(jensen_shannon_nwj(scores, positives).nats, scores)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("anchor", [0.5, 1.0, 4.0])
def test_the_anchored_optimum_is_the_density_ratio(anchor: float) -> None:
    """Six equally likely pairs and two negatives: all 216 rows are enumerated, so the objective is its expectation."""
    pairs = [(0, 0), (0, 0), (0, 1), (1, 1), (1, 2), (1, 0)]
    rows = [(x, y, pairs[i][1], pairs[j][1]) for x, y in pairs for i in range(6) for j in range(6)]
    x, y = torch.tensor(rows)[:, :1], torch.tensor(rows)[:, 1:]
    table = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([table], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")
    positives = torch.zeros(len(rows), dtype=torch.long)

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -anchored_info_nce(table[x, y], positives, anchor=anchor)
        value.backward()
        return value

    optimiser.step(loss)
    joint = torch.zeros(2, 3, dtype=torch.float64)
    for pair in pairs:
        joint[pair] += 1 / 6
    ratio = joint / joint.sum(0) / joint.sum(1, keepdim=True)
    assert torch.allclose(table.exp(), ratio, atol=1e-5)
    assert (ratio[1] > 0).all()
    assert ratio[0, 2] == 0
    plug_in = ESTIMATORS["anchor"].estimate(table[x, y], positives).nats
    assert plug_in.item() == pytest.approx((joint * ratio.clamp(min=1e-300).log()).sum().item(), abs=1e-6)


def test_the_value_is_donsker_varadhan_and_the_gradient_divides_by_the_average() -> None:
    """Section 3.2 of MINE: E[grad s] - E[exp(s) grad s] / average of E[exp s]."""
    decay, objective, average = 0.8, moving_average_gradient(0.8), None
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
        value = objective(scores)
        is_negative = ~torch.eye(4, dtype=torch.bool)
        mean_exp = scores.detach().exp()[is_negative].mean()
        average = mean_exp if average is None else decay * average + (1 - decay) * mean_exp
        expected = torch.eye(4).double() / 4 - is_negative * scores.detach().exp() / 12 / average
        assert value.item() == pytest.approx(donsker_varadhan(scores).nats.item())
        assert torch.allclose(torch.autograd.grad(value, scores)[0], expected, atol=1e-12)


def some_scores(num_matrices: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 9, (num_matrices,), generator=generator).tolist()
    return [1.5 * torch.randn(n, n, generator=generator, dtype=torch.float64) for n in sizes]


def estimated(name: str, scores: Tensor) -> Estimate:
    options = {"log_baseline": scores.mean(1)} if ESTIMATORS[name].needs_baseline else {}
    return ESTIMATORS[name].estimate(scores, **options)


def tallied(estimates: list[Estimate]) -> EstimateTally:
    tally = EstimateTally()
    for reading in estimates:
        tally.update(reading)
    return tally


@pytest.mark.parametrize("name", ESTIMATORS)
def test_readings_are_one_pass_over_the_concatenation(name: str) -> None:
    estimates = [estimated(name, scores) for scores in some_scores(6)]
    nats, _ = tallied(estimates).compute()
    assert nats == pytest.approx(pooled(estimates).nats.item(), rel=1e-12)


@pytest.mark.usefixtures("unchecked_types")  # of 4000 equal calls
@pytest.mark.parametrize("name", ["info_nce", "nwj", "dv"])
def test_their_standard_error_is_the_spread_of_such_averages(name: str) -> None:
    estimates = [estimated(name, scores / 2) for scores in some_scores(4000)]
    groups = [tallied(estimates[start : start + 40]).compute() for start in range(0, 4000, 40)]
    averages, errors = torch.tensor(groups, dtype=torch.float64).unbind(1)
    assert errors.square().mean().sqrt().item() == pytest.approx(averages.std().item(), rel=0.2)


def test_large_scores_pool() -> None:
    scores = [torch.full((3, 3), 1e4, dtype=torch.float64), torch.full((4, 4), -1e4, dtype=torch.float64)]
    nats, _ = tallied([estimated("dv", s) for s in scores]).compute()
    expected = (3 * 1e4 - 4 * 1e4) / 7 - (1e4 + math.log(3 / 7))
    assert nats == pytest.approx(expected)


def test_one_matrix_has_no_standard_error_and_none_nothing_to_read() -> None:
    assert math.isnan(tallied([estimated("nwj", some_scores(1)[0])]).compute()[1])
    refuses("number of rows=0 must be", EstimateTally().compute)
