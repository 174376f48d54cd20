"""InfoNCE against a bank: loops in float64, enumerated draws, and what may be in memory at a time."""

import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cpc.losses.engine.partition as partition
from cpc.candidates import LatentBank
from cpc.candidates.samplers import Draw
from cpc.losses import bank_loss

M, N, D = 5, 23, 4
SEQUENCES = torch.arange(N) % 6
OWN = torch.tensor([0, 5, -1, 9, 2])  # nothing is left out for -1, and nobody is of sequence 9


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, LatentBank]:
    generator = torch.Generator().manual_seed(0)
    queries, positives, latents = (torch.randn(rows, D, generator=generator, dtype=dtype) for rows in (M, M, N))
    return queries, positives, LatentBank(latents, SEQUENCES)


def looped(
    queries: torch.Tensor, positives: torch.Tensor, bank: LatentBank, own: torch.Tensor | None
) -> list[tuple[float, int, float]]:
    rows = []
    for m in range(M):
        positive = float(queries[m] @ positives[m])
        met = [i for i in range(N) if own is None or own[m] < 0 or SEQUENCES[i] != own[m]]
        scores = [float(queries[m] @ bank.latents[i]) for i in met]
        loss = math.log(sum(math.exp(s) for s in [positive, *scores])) - positive
        rows.append((loss, 1 + len(scores), float(all(s < positive for s in scores))))
    return rows


@pytest.mark.parametrize("own", [None, OWN])
@pytest.mark.parametrize("tile", [(2, 3), (1024, 4096)])
def test_it_equals_a_loop(own: torch.Tensor | None, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "TILE_ROWS", tile[0])
    monkeypatch.setattr(partition, "TILE_LATENTS", tile[1])
    queries, positives, bank = inputs()
    result = bank_loss(queries, positives, bank, sequence_id=own)
    losses, counts, accuracies = zip(*looped(queries, positives, bank, own), strict=True)
    assert result.loss_nats.tolist() == pytest.approx(losses, rel=1e-12)
    assert result.num_candidates.tolist() == list(counts)
    assert result.accuracy.tolist() == list(accuracies)
    assert result.loss.item() == pytest.approx(sum(losses) / M, rel=1e-12)
    mi_nats = sum(math.log(n) - loss for loss, n in zip(losses, counts, strict=True)) / M
    assert result.mi_nats == pytest.approx(mi_nats, rel=1e-9)
    assert result.reading.startswith("lower bound on I(z; c), if")


@pytest.mark.usefixtures("unchecked_types")  # of hundreds of equal calls
def test_its_gradients_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "TILE_ROWS", 2)
    monkeypatch.setattr(partition, "TILE_LATENTS", 5)
    queries, positives, bank = inputs()
    temperature = torch.tensor(0.7, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, z, t: bank_loss(q, z, bank, sequence_id=OWN, temperature=t).loss,
        tuple(x.requires_grad_() for x in (queries, positives, temperature)),
    )
    assert not bank.latents.requires_grad


def test_the_exact_loss_is_float32_under_autocast() -> None:
    queries, positives, bank = inputs(torch.float32)
    expected = bank_loss(queries, positives, bank)
    with torch.autocast("cpu", torch.bfloat16):
        found = bank_loss(queries, positives, bank)
    assert torch.equal(found.loss_nats, expected.loss_nats)


def test_rows_that_met_nobody_are_no_reading() -> None:
    """Both draws of the first row are of its own sequence."""
    queries, positives, bank = inputs()
    ids = torch.arange(1, 2 * M + 1).reshape(M, 2)
    ids[0] = torch.tensor([0, 6])  # of sequence 0
    draw = Draw(ids, torch.full((M, 2), math.log(2 / N)), torch.zeros(M))
    found = bank_loss(queries, positives, bank, draw, sequence_id=OWN)
    assert found.num_negatives[0] == 0
    assert (found.num_negatives[1:] > 0).all()
    assert found.accuracy.isnan().tolist() == [True] + 4 * [False]
    rest = bank_loss(
        queries[1:],
        positives[1:],
        bank,
        Draw(ids[1:], *draw[1:])._replace(log_count_sampled=draw.log_count_sampled[1:]),
        sequence_id=OWN[1:],
    )
    assert found.mi_nats == pytest.approx(rest.mi_nats)
    assert "estimate from 2 draws (without 1 rows without a negative)" in found.reading
    alone = bank_loss(
        queries[:1], positives[:1], bank, Draw(ids[:1], torch.zeros(1, 2), torch.zeros(1)), sequence_id=OWN[:1]
    )
    with pytest.raises(ValueError, match="no row has a negative: all 2 draws"):
        _ = alone.mi_nats


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    num_elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, torch.Tensor) and not each._is_view():
                self.num_elements = max(self.num_elements, each.numel())
        return out


def test_the_exact_loss_holds_a_tile_of_scores_at_a_time() -> None:
    generator = torch.Generator().manual_seed(0)
    bank = LatentBank(torch.randn(9000, 2, generator=generator))
    queries = torch.randn(1500, 2, generator=generator).requires_grad_()
    with LargestTensor() as largest:
        bank_loss(queries, torch.zeros(1500, 2), bank).loss.backward()
    assert largest.num_elements == partition.TILE_ROWS * partition.TILE_LATENTS


def drawn(ids: torch.Tensor, probability: torch.Tensor) -> Draw:
    """With replacement from a law over the bank, kept whatever it hits."""
    log_count = (ids.shape[-1] * probability.double()).log()
    return Draw(ids, log_count[ids], torch.full((M,), torch.inf))


def total(loss_nats: torch.Tensor, queries: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
    """exp s+ + Z', which a loss has in its logarithm."""
    return (loss_nats + (queries * positives).sum(1)).exp()


@pytest.mark.usefixtures("unchecked_types")
def test_the_partition_of_draws_is_unbiased_and_its_bound_too_high_in_the_mean() -> None:
    """All 23^2 draws of two, each with its probability, the row's own sequence left out of them."""
    queries, positives, bank = inputs()
    probability = torch.softmax(torch.linspace(0, 2, N).double(), 0)
    exact = bank_loss(queries, positives, bank, sequence_id=OWN)
    mean_total, mean_loss = torch.zeros(M).double(), torch.zeros(M).double()
    for pair in itertools.product(range(N), repeat=2):
        ids = torch.tensor(pair)
        result = bank_loss(queries, positives, bank, drawn(ids, probability), sequence_id=OWN)
        chance = probability[ids].prod()
        mean_total += chance * total(result.loss_nats, queries, positives)
        mean_loss += chance * result.loss_nats
        assert torch.equal(result.num_candidates, exact.num_candidates)
    torch.testing.assert_close(mean_total, total(exact.loss_nats, queries, positives), rtol=1e-12, atol=0)
    assert (mean_loss < exact.loss_nats).all()  # Jensen
    assert result.reading.startswith("estimate from 2 draws")
    assert result.reading.endswith(", too high in the mean, not a bound on I(z; c)")


def test_draws_by_the_softmax_itself_are_exact_whatever_is_drawn() -> None:
    """Rawat et al. 2019, section 3: then every candidate's corrected score is log(Z / m)."""
    queries, positives, bank = inputs()
    log_q = torch.log_softmax(queries @ bank.latents.T, 1)
    ids = torch.randint(N, (M, 3), generator=torch.Generator().manual_seed(0))
    draw = Draw(ids, math.log(3) + log_q.gather(1, ids), torch.full((M,), torch.inf))
    result = bank_loss(queries, positives, bank, draw)
    torch.testing.assert_close(result.loss_nats, bank_loss(queries, positives, bank).loss_nats, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_draws_move_queries_and_positives_and_not_the_bank(shared: bool) -> None:
    queries, positives, bank = inputs()
    ids = torch.randint(N, (7,) if shared else (M, 7), generator=torch.Generator().manual_seed(0))
    draw = drawn(ids, torch.full((N,), 1 / N))
    assert torch.autograd.gradcheck(
        lambda q, z: bank_loss(q, z, bank, draw, sequence_id=OWN).loss,
        (queries.requires_grad_(), positives.requires_grad_()),
    )


def test_a_row_that_has_only_its_own_sequence_is_refused() -> None:
    bank = LatentBank(torch.zeros(3, D), torch.zeros(3).long())
    with pytest.raises(ValueError, match="1 of 2 rows have only latents of their own sequence"):
        bank_loss(torch.zeros(2, D), torch.zeros(2, D), bank, sequence_id=torch.tensor([0, 1]))
