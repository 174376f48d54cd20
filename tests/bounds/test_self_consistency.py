"""The checks of self-consistency: exact critics pass, bad critics and estimators fail, and rows are what they claim."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cpc.bounds import VectorAR1, optimal_reading_nats
from cpc.bounds.estimators import ESTIMATORS, info_nce
from cpc.bounds.readings import ReadingTally, weighted_sum
from cpc.bounds.self_consistency import (
    CheckedRows,
    checked_rows,
    independent_sequences,
    pair_of,
    verdict,
)
from cpc.bounds.sequences import mean_baseline
from cpc.losses.candidate_sets import Sequences

NUM_VALID, IDS, GROUPS = (
    torch.tensor(values) for values in ([6, 3, 5, 4, 6, 6], [0, 1, 2, 2, 3, 4], [0, 0, 1, 1, 1, 2])
)
SEQUENCES = Sequences(NUM_VALID, IDS, GROUPS)
K, B, T, D = 3, 6, 6, 4


def some_batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries and latents whose products determine both indices: every score is of exactly one pair."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(K, B, T, D, generator=generator), torch.randn(B, T, D, generator=generator)


def all_rows(seed: int = 0, **options: Any) -> list[tuple[int, CheckedRows]]:
    queries, latents = some_batch()
    channels = torch.tensor([True, False, True, False])
    generator = torch.Generator().manual_seed(seed)
    return list(checked_rows(queries, latents, SEQUENCES, channels, generator=generator, **options))


def found(value: float, table: Tensor) -> tuple[int, ...]:
    """The index of the entry of a table that equals a value."""
    (index,) = (abs(table - value) < 1e-12).nonzero().tolist()
    return tuple(index)


def score_tables() -> tuple[Tensor, Tensor]:
    queries, latents = (each.double() for each in some_batch())
    scores = torch.zeros(K, B, T, B, T, dtype=torch.float64)
    masked = torch.zeros_like(scores)
    for k, b, t, c, s in torch.cartesian_prod(*map(torch.arange, (K, B, T, B, T))).tolist():
        products = [float(queries[k, b, t, d] * latents[c, s, d]) for d in range(D)]
        scores[k, b, t, c, s], masked[k, b, t, c, s] = sum(products), products[0] + products[2]
    return scores, masked


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("num_negatives", [None, 3])
@pytest.mark.parametrize("has_baseline", [False, True])
@pytest.mark.parametrize("keeps_groups", [False, True])
def test_rows_are_pairs_of_independent_sequences(
    num_negatives: int | None, has_baseline: bool, keeps_groups: bool
) -> None:
    """Every score of every row is found in a loop over all pairs, and has the sequence and time that it must have."""
    scores, masked = score_tables()
    options: dict[str, Any] = {"num_negatives": num_negatives, "has_baseline": has_baseline}
    options["keeps_groups"] = keeps_groups
    ids, groups, lengths = IDS.tolist(), GROUPS.tolist(), NUM_VALID.tolist()
    num_pairs = 0

    def are_independent(a: int, b: int) -> bool:
        return ids[a] != ids[b] and not (keeps_groups and groups[a] == groups[b])

    for k, rows in all_rows(**options):
        k_ahead, table = k + 1, scores[k]
        plain, processed, shuffled = rows.plain, rows.processed, rows.shuffled
        assert shuffled is not None
        starts = []
        for i in range(len(plain.scores)):
            b, t, c, s = found(float(plain.scores[i, plain.positives[i]]), table)
            assert (c, s) == (b, t + k_ahead)
            starts.append((b, t))
            for column in plain.candidates[i].nonzero()[:, 0].tolist():
                assert ids[column // T] != ids[b]
                assert column % T < lengths[column // T]
            columns = torch.arange(B * T)
            expected = masked[k, b, t, columns // T, columns % T]
            assert torch.allclose(processed.scores[i], expected, atol=1e-6)
        assert len(set(starts)) == len(starts) == sum(max(0, n - k_ahead) for n in lengths)
        num_known = 0
        for i in range(len(shuffled.scores)):
            b, t, c, s = found(float(shuffled.scores[i, shuffled.positives[i]]), table)
            assert are_independent(b, c)
            assert k_ahead <= s < lengths[c]
            assert not (shuffled.baseline[i, shuffled.positives[i]])
            num_known += (b, t) in starts
        assert num_known == len(shuffled.scores)
        if rows.parts is None:
            continue
        first, second = rows.parts
        assert torch.equal(first.candidates, second.candidates)
        for i in range(len(first.scores)):
            num_pairs += 1
            (a, t, c, s), (b, u, d, v) = (found(float(part.scores[i, 0]), table) for part in (first, second))
            assert (c, s, d, v) == (a, t + k_ahead, b, u + k_ahead)
            assert are_independent(a, b)
            for mask in (first.candidates[i], first.baseline[i]):
                for column in mask.nonzero()[:, 0].tolist():
                    *_, c, s = found(float(first.scores[i, column]), table)
                    *_, d, v = found(float(second.scores[i, column]), table)
                    assert len({ids[each] for each in (a, b, c, d)}) == 4
                    assert are_independent(c, d)
                    assert s < lengths[c]
                    assert v < lengths[d]
    assert num_pairs > 0 or has_baseline or keeps_groups


@pytest.mark.usefixtures("unchecked_types")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 2), st.integers(2, 5)), min_size=2, max_size=7),
    st.integers(0, 99),
    st.booleans(),
)
def test_no_shuffled_positive_has_the_id_of_its_row(
    observations: list[tuple[int, int, int]], seed: int, keeps_groups: bool
) -> None:
    ids, groups, lengths = zip(*observations, strict=True)
    if len(set(ids)) == 1:
        return
    sequences = Sequences(*map(torch.tensor, (lengths, ids, groups)))
    queries = torch.arange(len(ids)).float().reshape(1, -1, 1, 1).expand(-1, -1, 5, -1)  # a score is the row's sequence
    latents, generator = torch.ones(len(ids), 5, 1), torch.Generator().manual_seed(seed)
    for _, rows in checked_rows(
        queries, latents, sequences, torch.tensor([True]), generator=generator, keeps_groups=keeps_groups
    ):
        shuffled = rows.shuffled
        assert keeps_groups or (shuffled is not None and len(shuffled.scores) == len(rows.plain.scores))
        if shuffled is None:
            continue
        for b, positive in zip(shuffled.scores[:, 0].long().tolist(), shuffled.positives.tolist(), strict=True):
            c, time = divmod(positive, 5)
            assert ids[b] != ids[c]
            assert 1 <= time < lengths[c]
            assert not keeps_groups or len(set(groups)) == 1 or groups[b] != groups[c] or groups[b] == -1


def test_groups_are_kept_apart_only_where_batches_mix_them() -> None:
    by_id = IDS[:, None] != IDS
    assert torch.equal(independent_sequences(SEQUENCES), by_id)
    assert torch.equal(independent_sequences(SEQUENCES, True), by_id & (GROUPS[:, None] != GROUPS))
    one = SEQUENCES._replace(group_id=torch.zeros(6, dtype=torch.long))
    assert torch.equal(independent_sequences(one, True), by_id)
    unknown = SEQUENCES._replace(group_id=torch.tensor([-1, -1, 0, 0, 0, 1]))
    assert independent_sequences(unknown, True)[0, 1]


def ar1_readings(
    name: str,
    coefficient: float,
    dim: int,
    scale: float = 1.0,
    batch: tuple[int, int, int] = (40, 8, 33),
    kept: list[bool] | None = None,
) -> dict[str, ReadingTally]:
    """Tallies of the exact scores of a vector AR(1), times `scale`, with half of its dimensions as processed latents.

    `kept` are other channels for the processed latents.

    Every dimension has two channels: x rho / v for the product, and x^2 for the constant that depends on the latent.
    """
    num_batches, num_sequences, num_latents = batch
    task, generator = VectorAR1(coefficient, dim), torch.Generator().manual_seed(0)
    rho, variance = coefficient, 1 - coefficient**2
    tallies = {
        each: ReadingTally() for each in ("plain", "processed", "rescaled", "shuffled", "first", "second", "pair")
    }
    offset = ESTIMATORS[name].best_offset
    constant = task.mutual_information_nats(1) + offset
    channels = torch.tensor(kept or [True] * 2 * (dim // 2) + [False] * 2 * (dim - dim // 2) + [True])
    for _ in range(num_batches):
        x = task.sample(num_sequences, num_latents, generator).double()
        latents = torch.stack([x, x.square()], -1).flatten(2)
        latents = torch.cat([latents, torch.ones_like(latents[..., :1])], -1)
        queries = torch.stack([x * rho / variance, torch.full_like(x, -(rho**2) / 2 / variance)], -1).flatten(2)
        last = constant - (rho**2 * x.square()).sum(-1, keepdim=True) / 2 / variance
        queries = scale * torch.cat([queries, last], -1)
        for _, rows in checked_rows(
            queries[None],
            latents,
            Sequences.of((num_sequences, num_latents)),
            channels,
            generator=generator,
            has_baseline=ESTIMATORS[name].needs_baseline,
        ):
            assert rows.shuffled is not None
            every = {"plain": rows.plain, "processed": rows.processed, "shuffled": rows.shuffled}
            every["rescaled"] = rows.plain._replace(scores=rows.plain.scores / 2)
            if rows.parts is not None:
                every |= dict(zip(("first", "second"), rows.parts, strict=True))
                every["pair"] = pair_of(rows.parts, offset)
            for each, (scores, positives, candidates, baseline) in every.items():
                options = {"log_baseline": mean_baseline(scores, baseline)} if ESTIMATORS[name].needs_baseline else {}
                tallies[each].update(ESTIMATORS[name].read(scores, positives, candidates, **options))
    return tallies


def verdicts(tallies: dict[str, ReadingTally], num_candidates: float | None) -> list[str]:
    compared = {
        "shuffled": ("shuffled",),
        "data_processing": ("processed", "plain"),
        "rescaling": ("rescaled", "plain"),
        "additivity": ("pair", "first", "second"),
    }
    judged: list[str] = []
    for check, (read, *references) in compared.items():
        weights = [1.0, *(-1.0 for _ in references)]
        difference, error = weighted_sum([tallies[each] for each in (read, *references)], weights)
        reading = tallies[read].compute()[0]
        judged.append(
            verdict(
                check,  # type: ignore[arg-type]
                difference,
                error,
                len(tallies[read].num_rows),
                reading,
                sum(tallies[each].compute()[0] for each in references),
                num_candidates,
            )
        )
    return judged


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", ["info_nce", "nwj", "js", "dv", "interpolated", "goodness_of_fit"])
def test_the_exact_critic_of_a_known_process_passes(name: str) -> None:
    """At 0.3 nats, with enough negatives for every estimator; the readings are the known information."""
    tallies = ar1_readings(name, 0.5, 2)
    truth = VectorAR1(0.5, 2).mutual_information_nats(1)
    plain, error = tallies["plain"].compute()
    assert plain == pytest.approx(truth, abs=4 * error + 0.02)
    pair, error = tallies["pair"].compute()
    assert pair == pytest.approx(2 * truth, abs=4 * error + 0.05)
    assert len(tallies["pair"].num_rows) > 20
    assert tallies["processed"].compute()[0] == pytest.approx(truth / 2, abs=0.08)
    assert verdicts(tallies, None) == ["passed"] * 4
    assert verdicts(tallies, 150.0) == ["passed"] * 4


@pytest.mark.usefixtures("unchecked_types")
def test_half_of_the_channels_of_the_exact_critic_can_raise_the_mean_score() -> None:
    """Without the channels x^2 the mean score of positives loses -rho^2 / (2 v) per dimension, and info_nce falls."""
    rho, dim = 0.5, 2
    for name in ("anchor", "info_nce"):
        tallies = ar1_readings(name, rho, dim, kept=[True, False] * dim + [True])
        difference, error = weighted_sum([tallies["processed"], tallies["plain"]], [1, -1])
        if name == "anchor":
            assert difference == pytest.approx(dim * rho**2 / 2 / (1 - rho**2), abs=4 * error + 0.01)
            assert verdicts(tallies, None)[1] == "failed"
        else:
            assert verdicts(tallies, None)[1] == "passed"


@pytest.mark.usefixtures("unchecked_types")
def test_a_pair_that_n_candidates_cannot_show_is_limited_by_the_ceiling() -> None:
    """Twice 3 nats with five sequences of 33 candidates: Gaussians read what the formula says."""
    tallies = ar1_readings("info_nce", math.sqrt(-math.expm1(-2 * 3 / 10)), 10)
    pair, error = tallies["pair"].compute()
    num = 33 * 5 + 1
    assert pair == pytest.approx(optimal_reading_nats(6, num), abs=4 * error + 0.15)
    assert verdicts(tallies, num) == ["passed"] * 3 + ["limited by the ceiling"]
    assert verdicts(tallies, None)[3] == "failed"


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("info_nce", 2.0, ["passed", "passed", "failed"]),  # twice the exact scores
        ("info_nce", 6.0, ["passed", "failed", "failed"]),  # half of the channels is less sure, too
        ("nwj", 6.0, None),
        ("js_kl", 1.0, ["passed", "passed", "passed", "failed"]),  # a curve is not additive
    ],
)
def test_bad_critics_and_estimators_fail(name: str, scale: float, expected: list[str] | None) -> None:
    judged = verdicts(ar1_readings(name, 0.8, 4, scale), None)
    if expected is None:
        assert judged != ["passed"] * 4
    else:
        assert judged[: len(expected)] == expected


@pytest.mark.usefixtures("unchecked_types")
def test_smile_reads_raw_scores_where_there_is_no_information() -> None:
    """Scores that are all 40: SMILE clips the negatives, not the positives, and reads 35 nats for shuffled pairs."""
    tally = ReadingTally()
    queries, latents = torch.ones(1, 4, 6, 1), 40 * torch.ones(4, 6, 1)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        latents = latents + 0.01 * torch.randn(4, 6, 1, generator=generator)
        ((_, rows),) = checked_rows(queries, latents, Sequences.of((4, 6)), torch.tensor([True]), generator=generator)
        assert rows.shuffled is not None
        tally.update(ESTIMATORS["smile"].read(*rows.shuffled[:3]))
    nats, error = tally.compute()
    assert nats == pytest.approx(35, abs=0.1)
    assert verdict("shuffled", nats, error, 5, nats, 0.0) == "failed"


@pytest.mark.usefixtures("unchecked_types")
def test_negatives_that_do_not_look_like_positives_fail() -> None:
    """The first latent of every sequence is never a positive; a critic that knows this reads log(T / (T - 1))."""
    tally = ReadingTally()
    num_sequences, num_latents = 30, 3
    latents = torch.zeros(num_sequences, num_latents, 1)
    latents[:, 0] = -50.0
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        ((_, rows),) = checked_rows(
            torch.ones(1, num_sequences, num_latents, 1),
            latents + 1e-3 * torch.randn(latents.shape, generator=generator),
            Sequences.of((num_sequences, num_latents)),
            torch.tensor([True]),
            generator=generator,
        )
        assert rows.shuffled is not None
        tally.update(info_nce(*rows.shuffled[:3]))
    nats, error = tally.compute()
    assert nats == pytest.approx(math.log(3 / 2), abs=0.01)
    assert verdict("shuffled", nats, error, 5, nats, 0.0, 87.0) == "failed"
