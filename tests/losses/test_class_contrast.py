"""Every step's class, against loops over rows."""

import math
from unittest.mock import patch

import pytest
import torch
from refusals import refuses

from benchmarks.extreme.softmax import SoftmaxSampler
from cpc.bounds import BoundTally
from cpc.candidates.class_table import ClassTable
from cpc.losses import ClassTableLoss, ContrastiveOutput
from cpc.predictors import Output, Step


def contrast_of(
    classes: ClassTableLoss,
    queries: torch.Tensor,
    labels: torch.Tensor,
    num_latents: list[int] | None = None,
    steps: tuple[int, ...] | None = None,
) -> ContrastiveOutput:
    contexts = torch.zeros(*queries.shape[1:3], 1)
    lengths = None if num_latents is None else torch.tensor(num_latents)
    output = Output(contexts, contexts, {"": queries}, None, steps=steps)
    return classes(output, classes.sequences(output, lengths, labels=labels))


def rows_of(queries: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, ahead: list[int], lengths: list[int]):
    steps = []
    for step, k in enumerate(ahead):
        rows = []
        for b in range(queries.shape[1]):
            for t in range(lengths[b]):
                label = int(labels[b, t + k - 1])
                if label >= 0:
                    scores = [float(queries[step, b, t].double() @ each.double()) for each in weight]
                    rows.append((b, math.log(sum(map(math.exp, scores))) - scores[label]))
        steps.append(rows)
    return steps


@pytest.mark.parametrize("ahead", [[1], [1, 2, 3], [2, 3], [1, 4, 9], [3, 7]])
def test_the_full_softmax_is_that_of_loops(ahead: list[int], generator: torch.Generator) -> None:
    queries = torch.randn(len(ahead), 3, 6, 5, generator=generator, requires_grad=True)
    labels = torch.randint(11, (3, 6 + ahead[-1] - 1), generator=generator)
    labels[1, 4] = -100
    num_latents = [6, 5, 2]
    classes = ClassTableLoss(ClassTable(11, 5), "full_softmax", skip_steps=ahead[0] - 1)
    found = contrast_of(classes, queries, labels, num_latents, tuple(k - ahead[0] + 1 for k in ahead))
    steps = rows_of(queries.detach(), labels, classes.table.weight.detach(), ahead, num_latents)
    for step, rows in enumerate(steps):
        for b in range(3):
            of_sequence = [loss for sequence, loss in rows if sequence == b]
            assert int(found.num_rows[step, b]) == len(of_sequence)
            assert float(found.loss_nats[step, b]) == pytest.approx(sum(of_sequence), rel=1e-5)
            assert float(found.log_num_candidates[step, b]) == pytest.approx(len(of_sequence) * math.log(11), rel=1e-5)
    mean = sum(sum(loss for _, loss in rows) / len(rows) for rows in steps) / len(steps)
    assert found.loss.item() == pytest.approx(mean, rel=1e-5)
    found.loss.backward()
    assert classes.table.weight.grad is not None
    assert bool((queries.grad[:, 2, 2:] == 0).all())  # padding


def test_a_step_without_rows_is_left_out() -> None:
    queries = torch.zeros(2, 1, 3, 4)
    labels = torch.tensor([[1, -100, -100, -100]])
    classes = ClassTableLoss(ClassTable(5, 4), "full_softmax")
    found = contrast_of(classes, queries, labels)
    assert found.num_rows.tolist() == [[1], [0]]
    assert found.loss.item() == pytest.approx(math.log(5))
    refuses("no latent .* is followed by a known class", contrast_of, classes, queries, torch.full((1, 4), -100))
    refuses("num_latents=4 must count latents, from 0 to 3", contrast_of, classes, queries, labels, [4])
    refuses("the number of labels=3 must be at least 4", contrast_of, classes, queries, labels[:, :3])


def test_all_steps_ahead_see_one_refresh_of_the_table() -> None:
    sampler = SoftmaxSampler(5, 4)
    classes = ClassTableLoss(ClassTable(5, 4), "sampled_softmax", sampler, 2)
    with patch.object(sampler, "refresh", wraps=sampler.refresh) as refresh:
        for _ in range(2):
            contrast_of(classes, torch.randn(3, 1, 3, 4), torch.tensor([[1, 2, 0, 3, 4]]))
    assert refresh.call_count == 2
    assert int(classes.num_losses) == 2


def test_against_the_entropy_a_bound_does_not_count_frequencies() -> None:
    # the model knows the frequencies of its classes and nothing else
    shares = torch.tensor([0.5, 0.25, 0.125, 0.125])
    table = ClassTable(4, 1)
    with torch.no_grad():
        table.weight.copy_(shares.log()[:, None])
    labels = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 3]])
    found = contrast_of(ClassTableLoss(table, "full_softmax"), torch.ones(1, 1, 8, 1), labels)
    tally = BoundTally([Step("", 1)])
    tally.update(found)
    bound = tally.compute("full_softmax", "valid")
    entropy = -float((shares * shares.log()).sum())
    assert bound.loss_nats[0] == pytest.approx(entropy)
    assert bound.perplexity[0] == pytest.approx(math.exp(entropy))
    assert bound.mi_bound_nats[0] == pytest.approx(math.log(4) - entropy)
    certified = bound.against_entropy(entropy)
    assert certified.mi_bound_nats[0] == pytest.approx(0, abs=1e-6)
    assert certified.mi_ceiling_nats[0] == pytest.approx(entropy)
    record = certified.record(3)
    assert record["perplexity"] == pytest.approx([math.exp(entropy)])
    assert record["biased"] == [False]
    assert record["reading"].startswith("entropy of the classes - cross-entropy")
    assert "perplexity" not in tally.compute("nce", "train").record(3)
    assert "not a bound" in tally.compute("nce", "train").reading
