"""A CPC that predicts classes: tied or not, saved with table and sampler, refused where parts do not go together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses

from benchmarks.extreme.kernel_tree import KernelTree
from benchmarks.extreme.kernels import Quadratic
from benchmarks.extreme.softmax import SoftmaxSampler
from cpc import CPC, load_pretrained, save_pretrained
from cpc.candidates import ClassTable, kernels, samplers
from cpc.contexts import GRU, PixelCNN
from cpc.data.batch import Batch
from cpc.encoders import TokenEncoder
from cpc.losses import ClassTableLoss, EvalProtocol
from cpc.predictors import Bilinear


def language_model(classes: ClassTableLoss, num_steps: int = 1, is_tied: bool = True) -> CPC:
    encoder = TokenEncoder(classes.table.num_classes, 4, is_tied=is_tied)
    return CPC(encoder, GRU(dim=6), Bilinear(num_steps=num_steps), classes)


def labelled(x: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch.of(x)._replace(labels=labels)


@pytest.mark.parametrize("is_tied", [True, False])
def test_gradients_reach_both_uses_of_the_table(is_tied: bool) -> None:
    model = language_model(ClassTableLoss(ClassTable(9, 4), "full_softmax"), is_tied=is_tied)
    tokens = torch.tensor([[3, 4, 5, 3, 4]])
    model.loss(labelled(tokens[:, :4], tokens[:, 1:])).loss.backward()
    weights = [name for name, _ in model.named_parameters() if name.endswith("weight") and "layers" not in name]
    assert len(weights) == (2 if is_tied else 3)
    gradient = model.loss_part.table.weight.grad
    # without the embedding's part the sum over classes of a softmax's gradient, sum(p) - 1 times the query, is zero
    assert bool((gradient.sum(0).abs() < 1e-6).all()) == (not is_tied)


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.All(9),
        samplers.LogUniform(9, shared=False, replacement=True),
        samplers.Unigram(torch.arange(1.0, 10.0), distortion=0.75),
        samplers.LearnedUnigram(9),
        samplers.TwoLevel(9, 4, block_size=3),
        samplers.TwoLevel(
            9, 4, mass=samplers.FeatureMass(kernels.RandomFourier(4, 8, 2.0, "orthogonal", 3)), blocks="ids"
        ),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_sampler_is_saved_with_the_law_it_had(sampler: samplers.Sampler, tmp_path: Path) -> None:
    num_sampled = 9 if isinstance(sampler, samplers.All) else 3
    table = ClassTable(9, 4, is_normalised=True, temperature=getattr(sampler, "temperature", 1.0))
    classes = ClassTableLoss(table, "sampled_softmax", sampler, num_sampled)
    model = language_model(classes)
    tokens = torch.randint(9, (2, 6))
    model.loss(labelled(tokens[:, :5], tokens[:, 1:]))
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    queries, targets = F.normalize(torch.randn(5, 4), dim=1), torch.arange(5)
    drawn = [
        each.loss_part.sampler.eval().sample(queries, num_sampled, targets, "remove", torch.Generator().manual_seed(0))
        for each in (model, again)
    ]
    for first, second in zip(*drawn, strict=True):
        assert torch.equal(first, second)


def test_the_sampler_sees_the_table_as_often_as_asked() -> None:
    sampler = SoftmaxSampler(9, 4)
    classes = ClassTableLoss(ClassTable(9, 4), "sampled_softmax", sampler, num_sampled=3, refresh_every=2)
    queries, targets = torch.randn(5, 4), torch.arange(5)
    seen = []
    for _ in range(4):
        classes.row_losses(queries, targets)
        seen.append(torch.equal(sampler.embeddings, classes.table.weight))
        with torch.no_grad():
            classes.table.weight += 1
    assert seen == [True, False, True, False]
    classes.eval().row_losses(queries, targets)
    assert not torch.equal(sampler.embeddings, classes.table.weight)


@pytest.mark.parametrize("losses_per_step", [1, 2])
@pytest.mark.parametrize("refresh_every", [3, 100])
@pytest.mark.parametrize(
    "sampler",
    [
        lambda: SoftmaxSampler(90, 5),
        lambda: KernelTree(90, Quadratic(5)),
        lambda: samplers.TwoLevel(90, 5, blocks="ids", block_size=30),
    ],
)
def test_updates_between_keep_the_law_at_what_was_met(
    sampler: Callable[[], samplers.QuerySampler], refresh_every: int, losses_per_step: int
) -> None:
    """Trained where only what is met moves, biases too, it is the law of a sampler that has just seen the table."""
    table = ClassTable(90, 4, has_bias=True, has_sparse_gradients=True)
    options = {"num_sampled": 2, "refresh_every": refresh_every, "updates_between": True}
    classes = ClassTableLoss(table, "sampled_softmax", sampler(), **options)
    optimiser = torch.optim.SGD(table.parameters(), lr=0.5)
    classes.watch(optimiser)
    queries = torch.randn(3, 4)
    shown = F.pad(queries, (0, 1), value=1.0)
    generator = torch.Generator().manual_seed(0)
    laws = []
    for _ in range(6):
        optimiser.zero_grad()
        before = torch.cat([table.weight, table.bias[:, None]], dim=1).detach()
        for _ in range(losses_per_step):
            targets = torch.randperm(90, generator=generator)[:6].reshape(3, 2)
            classes.row_losses(queries, targets, generator).loss.backward()
        fresh = sampler()
        fresh.refresh(before)
        laws.append(classes.sampler.log_prob(shown))
        torch.testing.assert_close(laws[-1], fresh.log_prob(shown), atol=0.02, rtol=0)  # bfloat16, and its drift
        optimiser.step()
        after = torch.cat([table.weight, table.bias[:, None]], dim=1).detach()
        has_moved = (after != before).any(1)
        assert bool((classes.is_met >= has_moved).all())
        assert int(classes.is_met.sum()) <= losses_per_step * 3 * (2 + 2)
    assert (laws[0] - laws[-1]).abs().max() > 0.5
    state = {name: value.clone() for name, value in classes.state_dict().items()}
    classes.eval().row_losses(queries, torch.tensor([0, 1, 2]), generator)
    assert all(torch.equal(value, state[name]) for name, value in classes.state_dict().items())


def test_an_update_follows_the_optimiser_not_the_last_targets() -> None:
    """A step moves the classes of the first loss of two, not those of the second, whose gradients are zero."""
    table = ClassTable(90, 4, has_sparse_gradients=True)
    options: dict[str, Any] = {"num_sampled": 2, "refresh_every": 100, "updates_between": True}
    classes = ClassTableLoss(table, "sampled_softmax", SoftmaxSampler(90, 4), **options)
    optimiser = torch.optim.SGD(table.parameters(), lr=5.0)
    queries, first, second = torch.randn(3, 4), torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    refuses(r"call `loss.watch\(optimiser\)` before training", classes.row_losses, queries, first)
    classes.watch(optimiser)
    classes.row_losses(queries, first).loss.backward()
    (0 * classes.row_losses(queries, second).loss).backward()
    before = classes.sampler.log_prob(queries)
    classes.row_losses(queries, second)  # without a step, what was met is kept
    assert bool(classes.is_met[first].all())
    torch.testing.assert_close(classes.sampler.log_prob(queries), before, atol=0, rtol=0)
    optimiser.step()
    classes.row_losses(queries, second)
    fresh = SoftmaxSampler(90, 4)
    fresh.refresh(table.vectors().detach())
    assert (fresh.log_prob(queries) - before).abs().max() > 0.5
    torch.testing.assert_close(classes.sampler.log_prob(queries), fresh.log_prob(queries), atol=0.02, rtol=0)


def test_refusals() -> None:
    classes = ClassTableLoss(ClassTable(9, 4), "full_softmax")
    with pytest.raises(ValueError, match="TokenEncoder gives sequences, but PixelCNN takes grids"):
        CPC(TokenEncoder(9, 4), PixelCNN(width=6), Bilinear(num_steps=1), classes)
    model = language_model(classes)
    x = torch.zeros(1, 3, dtype=torch.long)
    refuses("1 steps ahead: the number of labels=0 must be at least 3", model.loss, x)
    refuses("='mixed' is not one of full_softmax", model.loss, labelled(x, x), measure=EvalProtocol("mixed", None))
