"""The scores of rows against `contrast`, which is itself tested against the loops."""

import pytest
import torch
from torch import Tensor

from cpc.bounds.estimators import info_nce, pooled
from cpc.bounds.sequences import scored_rows
from cpc.candidates import STRATEGIES
from cpc.losses import contrast

NUM_VALID, IDS, GROUPS = (torch.tensor(values) for values in ([6, 2, 5, 4], [0, 1, 2, 2], [0, 0, 1, 1]))


@pytest.fixture
def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, 6, 5, generator=generator), torch.randn(4, 6, 5, generator=generator)


@pytest.mark.parametrize("skip_steps", [0, 1])
@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "same_speaker_excluding"])
def test_info_nce_of_the_rows_is_the_losss(batch: tuple[Tensor, Tensor], strategy: str, skip_steps: int) -> None:
    options = {"strategy": strategy, "skip_steps": skip_steps}
    options |= {"num_valid": NUM_VALID, "sequence_id": IDS, "group_id": GROUPS}
    expected = contrast(*batch, **options)
    of_steps: dict[int, list] = {}
    for place, rows in scored_rows(*batch, **options):
        of_steps.setdefault(place, []).append(info_nce(*rows))
    for place, readings in of_steps.items():
        reading = pooled(readings)
        assert len(reading.joint_nats) == expected.num_rows[place].sum()
        gap = (expected.log_num_candidates - expected.loss_nats)[place].sum() / expected.num_rows[place].sum()
        assert reading.nats.item() == pytest.approx(gap.item(), abs=1e-5)
    assert set(of_steps) == {place for place in range(3) if expected.num_rows[place].sum() > 0}


def test_drawn_negatives_come_behind_the_positive_and_are_never_it(batch: tuple[Tensor, Tensor]) -> None:
    queries, latents = batch
    generator = torch.Generator().manual_seed(0)
    rows = list(scored_rows(queries, latents, strategy="mixed", num_negatives=50, generator=generator))
    assert len(rows) == 3 * 4
    for number, (place, (scores, positives, candidates)) in enumerate(rows):
        b, num_rows = number % 4, 6 - place - 1
        assert scores.shape == candidates.shape == (num_rows, 51)
        assert candidates.all()
        assert not positives.any()
        own = (queries[place, b, :num_rows].double() * latents[b, place + 1 :].double()).sum(1)
        assert torch.allclose(scores[:, 0], own)
        assert not (scores[:, 1:] == scores[:, :1]).any()


def test_a_strategy_without_negatives_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="same_speaker_excluding"):
        next(scored_rows(*batch, strategy="same_speaker_excluding", sequence_id=IDS, group_id=GROUPS))
