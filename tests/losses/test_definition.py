"""Every fast path computes what `cpc/losses/definition.py` says: losses, accuracies, counts and all gradients.

`tests/losses/gloo_ranks.py` holds the losses of several ranks to the definition: there, a single process runs it.
"""

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cpc.candidates import STRATEGIES
from cpc.losses import Contrastive, contrast, info_nce
from cpc.losses.engine import tiles
from cpc.predictors import Output

TOLERANCES = {torch.float32: {"rtol": 2e-4, "atol": 2e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-12}}
SEEDS = st.integers(0, 10**6)
ANYTHING = (math.nan, math.inf, -3e38)  # in what no row reads
DTYPES = st.sampled_from([torch.float32, torch.float64])
# Limits of tiles under which small inputs take every path: all scores, products in C, few rows a tile.
PATHS = st.sampled_from([{}, {"DRAWN_BEYOND": 10**9, "TILE_ROWS": 3}, {"DRAWN_BEYOND": 0, "TILE_SCORES": 20}])


def results(path: dict[str, int], loss: Any, inputs: dict[str, Tensor], **options: Any) -> list[Any]:
    leaves = {name: each.clone().requires_grad_() for name, each in inputs.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in path.items():
            patch.setattr(tiles, name, value)
        found = loss(**leaves, **options)
    fields = [each for each in found if isinstance(each, Tensor)]
    return [each.detach() for each in fields] + list(torch.autograd.grad(found.loss, list(leaves.values())))


def check(dtype: torch.dtype, path: dict[str, int], loss: Any, inputs: dict[str, Tensor], **options: Any) -> None:
    expected = results({}, loss, inputs, compute="reference", **options)
    found = results(path, loss, inputs, compute="float32", **options)
    assert all(bool(each.isfinite().all()) for each in expected)
    torch.testing.assert_close(found, expected, **TOLERANCES[dtype])


@settings(max_examples=50, deadline=None)
@given(SEEDS, DTYPES, PATHS, st.integers(1, 9), st.integers(3, 14), st.integers(1, 6), st.sampled_from([0, 1, 5]))
def test_info_nce(
    seed: int, dtype: torch.dtype, path: dict[str, int], num_rows: int, num: int, dim: int, num_negatives: int
) -> None:
    """With masks, padding that holds anything, log counts, a learned temperature, and all, drawn or given negatives."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    allowed = torch.rand(3, 3, generator=generator) < 0.7
    valid = torch.rand(num, generator=generator) < 0.8
    candidate_sequence = torch.randint(3, (num,), generator=generator)
    positives = torch.randint(num, (num_rows,), generator=generator)
    query_sequence = torch.randint(3, (num_rows,), generator=generator)
    mask = (allowed[:, candidate_sequence] & valid)[query_sequence]
    has_negatives = mask.scatter(1, positives[:, None], False).any(1)
    if not bool(has_negatives.any()):
        return
    positives, query_sequence = positives[has_negatives], query_sequence[has_negatives]
    candidates = random(num, dim)
    is_used = mask[has_negatives].any(0).index_fill(0, positives, True)
    inputs = {
        "queries": random(len(positives), dim),
        "candidates": candidates.masked_fill(~is_used[:, None], ANYTHING[seed % 3]),
        "temperature": torch.tensor(0.7, dtype=dtype),
    }
    options: dict[str, Any] = {
        "positives": positives,
        "query_sequence": query_sequence,
        "candidate_sequence": candidate_sequence,
        "allowed": allowed,
        "valid": valid,
        "log_count": random(num) if seed % 2 else None,
    }
    if num_negatives:
        options |= {"num_negatives": num_negatives, "generator": torch.Generator()}
        state = options["generator"].get_state()

        def loss(**arguments: Any) -> Any:
            arguments["generator"].set_state(state)
            return info_nce(**arguments)

        check(dtype, path, loss, inputs, **options)
        shift = torch.randint(1, num, (len(positives), num_negatives), generator=generator)
        negatives = (positives[:, None] + shift) % num
        given_options = {"positives": positives, "negatives": negatives}
        check(dtype, path, info_nce, inputs | {"candidates": candidates}, **given_options)
    else:
        check(dtype, path, info_nce, inputs, **options)


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
@settings(max_examples=50, deadline=None)
@given(SEEDS, DTYPES, PATHS, st.sampled_from(STRATEGIES), st.sampled_from([None, 1, 5]), st.booleans())
def test_contrast(
    seed: int, dtype: torch.dtype, path: dict[str, int], strategy: str, num_negatives: int | None, is_shared: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_steps, num_sequences, num_latents, dim = (int(i) for i in torch.randint(1, 4, (4,), generator=generator))
    num_sequences, num_latents = num_sequences + 3, num_latents + 4
    lengths = torch.randint(3, num_latents + 1, (num_sequences,), generator=generator)
    latents = torch.randn(num_sequences, num_latents, dim, generator=generator, dtype=torch.float64).to(dtype)
    is_valid = torch.arange(num_latents) < lengths[:, None]
    shape = (num_steps, num_sequences, num_latents, dim)
    inputs = {
        "queries": torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype),
        "latents": latents.masked_fill(~is_valid[..., None], ANYTHING[seed % 3]),
    }
    options: dict[str, Any] = {
        "strategy": strategy,
        "num_latents": lengths,
        "sequence_id": torch.tensor([0, 0, *range(1, num_sequences - 1)]),
        "group_id": torch.arange(num_sequences) // 2 * 0 + (torch.arange(num_sequences) >= 3).long() * int(seed % 2),
        "num_negatives": num_negatives,
        "shared_across_steps": is_shared and num_negatives is not None,
        "skip_steps": seed % 3 // 2,
    }
    if strategy == "same_speaker_excluding":  # the first two sequences share a file, the others need two of a speaker
        options["group_id"] = torch.zeros(num_sequences, dtype=torch.long)

    def loss(**arguments: Any) -> Any:
        return contrast(**arguments, generator=torch.Generator().manual_seed(seed))

    check(dtype, path, loss, inputs, **options)


@pytest.mark.parametrize("num_negatives", [None, 4])
def test_several_strategies(num_negatives: int | None) -> None:
    generator = torch.Generator().manual_seed(0)

    def loss(queries: Tensor, latents: Tensor, compute: Any) -> Any:
        shares = {"sequence_only": 0.5}
        part = Contrastive("mixed", num_negatives, compute=compute, auxiliary_negatives=shares)
        output = Output(latents, latents, {"": queries}, None)
        return part(output, part.sequences(output), torch.Generator().manual_seed(1))

    shapes = {"queries": (2, 3, 6, 4), "latents": (3, 6, 4)}
    inputs = {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    check(torch.float64, {}, loss, inputs)


def test_what_is_not_a_number_is_never_right() -> None:
    latents = torch.tensor([[1.0], [math.nan], [2.0]])
    for compute, positive in product(("float32", "reference"), (0, 1)):
        assert info_nce(torch.ones(1, 1), latents, torch.tensor([positive]), compute=compute).accuracy.tolist() == [0]
