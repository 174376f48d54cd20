"""The queue of past latents, against a plain list; and the contrast with it, against loops over what is in the list."""

import math
from typing import NamedTuple

import pytest
import torch
from oracles import is_allowed

from cpc.bounds import BoundTally
from cpc.candidates import STRATEGIES, LatentQueue, Past, reading_of
from cpc.losses import Contrast, contrast

K, B, T, D = 2, 4, 5, 3
IDS, GROUPS = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 0, 0])


class Entry(NamedTuple):
    latent: list[float]
    sequence: int
    group: int
    push: int


def batches(num: int, dtype: torch.dtype = torch.float64) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Latents, sequences and how many latents are signal, of successive steps; files come again."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(B, T, D, generator=generator, dtype=dtype),
            torch.randint(6, (B,), generator=generator),
            torch.randint(2, T + 1, (B,), generator=generator),
        )
        for _ in range(num)
    ]


def filled(size: int, num_pushes: int) -> tuple[LatentQueue, list[Entry]]:
    queue, entries = LatentQueue(size, D).double(), []
    for push, (latents, ids, num_valid) in enumerate(batches(num_pushes)):
        queue.push(latents, ids, ids % 2, num_valid)
        for b in range(B):
            sequence = int(ids[b])
            entries += [Entry(latents[b, t].tolist(), sequence, sequence % 2, push) for t in range(int(num_valid[b]))]
    return queue, entries[-size:]


@pytest.mark.parametrize("size", [1, 7, 31, 1000])
@pytest.mark.parametrize("num_pushes", [0, 1, 3, 8])
def test_it_holds_the_last_latents_in_first_in_first_out(size: int, num_pushes: int) -> None:
    queue, entries = filled(size, num_pushes)
    past = queue.past()
    assert queue.num_stored == len(entries)
    found = [Entry(*row) for row in zip(*(column.tolist() for column in past), strict=True)]
    expected = [entry._replace(push=num_pushes - entry.push) for entry in entries]  # their age
    assert sorted(found) == sorted(expected)
    assert queue.max_age == max((entry.push for entry in expected), default=0)


def test_grids_and_single_latents_are_stored_with_their_owners() -> None:
    queue = LatentQueue(100, 1)
    queue.push(torch.arange(8.0).reshape(2, 2, 2, 1), torch.tensor([5, 6]))
    queue.push(torch.tensor([[8.0], [9.0]]), torch.tensor([7, 8]), torch.tensor([1, 2]))
    past = queue.past()
    assert past.latents[:, 0].tolist() == list(range(10))
    assert past.sequence_id.tolist() == [5] * 4 + [6] * 4 + [7, 8]
    assert past.group_id.tolist() == [-1] * 8 + [1, 2]
    assert past.age.tolist() == [2] * 8 + [1, 1]


def test_stored_latents_are_cut_off_from_their_encoder() -> None:
    weight = torch.ones(D, requires_grad=True)
    queue = LatentQueue(4, D)
    queue.push(torch.ones(2, 1, D) * weight, torch.tensor([0, 1]))
    assert not queue.past().latents.requires_grad


def test_a_restored_queue_goes_on_bit_for_bit() -> None:
    queue, _ = filled(31, 3)
    restored = LatentQueue(31, D).double()
    restored.load_state_dict({name: value.clone() for name, value in queue.state_dict().items()})
    for each in (queue, restored):
        for latents, ids, num_valid in batches(7)[3:]:
            each.push(latents, ids, ids % 2, num_valid)
    for found, expected in zip(restored.past(), queue.past(), strict=True):
        assert torch.equal(found, expected)


def contrasted(strategy: str, past: Past | None, **options: object) -> tuple[Contrast, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    queries, latents = torch.randn(K, B, T, D, generator=generator), torch.randn(B, T, D, generator=generator)
    return (
        contrast(queries, latents, strategy=strategy, sequence_id=IDS, group_id=GROUPS, past=past, **options),
        queries.double(),
        latents.double(),
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_contrast_equals_a_loop_over_batch_and_queue(strategy: str) -> None:
    queue, entries = filled(31, 3)
    result, queries, latents = contrasted(strategy, queue.float().past())
    ids, groups = IDS.tolist(), GROUPS.tolist()
    met_own = met_others = 0
    for k in range(1, K + 1):
        for b in range(B):
            others = []
            for entry in entries:
                both = [ids[b], entry.sequence], [groups[b], entry.group]
                is_own = ids[b] == entry.sequence
                met_own += is_own
                if is_allowed(strategy, 0, 1, *both) and not is_own:
                    others.append(torch.tensor(entry.latent, dtype=torch.float64))
                    met_others += 1
            losses = []
            for t in range(T - k):
                query = queries[k - 1, b, t]
                candidates = [
                    latents[c, s]
                    for c in range(B)
                    for s in range(T)
                    if is_allowed(strategy, b, c, ids, groups) and (c, s) != (b, t + k)
                ]
                scores = [float(query @ z) for z in (latents[b, t + k], *candidates, *others)]
                losses.append(math.log(sum(math.exp(score) for score in scores)) - scores[0])
            assert result.num_candidates[k - 1, b] == len(scores) * (T - k)
            assert result.loss_nats[k - 1, b].item() == pytest.approx(sum(losses), rel=1e-5)
    assert met_own > 0
    assert (met_others > 0) == (strategy != "sequence_only")


def test_negatives_are_drawn_from_the_queue_too_but_never_from_ones_own_past() -> None:
    queue = LatentQueue(4, D)
    queue.push(1e4 * torch.ones(4, D), torch.tensor([0, 0, 2, 2]))
    result = contrast(
        torch.ones(1, 3, T, D),
        torch.zeros(3, T, D),
        sequence_id=torch.tensor([0, 1, 2]),
        strategy="mixed_excluding",
        num_negatives=40,
        past=queue.past(),
        generator=torch.Generator().manual_seed(0),
    )
    assert result.num_candidates[0].tolist() == [41 * (T - 1)] * 3
    assert (result.loss_nats[0] > 1e4).all()
    own = LatentQueue(4, D)
    own.push(1e4 * torch.ones(4, D), torch.tensor([1, 1, 1, 1]))
    result = contrast(
        torch.ones(1, 3, T, D), torch.zeros(3, T, D), sequence_id=torch.tensor([0, 1, 2]), past=own.past()
    )
    assert result.loss_nats[0, 1].item() == pytest.approx(4 * math.log(3 * T))
    assert result.loss_nats[0, 0] > 1e4


def test_an_encoder_in_motion_reads_information_where_there_is_none() -> None:
    """z of now ~ N(1, 1), of then ~ N(0, 1), and c tells nothing: q = 1 scores by the log density ratio of the two.

    log N - L tends to E[z] - log E[exp z] = 1 - log((20000 exp(1/2) + 500 exp(3/2)) / 20500) = 0.459 nats.
    """
    generator = torch.Generator().manual_seed(0)
    queue, tally = LatentQueue(20000, 1), BoundTally()
    queue.push(torch.randn(20000, 1, generator=generator), torch.arange(100, 20100))
    latents = 1 + torch.randn(2, 500, 1, generator=generator)
    ids = torch.arange(2)
    tally.update(
        contrast(torch.ones(1, 2, 500, 1), latents, strategy="mixed_excluding", sequence_id=ids, past=queue.past())
    )
    bound = tally.compute("mixed_excluding", "train", max_age_steps=queue.max_age)
    assert bound.mi_bound_nats[0] == pytest.approx(0.459, abs=0.1)  # 998 positives of variance 1
    assert not bound.is_bound
    assert bound.record(7)["reading"] == "candidates up to 1 steps old, no bound on I(z; c)"
    assert bound.record(7)["max_age_steps"] == 1
    assert reading_of("mixed_excluding").startswith("lower bound")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LatentQueue(0, 3), "size=0, dim=3"),
        (lambda: LatentQueue(4, 3).push(torch.zeros(2, 5), torch.arange(2)), "5 channels, the queue has dim=3"),
        (
            lambda: LatentQueue(4, 3).push(torch.zeros(2, 2, 2, 3), torch.arange(2), num_valid=torch.ones(2).long()),
            r"not of \(2, 2, 2, 3\)",
        ),
        (
            lambda: LatentQueue(4, 3).push(torch.zeros(2, 2, 3), torch.arange(2), num_valid=torch.tensor([2, 3])),
            "num_valid=3 of 2 latents",
        ),
        (
            lambda: contrast(torch.zeros(1, 2, 4, 3), torch.zeros(2, 4, 3), past=LatentQueue(4, 3).past()),
            "past latents without sequence_id",
        ),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
