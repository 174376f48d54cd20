"""Laws against what they declare; counts against enumerations and published figures."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from einops import repeat
from refusals import refuses
from scipy import stats
from torch import Tensor

from cpc.candidates.samplers import All, Counts, LearnedUnigram, LogUniform, Partition, Uniform, Unigram
from cpc.candidates.samplers.arrivals import MOST_TABLE_ENTRIES, first_occurrences
from cpc.candidates.samplers.unigram import build_alias_table

# The six classes of shared notes on unbiased counts: logits, law, and the sum that candidates estimate.
LOGITS = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, -0.3], dtype=torch.float64)
LAW = torch.tensor([0.1, 0.3, 0.2, 0.15, 0.2, 0.05], dtype=torch.float64)
Z = 13.86476
NONE = torch.full((1, 1), -1)


def learned(num_classes: int, **manner: object) -> LearnedUnigram:
    sampler = LearnedUnigram(num_classes, **manner)
    sampler.observe(torch.arange(num_classes) ** 2 % 7)
    return sampler.eval()


def part(num_classes: int, **manner: object) -> Partition:
    corpus = torch.arange(3 * num_classes) ** 2 % num_classes
    sampler = Partition(num_classes, num_classes // 2, **manner)
    sampler.look_ahead(lambda number: corpus[number % len(corpus)].reshape(1), len(corpus))
    sampler.set_step(2 * num_classes)
    return sampler


LAWS = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "unigram": lambda n, **manner: Unigram(torch.arange(n) % 5, 0.75, **manner),
    "learned_unigram": learned,
    "partition": part,
}


def chi_square(draws: Tensor, probabilities: Tensor) -> float:
    counts = torch.bincount(draws.flatten(), minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    possible = probabilities > 0
    expected = probabilities[possible] * draws.numel()
    return stats.chisquare(counts[possible].numpy(), expected.numpy()).pvalue


def inclusion(proposal: Tensor, num: int) -> Tensor:
    """Successive sampling, enumerated: the chance that each class is among the first `num` distinct draws."""
    chance = torch.zeros_like(proposal)
    for order in itertools.permutations(range(len(proposal)), num):
        left, p = 1.0, 1.0
        for i in order:
            p *= float(proposal[i]) / left
            left -= float(proposal[i])
        chance[list(order)] += p
    return chance


def assert_mean(values: Tensor, expected: Tensor | float) -> None:
    """Check that means lie within four standard errors, which are at most 2 % of the expected values."""
    error = values.std(0) / math.sqrt(len(values))
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert (error < 0.02 * expected.abs()).all(), "too few draws to tell"
    assert ((values.mean(0) - expected).abs() <= 4 * error).all(), f"{values.mean(0)}, not {expected}"


@pytest.fixture
def _float64() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("num_classes", [5, 40])
def test_draws_follow_the_declared_law(name: str, num_classes: int, generator: torch.Generator) -> None:
    sampler = LAWS[name](num_classes, replacement=True)
    q = sampler.probabilities()
    assert q.sum() == pytest.approx(1, abs=1e-12)
    assert sampler.num_possible == int((q > 0).sum())
    draw = sampler.sample(None, 100_000, NONE, generator=generator)
    assert chi_square(draw.ids, q) > 1e-3
    torch.testing.assert_close(draw.log_count_sampled, (100_000 * q[draw.ids]).log().float())


@pytest.mark.parametrize("cast", ["bfloat16", "double"])
@pytest.mark.parametrize("name", LAWS)
def test_a_cast_of_the_model_leaves_the_law_as_it_is(name: str, cast: str) -> None:
    targets = repeat(torch.arange(1, 3), "t -> m t", m=3) if name != "partition" else torch.full((3, 1), -1)
    draws = []
    for has_cast in (False, True):
        sampler = LAWS[name](200)
        if has_cast:
            getattr(torch.nn.ModuleList([sampler]), cast)()
        draws.append(sampler.sample(None, 50, targets, "keep", torch.Generator().manual_seed(0)))
    assert all(map(torch.equal, *draws))


def test_the_log_uniform_law_is_not_the_circulating_one(generator: torch.Generator) -> None:
    sampler = LogUniform(5, replacement=True)
    published = torch.tensor([0.386853, 0.226294, 0.160558, 0.124539, 0.101756], dtype=torch.float64)
    torch.testing.assert_close(sampler.probabilities(), published, atol=5e-7, rtol=0)
    wrong = torch.round(torch.exp(torch.rand(100_000, generator=generator) * math.log(5))).long() - 1
    assert chi_square(wrong, sampler.probabilities()) < 1e-100

    large = LogUniform(793_471, replacement=True)
    ids = large.sample(None, 300_000, NONE, generator=generator).ids
    assert 0 <= int(ids.min()) <= int(ids.max()) < 793_471
    octave = torch.log2(ids + 1.0).long()  # classes 2^k - 1 .. 2^(k+1) - 2
    share = torch.zeros(int(octave.max()) + 1, dtype=torch.float64)
    share.index_add_(0, torch.log2(torch.arange(793_471) + 1.0).long(), large.probabilities())
    assert chi_square(octave, share) > 1e-3


@pytest.mark.parametrize("weights", [[1.0] * 7, [1.0], [0.0, 3.0, 0.0], "random", "zipf", "one giant"])
def test_the_alias_table_holds_the_law(weights: str | list[float]) -> None:
    rng = np.random.default_rng(0)
    n = 10_000
    proposal = {
        "random": rng.random(n) * (rng.random(n) < 0.7),
        "zipf": 1 / np.arange(1, n + 1),
        "one giant": np.r_[np.full(n, 1e-9), 1.0],
    }
    given = torch.as_tensor(proposal[weights] if isinstance(weights, str) else weights, dtype=torch.float64)
    q = given / given.sum()
    thresholds, aliases = build_alias_table(q)
    implied = thresholds.clone().index_add_(0, aliases, 1 - thresholds) / len(q)
    torch.testing.assert_close(implied, q, atol=1e-15, rtol=1e-9)


def test_distortion_and_zero_counts() -> None:
    q = Unigram([4, 0, 16, 0, 25], 0.5).probabilities()
    torch.testing.assert_close(q, torch.tensor([2.0, 0, 4, 0, 5], dtype=torch.float64) / 11)


def test_learned_unigram_counts_what_it_is_trained_on(generator: torch.Generator) -> None:
    sampler = LearnedUnigram(4, replacement=True)
    targets = torch.tensor([[0, 0], [2, -1], [0, 2]])
    draw = sampler.sample(None, 8, targets, generator=generator)  # from the law before the batch
    torch.testing.assert_close(draw.log_count_targets[0], torch.tensor([2.0, 2.0]).log())
    torch.testing.assert_close(sampler.probabilities(), torch.tensor([4, 1, 3, 1], dtype=torch.float64) / 9)
    sampler.eval().sample(None, 8, targets, generator=generator)
    assert sampler.num_seen.tolist() == [4, 1, 3, 1]


def embedded(proposal: Tensor, num_classes: int) -> Tensor:
    """The same law among more classes, which are never drawn: rejection collects all its candidates by itself."""
    return torch.cat([proposal, proposal.new_zeros(num_classes - len(proposal))])


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("num_classes", [5, 40])
def test_unique_draws_of_the_published_example(num_classes: int, generator: torch.Generator) -> None:
    """Log-uniform over five classes, two distinct drawn: inclusion, TensorFlow's count, tries."""
    proposal = LogUniform(5).probabilities()
    exact = torch.tensor([0.672848, 0.470180, 0.349849, 0.277468, 0.229656])
    torch.testing.assert_close(inclusion(proposal, 2), exact, atol=1e-6, rtol=0)
    targets = repeat(torch.arange(5), "t -> m t", m=50_000)

    def sample(counts: str) -> tuple[Tensor, Tensor]:
        sampler = Unigram(embedded(proposal, num_classes), shared=False, counts=counts)
        draw = sampler.sample(None, 2, targets, generator=generator)
        assert (draw.ids[:, 0] != draw.ids[:, 1]).all()
        is_in = (draw.ids[:, :, None] == torch.arange(5)).any(1)
        assert_mean(is_in.double(), exact)
        log_counts = draw.log_count_targets.gather(1, draw.ids)
        torch.testing.assert_close(draw.log_count_sampled, log_counts)
        return draw.log_count_targets.exp(), is_in

    count, is_in = sample("gumbel")
    assert_mean(is_in / count, torch.ones(5))
    until = -torch.log1p(-count) / proposal
    torch.testing.assert_close(until, until[:, :1].expand(-1, 5))
    count, _ = sample("tensorflow")
    assert_mean(count, torch.tensor([0.781305, 0.484835, 0.353446, 0.278466, 0.229846]))
    count, _ = sample("rejection")
    num_tries = torch.log1p(-count[:, 4]) / torch.log1p(-proposal[4])
    assert_mean(num_tries, 2.37022)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("num_classes", [6, 40])
@pytest.mark.parametrize(("counts", "expected"), [("gumbel", Z), ("tensorflow", 13.459), ("rejection", 14.946)])
def test_what_each_count_estimates(counts: str, expected: float, num_classes: int, generator: torch.Generator) -> None:
    sampler = Unigram(embedded(LAW, num_classes), shared=False, counts=counts)
    draw = sampler.sample(None, 3, NONE.expand(50_000, 1), generator=generator)
    estimate = (LOGITS[draw.ids] - draw.log_count_sampled).exp().sum(1)
    assert_mean(estimate, expected)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("hits", ["remove", "exclude"])
@pytest.mark.parametrize("num_classes", [6, 40])
def test_importance_estimates_the_sum_over_all_but_the_targets(
    replacement: bool, hits: str, num_classes: int, generator: torch.Generator
) -> None:
    sampler = Unigram(embedded(LAW, num_classes), shared=False, replacement=replacement)
    targets = torch.tensor([1, 1, 4])  # a class twice is one target
    draw = sampler.sample(None, 3, repeat(targets, "t -> m t", m=25_000), hits, generator)
    estimate = (LOGITS[draw.ids] - draw.log_count_sampled).exp().sum(1)
    assert_mean(estimate, float(LOGITS.exp().sum() - LOGITS[[1, 4]].exp().sum()))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("num_classes", [6, 40])
def test_exclusion_leaves_the_renormalised_law(replacement: bool, num_classes: int, generator: torch.Generator) -> None:
    sampler = Unigram(embedded(LAW, num_classes), shared=False, replacement=replacement)
    targets = torch.tensor([[1, 4], [0, -1], [-1, -1]])[torch.arange(30_000) % 3]
    draw = sampler.sample(None, 2, targets, "exclude", generator)
    assert not (draw.ids[:, :, None] == targets[:, None]).any()
    for row, excluded in enumerate(([1, 4], [0], [])):
        left = embedded(LAW, num_classes)
        left[excluded] = 0
        left = left / left.sum()
        ids = draw.ids[row::3]
        assert chi_square(ids[:, 0], left) > 1e-3
        assert chi_square(ids[:, 1], left if replacement else inclusion_of_second(left)) > 1e-3
        if replacement:
            torch.testing.assert_close(draw.log_count_sampled[row::3], (2 * left[ids]).log().float())


def inclusion_of_second(proposal: Tensor) -> Tensor:
    return sum(
        (
            proposal[i] * torch.where(torch.arange(len(proposal)) == i, 0.0, proposal) / (1 - proposal[i])
            for i in range(6)
        ),
        proposal * 0,
    )


@pytest.mark.usefixtures("_float64")
def test_tries_are_counted_to_the_last_class(generator: torch.Generator) -> None:
    """All six classes: what a coupon collector needs, though the clocks end the waiting."""
    sampler = Unigram(LAW, shared=False, counts="rejection")
    draw = sampler.sample(None, 6, torch.zeros(50_000, 1, dtype=torch.int64), generator=generator)
    num_tries = torch.log1p(-draw.log_count_targets[:, 0].exp()) / torch.log1p(-LAW[0])
    subsets = [s for size in range(1, 7) for s in itertools.combinations(LAW.tolist(), size)]
    assert_mean(num_tries, sum((-1) ** (len(s) + 1) / sum(s) for s in subsets))


@pytest.mark.parametrize("counts", get_args(Counts))
def test_every_class_there_is(counts: str, generator: torch.Generator) -> None:
    draw = Unigram([5, 0, 1, 3], counts=counts).sample(None, 3, torch.tensor([0, 3]), generator=generator)
    assert sorted(draw.ids.tolist()) == [0, 2, 3]
    if counts == "gumbel":
        assert not draw.log_count_sampled.any()
        assert not draw.log_count_targets.any()


def test_shared_candidates(generator: torch.Generator) -> None:
    targets = torch.tensor([[0, 1], [2, -1], [1, 0]])
    draw = LogUniform(9).sample(None, 4, targets, "keep", generator)
    assert draw.ids.shape == draw.log_count_sampled.shape == (4,)
    assert draw.log_count_targets.shape == (3, 2)
    assert draw.log_count_targets[1, 1] == torch.inf  # no second target
    assert draw.log_count_targets[0].tolist() == draw.log_count_targets[2].flip(0).tolist()

    draw = LogUniform(9).sample(None, 9, targets, "remove", generator)
    is_hit = (draw.ids == targets[:, :, None]).any(1)
    assert torch.equal(draw.log_count_sampled == torch.inf, is_hit)
    assert not draw.log_count_sampled[~is_hit].any()

    draw = LogUniform(9).sample(None, 7, targets[[0, 2]], "exclude", generator)
    assert sorted(draw.ids.tolist()) == list(range(2, 9))


def test_large_and_rare(generator: torch.Generator) -> None:
    """Sorting and table find the same first occurrences; a law of one giant class does not wait for its rejections."""
    giant = torch.full((2000,), 1e-12)
    giant[7] = 1
    draw = Unigram(giant).sample(None, 1500, torch.tensor([7]), generator=generator)
    assert draw.ids.unique().numel() == 1500
    assert draw.log_count_targets == 0
    draw = Unigram(giant, replacement=True).sample(None, 1500, torch.tensor([7]), "exclude", generator)
    assert 7 not in draw.ids
    assert len(draw.ids.unique()) == pytest.approx(2000 * -math.expm1(-0.75), abs=60)


def test_all_is_everything_once() -> None:
    targets = torch.tensor([[1, 2], [0, -1]])
    for hits in ("keep", "remove", "exclude"):
        draw = All(4).sample(None, 4, targets, hits)
        assert draw.ids.tolist() == [0, 1, 2, 3]
        assert draw.log_count_targets.tolist() == [[0, 0], [0, math.inf]]
    assert (draw.log_count_sampled == torch.inf).tolist() == [[False, True, True, False], [True, False, False, False]]
    assert not All(4).sample(None, 4, targets).log_count_sampled.any()
    assert All(4).expected_counts(4).tolist() == [1, 1, 1, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("hits", ["remove", "exclude"])
def test_tensors_on_a_gpu_meet_the_same_candidates(name: str, hits: str) -> None:
    for manner in ({"replacement": True}, {"replacement": False}):
        sampler = LAWS[name](400, shared=False, **manner)
        targets = sampler.probabilities().topk(3).indices[:, None]
        ours = sampler.sample(None, 20, targets, hits, torch.Generator().manual_seed(0))
        there = sampler.to("cuda").sample(None, 20, targets.cuda(), hits, torch.Generator().manual_seed(0))
        assert all(each.is_cuda for each in there)
        for here, device_tensor in zip(ours, there, strict=True):
            torch.testing.assert_close(device_tensor.cpu(), here)


def test_bad_input_is_named() -> None:
    target, rare = torch.tensor([0]), Unigram([2, 1, 0, 0])
    refuses("can draw 4 classes", Uniform(4).sample, None, 5, target)
    refuses("3 classes.*1 are excluded", Uniform(4, shared=False).sample, None, 4, target, "exclude")
    refuses("num_sampled=3.* can draw 2 classes", rare.sample, None, 3, target)
    refuses("1 are excluded", Uniform(1, replacement=True).sample, None, 1, target, "exclude")
    refuses("class 2 is a target, but the sampler never draws it", rare.sample, None, 1, target + 2)
    refuses("of All=3 must be 4", All(4).sample, None, 3, target)
    refuses("without replacement", Uniform, 4, counts="gumbel", replacement=True)
    refuses("at least 0 everywhere", Unigram, [1.0, -1])
    refuses("must be positive and finite", Unigram, [0.0, 0])
    refuses(r"same targets in every query.*shared=False", Uniform(9).sample, None, 2, torch.tensor([0, 1]), "exclude")
    refuses("Uniform: hits='drop' is not one of keep, remove, exclude", Uniform(9).check_request, 2, "drop")
    refuses("targets run from 0 to 9", Uniform(9).sample, None, 2, torch.tensor([0, 9]))


def test_a_law_that_was_left_open_follows_and_no_other() -> None:
    def proposal(sampler: Unigram) -> list[float]:
        return (8 * sampler.probabilities()).tolist()

    counts, others = torch.tensor([1, 3, 4]), torch.tensor([6, 1, 1])
    is_open, given, told, loaded = Unigram(3), Unigram(others), Unigram(3), Unigram(3)
    told.set_counts(others)
    loaded.load_state_dict(told.state_dict())
    for sampler in (is_open, given, told, loaded):
        sampler.follow(counts)
    assert proposal(is_open) == pytest.approx([1, 3, 4])
    assert proposal(given) == proposal(told) == proposal(loaded) == pytest.approx([6, 1, 1])


def test_what_does_not_follow_and_what_has_no_expected_counts() -> None:
    for sampler in (Uniform(3), LogUniform(3), LearnedUnigram(3)):
        before = sampler.probabilities()
        sampler.follow(torch.tensor([1, 3, 4]))
        assert torch.equal(sampler.probabilities(), before)
    assert Partition(9, 3).expected_counts(2) is None


@pytest.mark.parametrize("num", [1, 4, 6, 7])
def test_expected_counts_of_a_law(num: int) -> None:
    """With replacement m q; else 1 - exp(-q t) of sum m, every class that can be drawn where they are no more."""
    proposal = Unigram([1000.0, 100, 10, 1, 1e-3, 0, 1e-6, 5])
    q = proposal.probabilities()
    torch.testing.assert_close(Unigram(q, replacement=True).expected_counts(num), num * q)
    counts = proposal.expected_counts(num)
    assert float(counts.sum()) == pytest.approx(num, rel=1e-8)
    if num == 7:
        assert counts.tolist() == [1, 1, 1, 1, 1, 0, 1, 1]
        return
    possible = q > 0
    times = -torch.log1p(-counts[possible]) / q[possible]
    # the likeliest classes are certain to the last digit
    known = counts[possible] < 1 - 1e-9
    assert times[known].max() / times[known].min() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("num_classes", [30, MOST_TABLE_ENTRIES])
def test_first_occurrences(num_classes: int, generator: torch.Generator) -> None:
    ids = torch.randint(30, (3, 50), generator=generator)
    assert first_occurrences(ids, num_classes).tolist() == [[row.index(each) for each in row] for row in ids.tolist()]
