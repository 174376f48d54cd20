"""What F approximates: objectives minimised over every draw of a small problem, each with its probability.

One context x, n classes with P(y given x) = P, and F as free as it can be: a number per class.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from cpc.candidates.samplers import Draw
from cpc.losses import OBJECTIVES, RowLosses, class_loss

P = torch.tensor([0.45, 0.3, 0.2, 0.05], dtype=torch.float64)
COINS = torch.tensor([0.3, 0.7, 0.5, 0.2], dtype=torch.float64)  # inclusion of each class by its own coin
PROPOSAL = torch.tensor([0.4, 0.1, 0.2, 0.3], dtype=torch.float64)  # of draws with replacement
CLASSES = range(len(P))


class Outcome(NamedTuple):
    """A target, the candidates drawn for it with their log counts, and how probable that is."""

    target: int
    drawn: list[tuple[int, float]]
    log_count_target: float
    probability: float


def by_coins(hits: str) -> Iterator[Outcome]:
    """Every class is in or out on its own; excluded, the target's coin is not thrown."""
    log_count = COINS.log().tolist()
    for target in CLASSES:
        for members in itertools.product([False, True], repeat=len(P)):
            chances = [float(COINS[y] if is_in else 1 - COINS[y]) for y, is_in in enumerate(members)]
            drawn = [(y, log_count[y]) for y in CLASSES if members[y] and (hits == "keep" or y != target)]
            yield Outcome(target, drawn, log_count[target], float(P[target]) * math.prod(chances))


def with_replacement(hits: str, num: int) -> Iterator[Outcome]:
    """`num` independent draws; excluded, from the other classes alone."""
    for target in CLASSES:
        chances = PROPOSAL.clone()
        if hits == "exclude":
            chances[target] = 0
            chances /= chances.sum()
        log_count = (num * chances).log().tolist()
        for ids in itertools.product(CLASSES, repeat=num):
            probability = float(P[target] * chances[list(ids)].prod())
            if probability > 0:
                drawn = [(y, log_count[y]) for y in ids if hits == "keep" or y != target]
                yield Outcome(target, drawn, math.log(num * float(PROPOSAL[target])), probability)


def loss_of(outcomes: list[Outcome], scores: Tensor, objective: str, correction: str | None = None) -> RowLosses:
    """The expected loss, with each row's, for one score per class."""
    width = max(len(outcome.drawn) for outcome in outcomes)
    padded = [outcome.drawn + [(0, math.inf)] * (width - len(outcome.drawn)) for outcome in outcomes]
    drawn = torch.tensor(padded, dtype=torch.float64).reshape(len(outcomes), width, 2)
    numbers = [(outcome.log_count_target, outcome.probability) for outcome in outcomes]
    log_count_targets, weight = torch.tensor(numbers, dtype=torch.float64).T
    draw = Draw(drawn[:, :, 0].long(), drawn[:, :, 1], log_count_targets) if OBJECTIVES[objective].hits else None
    targets, options = torch.tensor([outcome.target for outcome in outcomes]), {"weight": weight}
    options |= {"objective": objective, "correction": correction}
    return class_loss(torch.ones(len(outcomes), 1, dtype=torch.float64), scores[:, None], targets, draw, **options)


def trained(outcomes: list[Outcome], objective: str, correction: str | None = None) -> Tensor:
    """The scores that minimise the expected loss."""
    scores = torch.zeros(len(P), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [scores], max_iter=300, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = loss_of(outcomes, scores, objective, correction).loss
        loss.backward()
        return loss

    optimiser.step(closure)
    return scores.detach()


def assert_equal_scores(found: Tensor, wanted: Tensor, form: str) -> None:
    """A softmax leaves a constant of the context free."""
    if form == "softmax":
        found, wanted = found - found.mean(), wanted - wanted.mean()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


LOG_ODDS = (P / (1 - P)).log()
BY_COINS = [
    ("full_softmax", "remove", P.log()),
    ("full_logistic", "remove", LOG_ODDS),
    ("sampled_softmax", "remove", P.log()),
    ("sampled_softmax", "exclude", P.log()),
    ("sampled_logistic", "remove", LOG_ODDS),
    ("sampled_logistic", "exclude", LOG_ODDS),
    ("nce", "keep", P.log()),
    ("negative_sampling", "keep", (P / COINS).log()),
    ("info_nce", "exclude", (P / COINS).log()),
    ("info_nce", "remove", (P / COINS).log()),
]


@pytest.mark.parametrize(("objective", "hits", "wanted"), BY_COINS)
def test_independent_inclusion_recovers_the_table(objective: str, hits: str, wanted: Tensor) -> None:
    """The last column of the table in docs/theory.md, exactly."""
    assert_equal_scores(trained(list(by_coins(hits)), objective), wanted, OBJECTIVES[objective].form)


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize(
    ("objective", "hits", "wanted"),
    [
        ("nce", "keep", P.log()),
        ("negative_sampling", "keep", (P / PROPOSAL).log()),
        ("sampled_logistic", "remove", LOG_ODDS),
        ("info_nce", "keep", (P / PROPOSAL).log()),
    ],
)
def test_exact_with_replacement_too(objective: str, hits: str, wanted: Tensor, num: int) -> None:
    """Logistic losses are linear in counts; InfoNCE wants its hits kept here."""
    if objective == "negative_sampling":
        wanted = wanted - math.log(num)  # the expected count of a class is num * its probability
    assert_equal_scores(trained(list(with_replacement(hits, num)), objective), wanted, OBJECTIVES[objective].form)


def reference_minimiser(outcomes: list[Outcome], form: str, correction: str) -> Tensor:
    """The same minimum by loops over plain numbers and another optimiser."""

    def expected_loss(scores: list[float]) -> float:
        total = 0.0
        for target, drawn, log_count_target, probability in outcomes:
            own = scores[target] - (log_count_target if correction == "posterior" else 0)
            others = [scores[y] - (0 if correction == "none" else c) for y, c in drawn]
            if form == "softmax":
                total += probability * (math.log(sum(math.exp(g) for g in [own, *others])) - own)
            elif correction == "importance":
                weighted = [math.exp(-c) * math.log1p(math.exp(scores[y])) for y, c in drawn]
                total += probability * (math.log1p(math.exp(-own)) + sum(weighted))
            else:
                total += probability * (math.log1p(math.exp(-own)) + sum(math.log1p(math.exp(g)) for g in others))
        if form == "softmax":  # its constant is free
            total += 1e-6 * sum(scores) ** 2
        return total

    return torch.tensor(minimize(expected_loss, [0.0] * len(P), tol=1e-12).x)


@pytest.mark.parametrize(
    ("objective", "hits", "correction", "is_biased"),
    [
        ("sampled_softmax", "remove", "posterior", True),
        ("sampled_softmax", "exclude", "posterior", True),
        ("sampled_softmax", "exclude", "importance", True),
        ("sampled_logistic", "exclude", "posterior", True),
        ("sampled_logistic", "exclude", "importance", False),
        ("info_nce", "exclude", "none", True),
    ],
)
def test_the_minimiser_of_finitely_many_draws(objective: str, hits: str, correction: str, is_biased: bool) -> None:
    """With replacement or the target excluded F differs from the table at finite m: it is what enumeration finds."""
    outcomes = list(with_replacement(hits, 2))
    found = trained(outcomes, objective, correction)
    form = OBJECTIVES[objective].form
    expected = reference_minimiser(outcomes, form, correction)
    wanted = LOG_ODDS if form == "logistic" else (P / PROPOSAL).log() if objective == "info_nce" else P.log()
    if form == "softmax":
        found, expected, wanted = (each - each.mean() for each in (found, expected, wanted))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    assert (float((found - wanted).abs().max()) > 0.02) == is_biased


SCORES = torch.tensor([0.0, 1, 2, -1], dtype=torch.float64)
OTHERS = {0: 0.5, 1: 0.3, 3: 0.2}


def draws_for_one_target(proposal: dict[int, float], num: int, target: int = 2) -> list[Outcome]:
    """Every sequence of draws for the target 2 of `SCORES`, hits removed."""
    outcomes = []
    for ids in itertools.product(proposal, repeat=num):
        drawn = [(y, math.log(num * proposal[y])) for y in ids if y != target]
        outcomes.append(Outcome(target, drawn, 0.0, math.prod(proposal[y] for y in ids)))
    return outcomes


def test_published_figures_of_four_classes() -> None:
    """Z = E[Z'] = 11.4752, full loss .440190, E[L'] = .420921, p_t = .643914, E[p'_t] = .668595."""
    outcomes = draws_for_one_target(OTHERS, 2)
    found = loss_of(outcomes, SCORES, "sampled_softmax", "importance")
    probability = torch.tensor([outcome.probability for outcome in outcomes], dtype=torch.float64)
    assert found.loss.item() == pytest.approx(0.420920709, abs=1e-9)
    assert (probability @ (-found.loss_nats).exp()).item() == pytest.approx(0.668594810, abs=1e-9)
    assert (probability @ (found.loss_nats + SCORES[2]).exp()).item() == pytest.approx(11.475217369, abs=1e-8)
    full = loss_of(outcomes[:1], SCORES, "full_softmax").loss_nats[0].item()
    assert full == pytest.approx(0.440189699, abs=1e-9)
    assert math.exp(-full) == pytest.approx(0.643914260, abs=1e-9)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_partition_is_unbiased_with_hits_removed_from_draws_over_all(num: int) -> None:
    outcomes = draws_for_one_target(dict(enumerate(PROPOSAL.tolist())), num)
    found = loss_of(outcomes, SCORES, "sampled_softmax", "importance")
    probability = torch.tensor([outcome.probability for outcome in outcomes], dtype=torch.float64)
    partition = (probability @ (found.loss_nats + SCORES[2]).exp()).item()
    assert partition == pytest.approx(SCORES.exp().sum().item(), rel=1e-12)


def test_importance_tends_to_the_full_loss_from_below() -> None:
    full = 0.44018969856
    gaps = [
        full - loss_of(draws_for_one_target(OTHERS, num), SCORES, "sampled_softmax", "importance").loss.item()
        for num in (1, 2, 4, 8)
    ]
    assert all(gap > 0 for gap in gaps)
    ratios = [a / b for a, b in itertools.pairwise(gaps)]
    assert ratios == pytest.approx([2, 2, 2], rel=0.15)  # as 1 / m


@pytest.mark.parametrize("num", [1, 2, 4])
def test_importance_of_the_logistic_loss_is_unbiased_with_its_gradient(num: int) -> None:
    outcomes = draws_for_one_target(dict(enumerate(PROPOSAL.tolist())), num)
    scores = SCORES.clone().requires_grad_()
    found = loss_of(outcomes, scores, "sampled_logistic", "importance").loss
    full = loss_of([Outcome(2, [], 0.0, 1.0)], scores, "full_logistic").loss
    torch.testing.assert_close(found, full)
    torch.testing.assert_close(torch.autograd.grad(found, scores), torch.autograd.grad(full, scores))


def nce_gradient(scores: Tensor, repeats: int) -> Tensor:
    """E[d loss / dF] of k = 10 repeats noise draws: each class stands in the draw as often as it is expected."""
    scores = scores.clone().requires_grad_()
    times = (10 * repeats * PROPOSAL).round().long()
    log_count = times.double().log()
    ids = torch.arange(len(P)).repeat_interleave(times)
    queries = torch.ones(len(P), 1, dtype=torch.float64)
    draw = Draw(ids, log_count[ids], log_count)
    loss = class_loss(queries, scores[:, None], torch.arange(len(P)), draw, objective="nce", weight=P).loss
    return torch.autograd.grad(loss, scores)[0]


def test_the_gradient_of_nce_tends_to_that_of_the_likelihood() -> None:
    """For a normalised model, as 1 / k: (k q / (p + k q)) (p - P), the likelihood's being p - P."""
    scores = torch.tensor([0.2, -0.3, 0.5, 0.1], dtype=torch.float64).log_softmax(0)
    likelihood = scores.exp() - P
    distances = []
    for repeats in (1, 10, 100, 1000):
        found = nce_gradient(scores, repeats)
        count = 10 * repeats * PROPOSAL
        torch.testing.assert_close(found, count / (scores.exp() + count) * likelihood)
        distances.append(float((found - likelihood).norm() / likelihood.norm()))
    assert distances[0] > 0.03
    assert [a / b for a, b in itertools.pairwise(distances)] == pytest.approx([10, 10, 10], rel=0.2)
