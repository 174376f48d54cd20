"""The definition against loops in float64, and every faster path against the definition."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import contrast_rows

from cpc.candidates import STRATEGIES
from cpc.candidates.strategies import num_candidates_of
from cpc.losses import Contrastive, contrast, info_nce
from cpc.losses.definition import definition
from cpc.losses.engine.tiles import GATHER_BEYOND

SIZES = st.tuples(st.integers(1, 4), st.integers(2, 6), st.integers(4, 9), st.integers(1, 9))  # K, B, T, D
TOLERANCE = {torch.float64: (1e-11, 1e-12), torch.float32: (2e-5, 2e-6)}  # of losses and gradients


def batch(sizes: tuple[int, int, int, int], seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Queries, latents with padding of any value, and identities: two sequences of one file, two speakers."""
    num_steps, num_sequences, num_latents, dim = sizes
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num_steps, num_sequences, num_latents, dim, generator=generator, dtype=dtype)
    latents = torch.randn(num_sequences, num_latents, dim, generator=generator, dtype=dtype)
    num_valid = torch.randint(2, num_latents + 1, (num_sequences,), generator=generator)
    num_valid[:2] = num_latents
    sequence_id = torch.arange(num_sequences)
    sequence_id[1] = 0
    ids = {"num_valid": num_valid, "sequence_id": sequence_id, "group_id": torch.arange(num_sequences) // 3}
    return queries.requires_grad_(), latents.requires_grad_(), ids


def results(
    compute: str, queries: torch.Tensor, latents: torch.Tensor, seed: int, **options: Any
) -> list[torch.Tensor]:
    """All fields of the output and both gradients; draws come from one seed."""
    generator = torch.Generator().manual_seed(seed)
    output = contrast(queries, latents, generator=generator, compute=compute, **options)
    return [*output, *torch.autograd.grad(output.loss, (queries, latents))]


def has_negatives(strategy: str, ids: dict, skip_steps: int) -> bool:
    """Whether every sequence that predicts finds another latent besides its positive."""
    num_candidates = num_candidates_of(strategy, ids["num_valid"], ids["sequence_id"], ids["group_id"])
    num_negatives = num_candidates - int(strategy == "same_speaker")
    return bool((num_negatives[ids["num_valid"] > 1 + skip_steps] > 0).all())


@settings(max_examples=40, deadline=None)
@given(
    SIZES,
    st.sampled_from(STRATEGIES),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([None, 1, 7]),
    st.booleans(),
    st.integers(0, 1),
    st.integers(0, 10_000),
)
def test_fast_paths_equal_the_definition(
    sizes: tuple[int, int, int, int],
    strategy: str,
    dtype: torch.dtype,
    num_negatives: int | None,
    shared: bool,
    skip_steps: int,
    seed: int,
) -> None:
    queries, latents, ids = batch(sizes, seed, dtype)
    draws = {"num_negatives": num_negatives, "shared_across_steps": shared and num_negatives is not None}
    options = {"strategy": strategy, "skip_steps": skip_steps, **draws, **ids}
    if strategy not in ("mixed", "sequence_only") and not has_negatives(strategy, ids, skip_steps):
        for compute in ("reference", "float32"):
            with pytest.raises(ValueError, match="without a single negative"):
                results(compute, queries, latents, seed, **options)
        return
    expected = results("reference", queries, latents, seed, **options)
    relative, absolute = TOLERANCE[dtype]
    for fast, meant in zip(results("float32", queries, latents, seed, **options), expected, strict=True):
        torch.testing.assert_close(fast, meant, rtol=relative, atol=absolute * 100)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rounded_products_stay_near_the_definition(strategy: str) -> None:
    queries, latents, ids = batch((3, 6, 9, 8), 1, torch.float32)
    meant = results("reference", queries, latents, 0, strategy=strategy, **ids)
    rounded = results("bf16", queries, latents, 0, strategy=strategy, **ids)
    assert float(((rounded[0] - meant[0]).abs() / meant[0]).detach()) < 0.02
    for near, exact in zip(rounded[-2:], meant[-2:], strict=True):
        assert float((near - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_definition_equals_loops(strategy: str) -> None:
    queries, latents, ids = batch((3, 5, 6, 4), 3, torch.float64)
    ids["group_id"] = torch.tensor([0, 0, 0, 1, 1])
    ids["num_valid"] = torch.tensor([6, 6, 4, 6, 5])
    output = contrast(queries, latents, strategy=strategy, compute="reference", **ids)
    rows = contrast_rows(queries.detach(), latents.detach(), strategy, *(each.tolist() for each in ids.values()))
    means = [sum(loss for _, loss, _, _ in step) / len(step) for step in rows]
    assert output.loss.item() == pytest.approx(sum(means) / len(means), rel=1e-12)
    assert output.accuracy.sum(1).tolist() == pytest.approx([sum(row[3] for row in step) for step in rows])


def test_bias_temperature_and_few_of_many_negatives_equal_the_definition() -> None:
    """Negatives so few that their vectors are gathered; every gradient, the temperature's too."""
    generator = torch.Generator().manual_seed(0)
    num = 2 * GATHER_BEYOND
    queries = torch.randn(9, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    candidates = torch.randn(num, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    log_count = torch.randn(num, generator=generator, dtype=torch.float64)
    positives = torch.arange(9)
    for negatives in (None, torch.randint(9, num, (9, 2), generator=generator)):
        options: dict[str, Any] = {"negatives": negatives, "temperature": temperature, "log_count": log_count}
        found = []
        for compute in ("float32", "reference"):
            result = info_nce(queries, candidates, positives, compute=compute, **options)
            gradients = torch.autograd.grad(result.loss, (queries, candidates, temperature))
            found.append([result.loss, result.loss_nats, result.accuracy, *gradients])
        for fast, meant in zip(*found, strict=True):
            torch.testing.assert_close(fast, meant, rtol=1e-11, atol=1e-12)


def test_a_collapsed_encoder_reads_one_in_n() -> None:
    for num in (5, 6, 7, 9):
        latents = torch.randn(1, 8).expand(num, 8)
        *_, accuracy = definition(torch.randn(num, 8), latents, torch.arange(num), torch.full((num,), 1 / num))
        torch.testing.assert_close(accuracy, torch.full((num,), 1 / num))


def test_the_definition_does_not_go_round_the_ring() -> None:
    with pytest.raises(ValueError, match=r"compute=reference needs the latents of all ranks.*exchange=gather"):
        Contrastive(compute="reference", exchange="ring")
