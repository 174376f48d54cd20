"""The scores of rows against `contrast`, which is itself tested against the loops."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from einops import rearrange
from oracles import exact_critic
from refusals import refuses
from torch import Tensor

from cpc.bounds import VectorAR1, optimal_bound_nats
from cpc.bounds.estimates import pooled
from cpc.bounds.estimators import info_nce, interpolated, tuba
from cpc.bounds.sequences import ScoredRows, mean_baseline, scored_rows, split_by_sequence
from cpc.bounds.tasks import make_task
from cpc.candidates import STRATEGIES
from cpc.losses import contrast
from cpc.losses.candidate_sets import plan
from cpc.losses.sequences import Geometry, Sequences

NUM_VALID, IDS, GROUPS = (torch.tensor(values) for values in ([6, 2, 5, 4], [0, 1, 2, 2], [0, 0, 1, 1]))
GEOMETRY = Geometry((6,), ("",), (1, 2, 3))
SEQUENCES, WHOLE = Sequences(GEOMETRY, NUM_VALID, IDS, GROUPS), Sequences.of(GEOMETRY, 4)


def scored(
    queries: Tensor, latents: Tensor, sequences: Sequences, strategy: str, has_baseline: bool = False, **options: Any
) -> Iterator[tuple[int, ScoredRows]]:
    ids = sequences.ids if has_baseline else None
    flat = rearrange(queries, "k b t d -> (b t k) d"), rearrange(latents, "b t d -> (b t) d")
    return scored_rows(*flat, plan(strategy, sequences)[0], ids, **options)


@pytest.fixture
def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, 6, 5, generator=generator), torch.randn(4, 6, 5, generator=generator)


@pytest.mark.parametrize("steps", [(1, 2, 3), (2, 3, 4), (1, 2, 5)])
@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "same_speaker_excluding"])
def test_info_nce_of_the_rows_is_the_losss(batch: tuple[Tensor, Tensor], strategy: str, steps: tuple[int, ...]) -> None:
    ids = {"num_latents": NUM_VALID, "sequence_id": IDS, "group_id": GROUPS}
    expected = contrast(*batch, strategy=strategy, steps=steps, **ids)
    estimates: dict[int, list] = {}
    sequences = SEQUENCES._replace(geometry=GEOMETRY._replace(distances=steps))
    for place, rows in scored(*batch, sequences, strategy=strategy):
        estimates.setdefault(place, []).append(info_nce(*rows[:3]))
    for place, readings in estimates.items():
        reading = pooled(readings)
        assert len(reading.joint_nats) == expected.num_rows[place].sum()
        gap = (expected.log_num_candidates - expected.loss_nats)[place].sum() / expected.num_rows[place].sum()
        assert reading.nats.item() == pytest.approx(gap.item(), abs=1e-5)
    assert set(estimates) == {place for place in range(3) if expected.num_rows[place].sum() > 0}


def test_drawn_negatives_count_once_and_are_never_the_positive(batch: tuple[Tensor, Tensor]) -> None:
    queries, latents = batch
    generator = torch.Generator().manual_seed(0)
    drawn = list(scored(queries, latents, WHOLE, strategy="mixed", num_negatives=5, generator=generator))
    flat = latents.reshape(-1, 5).double()
    assert len(drawn) == 3 * 4
    counts = []
    for number, (place, rows) in enumerate(drawn):
        b, num_rows = number % 4, 6 - place - 1
        assert torch.allclose(rows.scores, queries[place, b, :num_rows].double() @ flat.T)
        assert rows.positives.tolist() == [b * 6 + place + 1 + t for t in range(num_rows)]
        assert not rows.candidates[torch.arange(num_rows), rows.positives].any()
        assert not rows.baseline.any()
        counts += rows.candidates.sum(1).tolist()
    assert min(counts) < max(counts) == 5


@pytest.mark.parametrize("num_negatives", [None, 9])
def test_no_sequence_is_read_and_in_the_baseline(batch: tuple[Tensor, Tensor], num_negatives: int | None) -> None:
    """Sequences 2 and 3 are windows of one file: three files, two others for each row."""
    generator = torch.Generator().manual_seed(0)
    options = {"strategy": "mixed_excluding", "has_baseline": True}
    for _, rows in scored(*batch, SEQUENCES, num_negatives=num_negatives, generator=generator, **options):
        for i, positive in enumerate(rows.positives.tolist()):
            read, kept = ({int(IDS[n // 6]) for n in each[i].nonzero()} for each in (rows.candidates, rows.baseline))
            assert len(read) == len(kept) == 1
            assert not read & kept
            assert int(IDS[positive // 6]) not in read | kept


def test_a_baseline_needs_two_other_sequences(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="other sequences=1 must be at least 2"):
        next(scored(*batch, WHOLE._replace(sequence_id=IDS // 2), strategy="mixed_excluding", has_baseline=True))


def test_a_strategy_without_negatives_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    refuses("same_speaker_excluding", scored, *batch, SEQUENCES, strategy="same_speaker_excluding")


@pytest.mark.usefixtures("unchecked_types")  # of 1290 equal calls
def test_the_exact_critic_reads_the_optimum_of_its_distinct_draws() -> None:
    """2 nats, 16 draws of 256 latents: what N candidates can show (to 0.06 nats in 20 dimensions)."""
    generator = torch.Generator().manual_seed(0)
    process, readings, num_candidates, num_rows = VectorAR1(0.4258, 20), [], 0, 0
    sequences = Sequences.of(Geometry((2,), ("",), (1,)), 129)
    for _ in range(10):
        queries, latents = exact_critic(process, process.sample(129, 2, generator))
        options = {"strategy": "mixed_excluding", "num_negatives": 16, "generator": generator}
        rows = [rows for _, rows in scored(queries[None], latents, sequences, **options)]
        readings.append(pooled([info_nce(*each[:3]) for each in rows]).nats)
        num_candidates, num_rows = num_candidates + sum(each.num_candidates for each in rows), num_rows + len(rows)
    nats = torch.stack(readings)
    assert 16 < num_candidates / num_rows < 17
    expected = optimal_bound_nats(process.mutual_information_nats(1), num_candidates / num_rows)
    assert nats.mean().item() == pytest.approx(expected + 0.03, abs=0.04 + 3 * nats.std().item() / 10**0.5)


def test_the_mean_over_columns_against_a_loop(generator: torch.Generator) -> None:
    scores = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    columns = torch.rand(4, 7, generator=generator) < 0.5
    columns[:, 0] = True
    found = mean_baseline(scores, columns)
    for i in range(4):
        chosen = [math.exp(scores[i, j]) for j in range(7) if columns[i, j]]
        assert found[i].item() == pytest.approx(math.log(sum(chosen) / len(chosen)))


def test_sequences_are_parted_whole() -> None:
    ids = torch.tensor([4, 4, 1, 9, 9, 7])
    pool = torch.tensor([[True, False, True, True, True, True], [True, True, False, True, False, False]])
    first, second = split_by_sequence(pool, ids)
    assert first.tolist() == [[True, False, True, False, False, False], [True, True, False, False, False, False]]
    assert second.tolist() == [[False, False, False, True, True, True], [False, False, False, True, False, False]]
    refuses("other sequences=1 must be at least 2", split_by_sequence, pool[:, :2], ids[:2])


def test_a_critic_that_lost_its_rows_constants_reads_a_lower_bound(generator: torch.Generator) -> None:
    """The exact critic plus noise of the row's own: TUBA with a baseline of 1 falls apart, this one stays near I."""
    task, readings = make_task("gaussian", 1.0, 2), []
    pool = ~torch.eye(128, dtype=torch.bool)
    first, second = split_by_sequence(pool, torch.arange(128))
    for _ in range(200):
        scores = task.log_density_ratio(*task.sample(128, generator))
        scores = scores + 3 * torch.randn(128, 1, generator=generator, dtype=torch.float64)
        readings.append(tuba(scores, candidates=second, log_baseline=mean_baseline(scores, first)).nats)
    readings = torch.stack(readings)
    standard_error = readings.std() / 200**0.5
    assert readings.mean() < 1 + 3 * standard_error
    assert readings.mean() > 0.85
    assert tuba(scores, log_baseline=torch.zeros(128).double()).nats < -10


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("read", [tuba, interpolated])
def test_many_draws_of_a_small_pool_stay_below_the_truth(read: object) -> None:
    """6 nats, 64 latents of other sequences, 2000 draws: parted after the draw, TUBA read a nat more than there is."""
    process, generator, readings = VectorAR1(0.6717, 20), torch.Generator().manual_seed(0), []
    planned, _ = plan("mixed_excluding", Sequences.of(Geometry((2,), ("",), (1,)), 33))
    for _ in range(20):
        flat = (each.flatten(0, 1) for each in exact_critic(process, process.sample(33, 2, generator)))
        found = scored_rows(*flat, planned, torch.arange(33), num_negatives=2000, generator=generator)
        rows = [rows for _, rows in found]
        row_queries = [read(*each[:3], log_baseline=mean_baseline(each.scores, each.baseline)).nats for each in rows]
        readings.append(torch.stack(row_queries).mean())
    readings = torch.stack(readings)
    assert readings.mean() < process.mutual_information_nats(1) + 3 * readings.std() / 20**0.5
