"""The scores of rows against `contrast`, which is itself tested against the loops."""

import pytest
import torch
from torch import Tensor

from cpc.bounds import VectorAR1, optimal_bound_nats
from cpc.bounds.estimates import pooled
from cpc.bounds.estimators import info_nce
from cpc.bounds.sequences import scored_rows
from cpc.candidates import STRATEGIES
from cpc.losses import contrast
from cpc.losses.candidate_sets import Sequences

NUM_VALID, IDS, GROUPS = (torch.tensor(values) for values in ([6, 2, 5, 4], [0, 1, 2, 2], [0, 0, 1, 1]))
SEQUENCES, WHOLE = Sequences(NUM_VALID, IDS, GROUPS), Sequences.of((4, 6))


@pytest.fixture
def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, 6, 5, generator=generator), torch.randn(4, 6, 5, generator=generator)


@pytest.mark.parametrize("steps", [(1, 2, 3), (2, 3, 4), (1, 2, 5)])
@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "same_speaker_excluding"])
def test_info_nce_of_the_rows_is_the_losss(batch: tuple[Tensor, Tensor], strategy: str, steps: tuple[int, ...]) -> None:
    options = {"strategy": strategy, "steps": steps}
    expected = contrast(*batch, **options, **SEQUENCES._asdict())
    estimates: dict[int, list] = {}
    for place, rows in scored_rows(*batch, SEQUENCES, **options):
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
    drawn = list(scored_rows(queries, latents, WHOLE, strategy="mixed", num_negatives=5, generator=generator))
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
    for _, rows in scored_rows(*batch, SEQUENCES, num_negatives=num_negatives, generator=generator, **options):
        for i, positive in enumerate(rows.positives.tolist()):
            read, kept = ({int(IDS[n // 6]) for n in each[i].nonzero()} for each in (rows.candidates, rows.baseline))
            assert len(read) == len(kept) == 1
            assert not read & kept
            assert int(IDS[positive // 6]) not in read | kept


def test_a_baseline_needs_two_other_sequences(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="half of the sequences with candidates, and there are only 1"):
        next(scored_rows(*batch, WHOLE._replace(sequence_id=IDS // 2), strategy="mixed_excluding", has_baseline=True))


def test_a_strategy_without_negatives_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="same_speaker_excluding"):
        next(scored_rows(*batch, SEQUENCES, strategy="same_speaker_excluding"))


@pytest.mark.usefixtures("unchecked_types")  # of 1290 equal calls
def test_the_exact_critic_reads_the_optimum_of_its_distinct_draws() -> None:
    """2 nats, 16 draws of 256 latents: what N candidates can show (to 0.06 nats in 20 dimensions)."""
    coefficient, generator = 0.4258, torch.Generator().manual_seed(0)
    process, readings, num_candidates, num_rows = VectorAR1(coefficient, 20), [], 0, 0
    x_factor, square_factor = coefficient / (1 - coefficient**2), -(coefficient**2) / (2 - 2 * coefficient**2)
    for _ in range(10):
        x = process.sample(129, 2, generator)
        square = x.square().sum(-1, keepdim=True)
        queries = torch.cat([x_factor * x, torch.full_like(square, square_factor)], -1)[None]
        options = {"strategy": "mixed_excluding", "num_negatives": 16, "generator": generator}
        rows = [rows for _, rows in scored_rows(queries, torch.cat([x, square], -1), Sequences.of((129, 2)), **options)]
        readings.append(pooled([info_nce(*each[:3]) for each in rows]).nats)
        num_candidates, num_rows = num_candidates + sum(each.num_candidates for each in rows), num_rows + len(rows)
    nats = torch.stack(readings)
    assert 16 < num_candidates / num_rows < 17
    expected = optimal_bound_nats(process.mutual_information_nats(1), num_candidates / num_rows)
    assert nats.mean().item() == pytest.approx(expected + 0.03, abs=0.04 + 3 * nats.std().item() / 10**0.5)
