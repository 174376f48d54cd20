import math

import pytest
import torch

from cpc.bounds import BoundTally
from cpc.losses import ContrastiveOutput, contrast


def a_contrast(num_sequences: int, seed: int, num_latents: int = 6) -> ContrastiveOutput:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(2, num_sequences, 6, 4, generator=generator)
    latents = torch.randn(num_sequences, 6, 4, generator=generator)
    return contrast(queries, latents, num_latents=torch.full((num_sequences,), num_latents))


def test_ragged_batches_weigh_their_rows() -> None:
    """The mean over all rows, not the mean of batch means (facts T11)."""
    batches = [a_contrast(4, 0), a_contrast(2, 1, num_latents=3)]
    tally = BoundTally()
    for batch in batches:
        tally.update(batch)
    bound = tally.compute("mixed", "valid")
    for k in range(2):
        rows = sum(b.num_rows[k].sum().item() for b in batches)
        loss = sum(b.loss_nats[k].sum().item() for b in batches) / rows
        log_n = sum(b.log_num_candidates[k].sum().item() for b in batches) / rows
        assert bound.num_rows[k] == rows
        assert bound.loss_nats[k] == pytest.approx(loss)
        assert bound.mi_bound_nats[k] == pytest.approx(log_n - loss)
        assert bound.mi_ceiling_nats[k] == pytest.approx(log_n)


def test_standard_error_is_that_of_independent_batches(generator: torch.Generator) -> None:
    """Spread of the estimate over 400 repetitions against what each claims: the rows of a batch err together."""
    size = (400, 24, 1, 2)  # repetitions, batches, steps, sequences
    rows = torch.randint(1, 9, size, generator=generator).double()
    batch_effect = torch.randn(400, 24, 1, 1, generator=generator, dtype=torch.float64)
    gap = rows * (0.7 + batch_effect) + rows.sqrt() * torch.randn(size, generator=generator, dtype=torch.float64)
    log_n = rows * math.log(12)
    estimates, claimed = [], []
    for sums in torch.stack([rows, log_n - gap, log_n, 12 * rows, rows, 0 * rows], 2):
        tally = BoundTally()
        for batch in sums:
            tally.update(ContrastiveOutput(batch.sum(), *batch))
        bound = tally.compute("mixed", "valid")
        estimates.append(bound.mi_bound_nats[0])
        claimed.append(bound.standard_error_nats[0])
    assert torch.tensor(claimed).mean().item() == pytest.approx(torch.tensor(estimates).std().item(), rel=0.15)


def test_only_batches_with_rows_are_units() -> None:
    """k = 2 has rows in two batches of four, then in one of three: two units, then none to tell an error from."""
    short = [a_contrast(4, seed, num_latents=2) for seed in (2, 3)]
    tally, two_batches = BoundTally(), BoundTally()
    for batch in (a_contrast(4, 0), a_contrast(4, 1)):
        two_batches.update(batch)
        tally.update(batch)
    for batch in short:
        tally.update(batch)
    expected = two_batches.compute("mixed", "valid").standard_error_nats[1]
    assert tally.compute("mixed", "valid").standard_error_nats[1] == pytest.approx(expected, rel=1e-9)
    single = BoundTally()
    for batch in (a_contrast(4, 0), *short):
        single.update(batch)
    errors = single.compute("mixed", "valid").standard_error_nats
    assert errors[0] > 0
    assert math.isnan(errors[1])


def test_a_step_without_rows_is_null_in_the_record() -> None:
    tally = BoundTally()
    tally.update(a_contrast(4, 0, num_latents=2))
    bound = tally.compute("mixed", "valid")
    record = bound.record(step=7)
    assert record["schema"] == 1
    assert record["step"] == 7
    assert record["loss_nats"][1] is None
    assert record["num_rows"] == [4, 0]
    assert bound.mean("mi_bound_nats") == bound.mi_bound_nats[0]


def test_saturation_is_flagged_within_three_tenths_of_the_ceiling() -> None:
    latents = torch.eye(12).reshape(2, 6, 12)
    queries = torch.stack([scale * latents.roll(-k, 1) for k, scale in ((1, 20.0), (2, 1.0))])
    tally = BoundTally()
    tally.update(contrast(queries, latents))
    assert tally.compute("mixed", "valid").saturated == [True, False]


def test_nothing_added_is_named() -> None:
    with pytest.raises(ValueError, match="number of batches of 'valid'=0 must be"):
        BoundTally().compute("mixed", "valid")
