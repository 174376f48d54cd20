"""Samplers that follow the query: draws against the law that they declare, and that law against sums by hand.

The benchmarks' tree of RF-softmax is one more: it is held to the same.
"""

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses
from scipy.stats import chisquare
from torch import Tensor

from benchmarks.extreme import kernel_tree as kernel_tree_module
from benchmarks.extreme.kernel_tree import KernelTree
from benchmarks.extreme.kernels import PositiveRandomFeatures, Quadratic
from benchmarks.extreme.softmax import SoftmaxSampler
from cpc.candidates.kernels import RandomFourier
from cpc.candidates.samplers import NO_TARGET, BlockMass, CentroidMass, Draw, FeatureMass, Hits, QuerySampler, TwoLevel
from cpc.candidates.samplers import two_level as two_level_module
from cpc.native import compiled as compiled_module

NUM_CLASSES, DIM, TEMPERATURE = 37, 8, 0.2
TARGETS = torch.tensor([[3, 5, -1], [7, -1, -1], [0, 36, 0]])

SAMPLERS: dict[str, Callable[[], QuerySampler]] = {
    "softmax": lambda: SoftmaxSampler(NUM_CLASSES, DIM, TEMPERATURE),
    "fourier": lambda: KernelTree(NUM_CLASSES, RandomFourier(DIM, 16)),
    "quadratic": lambda: KernelTree(NUM_CLASSES, Quadratic(DIM), uniform_share=0.0),
    "positive": lambda: KernelTree(NUM_CLASSES, PositiveRandomFeatures(DIM, 32)),
    "kmeans": lambda: TwoLevel(NUM_CLASSES, DIM, TEMPERATURE, block_size=5),
    "means": lambda: TwoLevel(NUM_CLASSES, DIM, TEMPERATURE, CentroidMass(has_variance=False), "ids", 4),
    "features": lambda: TwoLevel(NUM_CLASSES, DIM, TEMPERATURE, FeatureMass(RandomFourier(DIM, 16)), "random", 4),
}


def disable_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel_tree_module, two_level_module):
        monkeypatch.setattr(module, "compiled", lambda source: None)


def disable_matrix_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile C as for a processor that has none."""
    monkeypatch.setattr(compiled_module, "FLAGS", (*compiled_module.FLAGS, "-U__AMX_BF16__"))
    monkeypatch.setattr(two_level_module, "compiled", compiled_module.compiled.__wrapped__)


@pytest.fixture(params=["compiled", "without tiles", "torch", pytest.param("cuda", marks=pytest.mark.gpu)])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Draws in C and in torch, where a sampler has both, and everybody's on a GPU."""
    if request.param == "without tiles":
        disable_matrix_tiles(monkeypatch)
    if request.param == "torch":
        disable_compiler(monkeypatch)
    elif request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no GPU")
    elif two_level_module.compiled(two_level_module.SOURCE) is None:
        pytest.skip("no C compiler")
    return request.param


def unit_vectors(num: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(num, DIM, generator=generator), dim=1)


def ready(name: str, generator: torch.Generator) -> tuple[QuerySampler, Tensor, Tensor]:
    classes, queries = unit_vectors(NUM_CLASSES, generator), unit_vectors(len(TARGETS), generator)
    sampler = SAMPLERS[name]()
    sampler.refresh(classes)
    return sampler, classes, queries


def drawn(
    path: str, sampler: QuerySampler, queries: Tensor, num: int, targets: Tensor, hits: Hits, generator: torch.Generator
) -> Draw:
    device = "cuda" if path == "cuda" else "cpu"
    moved = copy.deepcopy(sampler).to(device)
    return Draw(*(each.cpu() for each in moved.sample(queries.to(device), num, targets.to(device), hits, generator)))


def p_value(counts: Tensor, proposal: Tensor) -> float:
    expected = proposal / proposal.sum() * counts.sum()  # a law in float32 sums to one but for rounding
    is_large = expected >= 5
    observed, expected = (torch.cat([n[is_large], n[~is_large].sum()[None]]) for n in (counts.double(), expected))
    cells = expected > 0
    assert observed[~cells].sum() == 0
    return float(chisquare(observed[cells].numpy(), expected[cells].numpy()).pvalue)


def conditioned(proposal: Tensor) -> tuple[Tensor, Tensor]:
    proposal = proposal.clone()
    for row, targets in enumerate(TARGETS):
        proposal[row, targets[targets >= 0]] = 0
    left = proposal.sum(1, keepdim=True)
    return proposal / left, left


@pytest.mark.parametrize("hits", ["keep", "remove", "exclude"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_follow_the_declared_law(name: str, hits: str, path: str, generator: torch.Generator) -> None:
    sampler, _, queries = ready(name, generator)
    num = 5_000
    proposal = sampler.log_prob(queries).exp().double()
    torch.testing.assert_close(proposal.sum(1), torch.ones(len(TARGETS), dtype=torch.float64), atol=1e-5, rtol=0)
    drawn_from, left = conditioned(proposal) if hits == "exclude" else (proposal, torch.ones(len(TARGETS), 1))
    draw = drawn(path, sampler, queries, num, TARGETS, hits, generator)
    for ids, expected in zip(draw.ids, drawn_from, strict=True):
        counts = torch.bincount(ids, minlength=NUM_CLASSES)
        assert counts[expected == 0].sum() == 0
        assert p_value(counts, expected) > 1e-4

    is_hit = (draw.ids[..., None] == TARGETS[:, None]).any(-1)
    log_count = math.log(num) + drawn_from.gather(1, draw.ids).log().float()
    if hits == "remove":
        assert is_hit.any()
        log_count[is_hit] = torch.inf
    torch.testing.assert_close(draw.log_count_sampled, log_count, atol=1e-4, rtol=0)
    log_count_targets = math.log(num) + (proposal / left).gather(1, TARGETS.clamp(min=0)).log().float()
    log_count_targets[TARGETS < 0] = torch.inf
    torch.testing.assert_close(draw.log_count_targets, log_count_targets, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("has_tiles", "hits"), [(True, "keep"), (True, "exclude"), (False, "exclude")])
@pytest.mark.parametrize(
    "build",
    [
        *(lambda dim=dim: TwoLevel(3001, dim, TEMPERATURE, CentroidMass(), block_size=150) for dim in (24, 25, 80)),
        lambda: TwoLevel(3001, 25, TEMPERATURE, FeatureMass(RandomFourier(25, 10)), block_size=150),
        lambda: KernelTree(1100, RandomFourier(24, 10), 0.2),
        lambda: KernelTree(1100, Quadratic(24), 0.2),
        lambda: KernelTree(1100, PositiveRandomFeatures(24, 32), 0.2),
    ],
)
def test_compiled_draws_are_those_in_torch(
    build: Callable[[], QuerySampler],
    hits: Hits,
    has_tiles: bool,
    monkeypatch: pytest.MonkeyPatch,
    generator: torch.Generator,
) -> None:
    """Several tiles of blocks and of queries, several chunks in a block, widths that fill no register."""
    if not has_tiles:
        disable_matrix_tiles(monkeypatch)
    if two_level_module.compiled(two_level_module.SOURCE) is None:
        pytest.skip("no C compiler")
    sampler = build()
    num, dim = sampler.num_classes, sampler.dim
    queries = F.normalize(torch.randn(23, dim, generator=generator), dim=1)
    targets = torch.randint(num, (23, 3), generator=generator)
    targets[5, 1:] = NO_TARGET
    targets[6] = targets[6, 0]
    sampler.refresh(F.normalize(torch.randn(num, dim, generator=generator), dim=1))
    draws = []
    for _ in range(2):
        draws.append(sampler.sample(queries, 40, targets, hits, torch.Generator().manual_seed(2)))
        disable_compiler(monkeypatch)
    is_same = draws[0].ids == draws[1].ids  # but for sums that are rounded otherwise
    assert is_same.float().mean() > 0.995
    torch.testing.assert_close(*(draw.log_count_sampled[is_same] for draw in draws), atol=1e-4, rtol=0)
    torch.testing.assert_close(draws[0].log_count_targets, draws[1].log_count_targets, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["kmeans", "fourier"])
def test_queries_that_share_the_threads_draw_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator, set_num_threads: Callable[[int], None]
) -> None:
    sampler, _, _ = ready(name, generator)
    queries, targets = unit_vectors(50, generator), torch.randint(NUM_CLASSES, (50, 2), generator=generator)
    separate = sampler.sample(queries, 7, targets, "exclude", torch.Generator().manual_seed(0))
    monkeypatch.setattr(compiled_module, "DRAWS_PER_THREAD", 50)
    set_num_threads(3)
    shared = sampler.sample(queries, 7, targets, "exclude", torch.Generator().manual_seed(0))
    assert all(map(torch.equal, separate, shared))


def test_products_of_torch_are_the_same_after_draws(generator: torch.Generator) -> None:
    """Both use the processor's matrix tiles where there are some, and shape them for themselves."""
    sampler, _, queries = ready("kmeans", generator)
    left, right = (torch.randn(96, 96, generator=generator).bfloat16() for _ in range(2))
    before = left @ right
    for _ in range(3):
        sampler.sample(queries, 7, TARGETS, "keep", generator)
        assert torch.equal(left @ right, before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", SAMPLERS)
def test_queries_that_diverged_are_refused(name: str, value: float, path: str, generator: torch.Generator) -> None:
    sampler, _, queries = ready(name, generator)
    queries[1, 2] = value
    refuses("queries must be finite", drawn, path, sampler, queries, 5, TARGETS, "keep", generator)


@pytest.mark.parametrize("temperature", [0.05, 0.001])
def test_a_targets_count_is_that_of_a_draw_of_it(temperature: float, path: str, generator: torch.Generator) -> None:
    """However low the temperature: both are of the same score."""
    classes = unit_vectors(40, generator)
    sampler = TwoLevel(40, DIM, temperature, blocks="ids", block_size=20)
    sampler.refresh(classes)
    targets = torch.arange(40)
    draw = drawn(path, sampler, classes + 0.01, 20, targets, "keep", generator)
    is_hit = draw.ids == targets[:, None]
    assert is_hit.any(1).float().mean() > 0.5
    target_count = draw.log_count_targets[:, None].expand_as(draw.ids)
    torch.testing.assert_close(draw.log_count_sampled[is_hit], target_count[is_hit], atol=5e-6, rtol=0)


def test_targets_far_below_the_others_have_a_count(path: str) -> None:
    """Their weight is too small for a float: e^-200 of the block's highest."""
    classes, targets = torch.eye(8)[[0, 1, 1]], torch.tensor([[1, -1], [0, 1]])
    sampler = TwoLevel(3, 8, 1.0, block_size=3)
    sampler.refresh(classes)
    draw = sampler.sample(200 * torch.eye(8)[:2], 5, targets, "keep", torch.Generator().manual_seed(0))
    expected = math.log(5) + torch.tensor([[-200.0, math.inf], [-200 - math.log(2), -math.log(2)]])
    torch.testing.assert_close(draw.log_count_targets, expected, atol=1e-4, rtol=0)


def test_the_rest_of_a_single_block_can_be_drawn_however_far_below(path: str) -> None:
    """Classes that are e^-1000 of the excluded one and all alike among themselves."""
    classes, targets = torch.eye(8)[:5], torch.tensor([[0, -1], [1, 2]])
    queries = torch.eye(8)[:2] + torch.eye(8)[[0, 2]]
    sampler = TwoLevel(5, 8, 0.001, block_size=64)
    sampler.refresh(classes)
    draw = drawn(path, sampler, queries, 200, targets, "exclude", torch.Generator().manual_seed(0))
    assert [sorted(set(ids.tolist())) for ids in draw.ids] == [[1, 2, 3, 4], [0, 3, 4]]
    expected = math.log(200) - torch.tensor([[4.0], [3.0]]).log().expand(2, 200)
    torch.testing.assert_close(draw.log_count_sampled, expected)
    assert draw.log_count_targets[targets >= 0].isfinite().all()


def scores(classes: Tensor, queries: Tensor) -> Tensor:
    return queries.double() @ classes.double().T / TEMPERATURE


def test_softmax_draws_from_the_softmax(generator: torch.Generator) -> None:
    sampler, classes, queries = ready("softmax", generator)
    torch.testing.assert_close(
        sampler.log_prob(queries).double(), scores(classes, queries).log_softmax(1), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(("name", "share"), [("fourier", 0.1), ("quadratic", 0.0), ("positive", 0.1)])
def test_tree_is_a_walk_over_sums_of_kernels(name: str, share: float, generator: torch.Generator) -> None:
    """By recursion over the classes themselves: halves of the next power of two, negative halves given nothing."""
    sampler, classes, queries = ready(name, generator)
    kernels = sampler.kernel(queries).double() @ sampler.kernel(classes).double().T

    def walk(row: int, start: int, width: int, probability: float) -> list[float]:
        if start >= NUM_CLASSES:
            return []
        if width == 1:
            return [probability]
        half = width // 2
        ends = [(start, start + half), (start + half, start + width)]
        masses = [max(0.0, float(kernels[row, a:b].sum())) for a, b in ends]
        if sum(masses) == 0:
            masses = [max(0, min(b, NUM_CLASSES) - a) for a, b in ends]
        left, right = (probability * mass / sum(masses) for mass in masses)
        return walk(row, start, half, left) + walk(row, start + half, half, right)

    expected = torch.tensor([walk(row, 0, 64, 1.0) for row in range(len(queries))])
    expected = (1 - share) * expected + share / NUM_CLASSES
    torch.testing.assert_close(sampler.log_prob(queries).exp(), expected, atol=2e-4, rtol=0)


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


@pytest.mark.parametrize("name", ["kmeans", "means", "features"])
def test_two_level_is_the_softmax_within_blocks_of_estimated_mass(name: str, generator: torch.Generator) -> None:
    sampler, classes, queries = ready(name, generator)
    block = sampler.block_of[sampler.places]
    classes = rounded(classes.double()).float()  # as it keeps them
    logits = scores(classes, queries)
    proposal = torch.zeros(len(queries), NUM_CLASSES, dtype=torch.float64)
    for row, query in enumerate(queries.double()):
        masses = []
        for b in range(sampler.num_blocks):
            members = classes[block == b].double()
            if len(members) == 0:
                masses.append(0.0)
            elif isinstance(sampler.mass, FeatureMass):
                kernel = sampler.mass.kernel
                features = rounded(kernel(members.float()).double().sum(0))
                masses.append(max(0.0, float(features @ kernel(query.float()).double())))
            else:
                exponent = float(rounded(members.mean(0)) @ query) / TEMPERATURE
                if sampler.mass.has_variance:
                    exponent += float(rounded(members.var(0, correction=0)) @ query**2) / (2 * TEMPERATURE**2)
                exponent += float(rounded(torch.tensor(len(members), dtype=torch.float64).log()))
                masses.append(math.exp(exponent))
        for b, mass in enumerate(masses):
            members = (block == b).nonzero()[:, 0]
            share = (1 - sampler.uniform_share) * mass / sum(masses) + sampler.uniform_share * len(
                members
            ) / NUM_CLASSES
            proposal[row, members] = share * logits[row, members].softmax(0)
    torch.testing.assert_close(sampler.log_prob(queries).exp().double(), proposal, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", SAMPLERS)
def test_importance_estimates_the_partition_function(name: str, path: str, generator: torch.Generator) -> None:
    """E[exp(o_t) + sum over others of exp(o) / count] = Z, whatever the law: with hits removed, and excluded."""
    sampler, classes, queries = ready(name, generator)
    exp_scores = scores(classes, queries).exp()
    for hits in ("remove", "exclude"):
        draw = drawn(path, sampler, queries, 10_000, TARGETS[:, 0], hits, generator)
        terms = 10_000 * exp_scores.gather(1, draw.ids) / draw.log_count_sampled.double().exp()
        others = exp_scores.sum(1) - exp_scores.gather(1, TARGETS[:, :1])[:, 0]
        error = (terms.mean(1) - others).abs()
        assert (error < 4.5 * terms.std(1) / math.sqrt(10_000) + 1e-5 * others).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_autocast_leaves_the_law_as_it_is(name: str, path: str, generator: torch.Generator) -> None:
    """Refreshed, updated and asked under autocast, for queries in bfloat16: what comes without it."""
    classes, queries = unit_vectors(NUM_CLASSES, generator), unit_vectors(len(TARGETS), generator)
    classes, queries = F.normalize(classes.bfloat16().float(), dim=1), queries.bfloat16()
    if name in ("fourier", "features"):
        queries = F.normalize(queries.float(), dim=1)  # of unit length
    outcomes = []
    for is_enabled in (False, True):
        device = "cuda" if path == "cuda" else "cpu"
        sampler = SAMPLERS[name]().to(device)
        with torch.autocast(device, torch.bfloat16, enabled=is_enabled):
            sampler.refresh(classes.to(device))
            sampler.update(torch.tensor([2, 5], device=device), classes[[5, 2]].to(device))
            log_prob = sampler.log_prob(queries.to(device))
            draw = sampler.sample(queries.to(device), 200, TARGETS.to(device), "exclude", generator.manual_seed(1))
        outcomes.append([*draw, log_prob])
    for autocast_result, result in zip(*outcomes, strict=True):
        assert torch.equal(autocast_result, result)
        assert autocast_result.dtype in (torch.int64, torch.float32)


@pytest.mark.parametrize("cast", ["bfloat16", "half", "double"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_cast_of_the_model_leaves_the_law_as_it_is(name: str, cast: str, generator: torch.Generator) -> None:
    sampler, _, queries = ready(name, generator)
    expected = sampler.sample(queries, 200, TARGETS, "keep", generator.manual_seed(1))
    getattr(torch.nn.ModuleList([sampler]), cast)()
    found = sampler.sample(queries, 200, TARGETS, "keep", generator.manual_seed(1))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("has_autocast", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_give_no_gradient(name: str, path: str, has_autocast: bool, generator: torch.Generator) -> None:
    sampler, _, queries = ready(name, generator)
    queries.requires_grad_()
    with torch.autocast("cpu", enabled=has_autocast):
        draw = sampler.sample(queries, 3, torch.arange(len(queries)), "exclude", generator)
    assert not any(each.requires_grad for each in draw)


def test_squares_that_overflow_are_refused(generator: torch.Generator) -> None:
    sampler, classes, _ = ready("kmeans", generator)
    refuses("largest coordinate of embeddings=", sampler.update, torch.tensor([3]), classes[:1] * 1e20)
    assert sampler.mass.sums.isfinite().all()


def test_a_wider_default_dtype_changes_nothing(generator: torch.Generator) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        sampler = TwoLevel(NUM_CLASSES, DIM)
    finally:
        torch.set_default_dtype(torch.float32)
    classes = unit_vectors(NUM_CLASSES, generator)
    expected = TwoLevel(NUM_CLASSES, DIM)
    for each in (sampler, expected):
        each.refresh(classes)
    for name, value in sampler.state_dict().items():
        assert value.dtype == expected.state_dict()[name].dtype
        assert torch.equal(value, expected.state_dict()[name])


@pytest.mark.parametrize("name", SAMPLERS)
def test_update_equals_refresh(name: str, generator: torch.Generator) -> None:
    sampler, classes, queries = ready(name, generator)
    ids = torch.tensor([0, 5, 17, 36])
    moved = classes.clone()
    moved[ids] = unit_vectors(4, generator)
    sampler.update(ids, moved[ids])
    anew = SAMPLERS[name]()
    anew.refresh(classes)
    if isinstance(sampler, TwoLevel) and sampler.blocks == "kmeans":
        expected = blockwise(sampler, moved)
    else:
        anew.refresh(moved)
        expected = anew.state_dict()
    for key, value in sampler.state_dict().items():
        drifts = key.startswith("mass")  # differences are added to these
        rounding = 2**-8 if value.dtype == torch.bfloat16 else 0
        torch.testing.assert_close(value, expected[key], atol=1e-5 * drifts, rtol=rounding * drifts)
    assert (sampler.log_prob(queries) != SAMPLERS["softmax"]().log_prob(queries)).any()


def blockwise(sampler: TwoLevel, classes: Tensor) -> dict[str, Tensor]:
    state = {key: value.clone() for key, value in sampler.state_dict().items()}
    state["embeddings"] = classes[sampler.ids].bfloat16()
    for b in range(sampler.num_blocks):
        members = state["embeddings"][sampler.block_of == b].float()
        if len(members):
            expected = torch.cat([members.mean(0), members.var(0, correction=0), torch.tensor([len(members)]).log()])
            found = sampler.mass.statistics[b // 16, :, b % 16].flatten()[: len(expected)].float()
            assert torch.allclose(found, expected, atol=1e-6, rtol=2**-8)
    return state


@pytest.mark.parametrize("mass", [CentroidMass, lambda: FeatureMass(RandomFourier(DIM, 16))])
def test_sums_of_features_hardly_drift(mass: Callable[[], BlockMass], generator: torch.Generator) -> None:
    classes = unit_vectors(NUM_CLASSES, generator)
    sampler, anew = (TwoLevel(NUM_CLASSES, DIM, TEMPERATURE, mass(), "ids", 4) for _ in range(2))
    sampler.refresh(classes)
    for _ in range(200):
        ids = torch.randperm(NUM_CLASSES, generator=generator)[:8]
        classes[ids] = unit_vectors(8, generator)
        sampler.update(ids, classes[ids])
    anew.refresh(classes)
    assert (sampler.mass.sums - anew.mass.sums).abs().max() < 1e-5 * anew.mass.sums.abs().max()


@pytest.mark.parametrize("name", SAMPLERS)
def test_everything_but_one_class_can_be_excluded(name: str, path: str, generator: torch.Generator) -> None:
    sampler, _, queries = ready(name, generator)
    targets = torch.stack([torch.cat([torch.arange(row), torch.arange(row + 1, NUM_CLASSES)]) for row in (0, 20, 36)])
    draw = drawn(path, sampler, queries, 30, targets, "exclude", generator)
    assert (draw.ids == torch.tensor([[0], [20], [36]])).all()
    torch.testing.assert_close(draw.log_count_sampled, torch.full((3, 30), math.log(30)), atol=2e-3, rtol=0)
    with pytest.raises(ValueError, match="excluded classes=37 must be"):
        sampler.sample(queries, 30, torch.arange(NUM_CLASSES).expand(3, -1), "exclude", generator)


def test_draws_leave_the_global_generator_alone(generator: torch.Generator) -> None:
    before = torch.get_rng_state()
    for name in SAMPLERS:
        sampler, _, queries = ready(name, generator)
        sampler.sample(queries, 5, TARGETS, generator=generator)
    assert torch.equal(before, torch.get_rng_state())


def test_kernels_of_unnormalised_embeddings(generator: torch.Generator) -> None:
    classes = 3 * unit_vectors(NUM_CLASSES, generator)
    for name in ("fourier", "features"):
        refuses(r"embeddings must have unit length for RandomFourier, .* off by 2", SAMPLERS[name]().refresh, classes)
        sampler, _, queries = ready(name, generator)
        refuses("queries must have unit length", sampler.sample, 2 * queries, 5, TARGETS)
        refuses("embeddings must have unit length", sampler.update, torch.tensor([1]), classes[:1])
    for name in ("quadratic", "positive", "kmeans"):
        SAMPLERS[name]().refresh(classes)
    sampler, _, queries = ready("positive", generator)
    refuses(r"embeddings have nu \|x\|\^2 / 2 up to 81, beyond 32 features underflow", sampler.refresh, 3 * classes)
    refuses(r"queries have nu \|x\|\^2 / 2 up to 100", sampler.sample, 10 * queries, 5, TARGETS)


def test_positive_features_of_the_longest_embeddings_do_not_vanish(generator: torch.Generator) -> None:
    kernel = PositiveRandomFeatures(DIM, 4096, nu=1.0)
    longest = math.sqrt(64) * 0.9999 * unit_vectors(256, generator)
    kernel.check(longest, "embeddings")
    assert kernel(longest).min() > torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("name", ["softmax", "fourier", "kmeans"])
def test_refused(name: str, generator: torch.Generator) -> None:
    sampler, classes, queries = ready(name, generator)
    for arguments, message in (
        ((None, 5, TARGETS), "queries is a NoneType"),
        ((queries[:, :5], 5, TARGETS), r"queries is torch.float32 of the shape \[3, 5\]; .* of the shape \[3, "),
    ):
        refuses(message, sampler.sample, *arguments)
    refuses("call refresh", SAMPLERS[name]().sample, queries, 5, TARGETS)
    refuses(r"embeddings is torch.float32 of the shape", sampler.refresh, classes[:-1])
    refuses("must be finite", sampler.refresh, classes / 0)
    refuses("ids run from 3 to 37", sampler.update, torch.tensor([3, 37]), classes[:2])
    refuses("ids repeat", sampler.update, torch.tensor([3, 3]), classes[:2])


def test_refused_options() -> None:
    refuses("temperature=0.0", SoftmaxSampler, 3, DIM, temperature=0.0)
    refuses("sums can be negative", KernelTree, 3, RandomFourier(DIM, 4), uniform_share=0.0)
    refuses(r"not in \[0, 1\)", KernelTree, 3, Quadratic(DIM), uniform_share=1.0)
    refuses("must be positive and below 1", TwoLevel, 3, DIM, uniform_share=0.0)
    refuses("the kernel's dim=5 must be 8", TwoLevel, 3, DIM, mass=FeatureMass(Quadratic(5)))


@pytest.mark.parametrize("mass", [CentroidMass(), FeatureMass(Quadratic(DIM))])
def test_two_samplers_do_not_share_a_mass(mass: BlockMass) -> None:
    TwoLevel(3, DIM, mass=mass)
    refuses(f"another sampler already uses this {type(mass).__name__}", TwoLevel, 5, DIM, mass=mass)
