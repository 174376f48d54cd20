"""A table with a sampler: what is asked of the sampler, and the same loss as from the whole table."""

from typing import Any

import pytest
import torch
from refusals import refuses

from benchmarks.extreme.kernel_tree import KernelTree
from benchmarks.extreme.kernels import Quadratic
from benchmarks.extreme.softmax import SoftmaxSampler
from cpc.candidates import ClassTable
from cpc.candidates.kernels import RandomFourier
from cpc.candidates.samplers import All, Draw, LogUniform, Partition, Request, Sampler, TwoLevel, Unigram
from cpc.losses import OBJECTIVES, ClassTableLoss, class_loss

NUM_CLASSES, DIM = 11, 6
TARGETS = torch.tensor([[0, -1], [3, 8], [8, 0], [-1, 4]])


class Uniform(Sampler):
    """With replacement, shared by all queries; keeps what it was asked."""

    def _sample(self, request: Request) -> Draw:
        queries, num, targets, hits, generator = request
        self.asked = (queries, num, hits)
        ids = torch.randint(self.num_classes, (num,), generator=generator)
        log_count = torch.full((num,), num / self.num_classes).log()
        log_count_targets = torch.full(targets.shape, num / self.num_classes).log()
        return Draw(ids, log_count, log_count_targets)


class Adaptive(Uniform):
    needs_queries = True
    hits = ("keep", "remove")


def table(**options: Any) -> ClassTable:
    torch.manual_seed(0)
    made = ClassTable(NUM_CLASSES, DIM, has_bias=True, temperature=0.7, **options)
    torch.nn.init.normal_(made.bias)
    return made


@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equals_the_loss_on_the_whole_table(objective: str, is_normalised: bool) -> None:
    hits = OBJECTIVES[objective].hits
    gradients = []
    queries = torch.randn(4, DIM)
    for sparse in (False, bool(hits)):
        classes = table(is_normalised=is_normalised, has_sparse_gradients=sparse)
        drawing = (Uniform(NUM_CLASSES), 7) if hits else (None, None)
        options = {"hits": "remove"} if objective == "info_nce" else {}
        loss = ClassTableLoss(classes, objective, *drawing, **options)
        found = loss.row_losses(queries, TARGETS, torch.Generator().manual_seed(1))
        found.loss.backward()
        assert classes.weight.grad.is_sparse == sparse
        gradients.append([each.to_dense() for each in (classes.weight.grad, classes.bias.grad)])
    torch.testing.assert_close(*gradients)

    classes = table(is_normalised=is_normalised)
    draw = None
    if hits:
        asked = options.get("hits", hits[0])
        draw = Uniform(NUM_CLASSES).sample(None, 7, TARGETS, asked, torch.Generator().manual_seed(1))
    scaled, known = classes.normalised(queries), {"bias": classes.bias, "temperature": 0.7}
    expected = class_loss(scaled, classes.vectors(), TARGETS, draw, objective=objective, **known)
    torch.testing.assert_close(found.loss, expected.loss)
    expected.loss.backward()
    torch.testing.assert_close(gradients[0], [classes.weight.grad, classes.bias.grad])


def test_the_sampler_is_asked_for_what_the_objective_demands() -> None:
    queries = torch.randn(4, DIM, requires_grad=True)
    for objective, wanted in (("sampled_softmax", "remove"), ("nce", "keep")):
        loss = ClassTableLoss(table(), objective, Uniform(NUM_CLASSES), 5)
        loss.row_losses(queries, TARGETS)
        assert loss.sampler.asked == (None, 5, wanted)
    loss = ClassTableLoss(table(is_normalised=True), "sampled_softmax", Adaptive(NUM_CLASSES), 5)
    loss.row_losses(queries, TARGETS)
    given = loss.sampler.asked[0]
    assert not given.requires_grad
    torch.testing.assert_close(given, torch.nn.functional.normalize(queries.detach(), dim=1))


@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize(("kind", "tolerance"), [(SoftmaxSampler, 1e-5), (TwoLevel, 0.02)])  # of bfloat16
def test_a_sampler_of_one_dim_more_draws_by_the_biases_too(
    kind: type[SoftmaxSampler] | type[TwoLevel], tolerance: float, is_normalised: bool
) -> None:
    """Where q is the softmax over the others, Z' = Z for every draw: so the sampled loss is the full one, each time."""
    queries, target = torch.randn(20, DIM), torch.arange(20) % NUM_CLASSES
    apart = {}
    for dim in (DIM, DIM + 1):
        sampler = kind(NUM_CLASSES, dim, 0.7)
        loss = ClassTableLoss(
            table(is_normalised=is_normalised), "sampled_softmax", sampler, 3, "importance", "exclude"
        )
        drawn = loss.row_losses(queries, target, torch.Generator().manual_seed(3)).loss_nats
        apart[dim] = (drawn - loss.exact(queries, target).loss_nats).abs().max()
    assert apart[DIM + 1] < tolerance < 0.1 < apart[DIM]


def test_biases_that_a_law_does_not_know_are_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ClassTableLoss(table(), "sampled_softmax", SoftmaxSampler(NUM_CLASSES, DIM + 1, 0.7), 5)
    ClassTableLoss(ClassTable(NUM_CLASSES, DIM), "sampled_softmax", SoftmaxSampler(NUM_CLASSES, DIM), 5)
    assert not caplog.records
    ClassTableLoss(table(), "sampled_softmax", SoftmaxSampler(NUM_CLASSES, DIM, 0.7), 5)
    assert "SoftmaxSampler(dim=6) draws by products and ignores the biases of the table: give dim=7" in caplog.text
    caplog.clear()
    ClassTableLoss(table(is_normalised=True), "sampled_softmax", KernelTree(NUM_CLASSES, RandomFourier(DIM, 4)), 5)
    assert not caplog.records


def test_exact_is_the_full_softmax_whatever_was_trained() -> None:
    loss = ClassTableLoss(table(has_sparse_gradients=True), "nce", Uniform(NUM_CLASSES), 5)
    queries = torch.randn(4, DIM)
    expected = ClassTableLoss(table(), "full_softmax").row_losses(queries, TARGETS)
    for found, wanted in zip(loss.exact(queries, TARGETS)[:4], expected[:4], strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("objective", ["negative_sampling", "info_nce"])
@pytest.mark.parametrize("num_distinct", [None, 2])
def test_perplexity_at_the_optimum_is_the_entropys(objective: str, num_distinct: int | None) -> None:
    """Where F = log(P / Q), the exact loss is H(P), whatever the law Q."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    q = p**0.75 / (p**0.75).sum()
    counts = q  # with replacement; else the chance to come first or second
    if num_distinct is not None:
        after = [sum(q[j] / (1 - q[j]) for j in range(4) if j != i) for i in range(4)]
        counts = q * (1 + torch.stack(after))
    classes = ClassTable(4, 1)
    with torch.no_grad():
        classes.weight.copy_((p / counts).log()[:, None])
    sampler = Unigram(p, distortion=0.75, replacement=num_distinct is None, shared=False)
    loss = ClassTableLoss(classes, objective, sampler, num_distinct or 3)
    found = loss.exact(torch.ones(4, 1), torch.arange(4), p.float()).loss.exp().item()
    # of distinct candidates the expected counts are those of independent inclusion: not to the last digit
    assert found == pytest.approx(float(torch.exp(-(p * p.log()).sum())), rel=1e-5 if num_distinct is None else 2e-3)


@pytest.mark.parametrize(
    ("objective", "drawing", "options"),
    [
        ("full_logistic", (), {}),
        ("sampled_logistic", (LogUniform(4), 2), {}),
        ("sampled_logistic", (LogUniform(4), 2), {"correction": "importance"}),
    ],
)
def test_perplexity_of_log_odds_is_the_entropys(objective: str, drawing: tuple, options: dict) -> None:
    """Where F = log(P / (1 - P)), the exact loss is H(P); its gradients are those of the softmax of log sigmoid(F)."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    entropy = -float((p * p.log()).sum())
    classes = ClassTable(4, 1, has_bias=True)
    with torch.no_grad():
        classes.weight.copy_((p / (1 - p)).log()[:, None])
    loss = ClassTableLoss(classes, objective, *drawing, **options)
    found = loss.exact(torch.ones(4, 1), torch.arange(4), p.float()).loss
    assert found.item() == pytest.approx(entropy, rel=1e-6)

    torch.nn.init.normal_(classes.bias)
    queries = torch.randn(3, 1, requires_grad=True)
    targets = torch.tensor([[0, -1], [3, 1], [2, -1]])
    result = loss.exact(queries, targets)
    log_p = torch.nn.functional.logsigmoid(queries @ classes.weight.T + classes.bias).log_softmax(1)
    expected = -torch.stack([log_p[0, 0], log_p[1, [3, 1]].mean(), log_p[2, 2]])
    torch.testing.assert_close(result.loss_nats, expected.detach())
    inputs = (queries, classes.weight, classes.bias)
    torch.testing.assert_close(
        torch.autograd.grad(result.loss, inputs), torch.autograd.grad(expected.mean(), inputs), atol=1e-6, rtol=1e-4
    )


def test_scores_against_a_law_of_the_query_have_no_full_softmax() -> None:
    loss = ClassTableLoss(table(), "negative_sampling", Adaptive(NUM_CLASSES), 5)
    refuses(r"negative_sampling .* Adaptive differs between queries", loss.exact, torch.zeros(4, DIM), TARGETS)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("full_softmax", Uniform(NUM_CLASSES), 5), {}, "scores every class: give no sampler, num_sampled or hits"),
        (("nce", Uniform(NUM_CLASSES)), {}, "give a sampler and num_sampled"),
        (("nce", Uniform(NUM_CLASSES), 5), {"hits": "remove"}, "hits='remove': nce accepts keep"),
        (("nce", Uniform(12), 5), {}, "the number of classes of the sampler=12 must be 11"),
        (("info_nce", LogUniform(NUM_CLASSES), 5), {}, "hits='exclude', but all queries share one draw of LogUni"),
        (("sampled_softmax", TwoLevel(NUM_CLASSES, DIM, 0.1), 5), {}, r"temperature=0\.1 must be 0\.7"),
        (("sampled_softmax", TwoLevel(NUM_CLASSES, 5, 0.7), 5), {}, "dim=5, but .* dim=6: .* dim, or with dim=7"),
        (("sampled_softmax", KernelTree(NUM_CLASSES, RandomFourier(7, 4)), 5), {}, "dim=7, but .* dim=6: .* this dim$"),
        (("info_nce", Adaptive(NUM_CLASSES), 5), {}, "Adaptive: hits='exclude' is not one of keep, remove"),
        (("nce", Unigram([0, 0, *[1] * (NUM_CLASSES - 2)]), 10), {}, "num_sampled=10 .* Unigram can draw 9 classes"),
        (("info_nce", LogUniform(NUM_CLASSES, shared=False), 11), {}, "can draw 10 classes .* 1 are excluded"),
        (
            ("sampled_softmax", LogUniform(NUM_CLASSES), 3),
            {"refresh_every": 5, "updates_between": True},
            "refresh_every=5 and updates_between=True are for a sampler that reads",
        ),
        (("sampled_softmax", TwoLevel(NUM_CLASSES, DIM, 0.7), 3), {"updates_between": True}, "with refresh_every=1:"),
    ],
)
def test_parts_that_do_not_go_together_are_named(arguments: tuple, options: dict, message: str) -> None:
    refuses(message, ClassTableLoss, table(), *arguments, **options)


def test_gradients_and_queries_that_do_not_fit_the_table_are_named() -> None:
    refuses("gives every class a gradient: set", ClassTableLoss, table(has_sparse_gradients=True), "full_softmax")
    refuses(r"queries is .* of the", ClassTableLoss(table(), "full_softmax").row_losses, torch.zeros(4, 5), TARGETS)


def test_parts_that_go_together_are_accepted() -> None:
    partition = Partition(NUM_CLASSES, 3)
    partition.look_ahead(lambda _: torch.arange(3), 1)
    partition.set_step(0)
    for drawing in (
        (LogUniform(NUM_CLASSES, shared=False), 10),
        (LogUniform(NUM_CLASSES, shared=False, replacement=True), 20),
        (SoftmaxSampler(NUM_CLASSES, DIM, 0.7), 20),
        (partition, 3),
        (SoftmaxSampler(NUM_CLASSES, DIM, 0.7), 5),
        (KernelTree(NUM_CLASSES, Quadratic(DIM)), 5),
    ):
        found = ClassTableLoss(table(), "info_nce", *drawing).row_losses(torch.randn(3, DIM), torch.tensor([0, 1, 2]))
        assert found.loss.isfinite()


@pytest.mark.parametrize(
    ("sampled", "full"), [("sampled_softmax", "full_softmax"), ("sampled_logistic", "full_logistic")]
)
@pytest.mark.parametrize("correction", ["posterior", "importance"])
def test_every_class_drawn_once_gives_the_full_loss(sampled: str, full: str, correction: str) -> None:
    queries = torch.randn(4, DIM)
    loss = ClassTableLoss(table(), sampled, All(NUM_CLASSES), NUM_CLASSES, correction=correction)
    wanted = ClassTableLoss(table(), full).row_losses(queries, TARGETS)
    torch.testing.assert_close(loss.row_losses(queries, TARGETS)[:4], wanted[:4])
