import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import info_nce_loss

from cpc.losses import info_nce


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(2, 9), st.integers(1, 5), st.integers(0, 10_000))
def test_equals_the_loop_reference(num_queries: int, num_candidates: int, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num_queries, dim, generator=generator)
    candidates = torch.randn(num_candidates, dim, generator=generator)
    positives = torch.randint(num_candidates, (num_queries,), generator=generator)
    query_sequence = torch.randint(3, (num_queries,), generator=generator)
    candidate_sequence = torch.randint(3, (num_candidates,), generator=generator)
    allowed = torch.rand(3, 3, generator=generator) < 0.7
    valid = torch.rand(num_candidates, generator=generator) < 0.9
    log_count = torch.randn(num_candidates, generator=generator)
    sets = [
        [j for j in range(num_candidates) if j != p and bool(allowed[b, candidate_sequence[j]]) and bool(valid[j])]
        for b, p in zip(query_sequence.tolist(), positives.tolist(), strict=True)
    ]
    arguments = {"query_sequence": query_sequence, "candidate_sequence": candidate_sequence, "allowed": allowed}
    arguments |= {"valid": valid, "log_count": log_count, "temperature": 0.5}
    if any(not members for members in sets):
        with pytest.raises(ValueError, match="no negative"):
            info_nce(queries, candidates, positives, **arguments)
        return
    result = info_nce(queries, candidates, positives, **arguments)
    scores = queries.double() @ candidates.double().T / 0.5 - log_count.double()
    assert result.loss.item() == pytest.approx(info_nce_loss(scores, positives.tolist(), sets), rel=1e-5, abs=2e-6)
    assert result.num_candidates.tolist() == [1 + len(members) for members in sets]
    for i, members in enumerate(sets):
        wins = all(scores[i, positives[i]] > scores[i, j] for j in members)
        assert result.accuracy[i] == wins


def test_given_negatives_may_lie_outside_the_pool() -> None:
    """A caller's own negatives count as given, whatever `allowed` parts the candidates into."""
    generator = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(4, 5, generator=generator), torch.randn(8, 5, generator=generator)
    positives, negatives = torch.tensor([0, 1, 4, 7]), torch.tensor([[6, 6], [6, 3], [0, 1], [2, 6]])
    sequence = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    sets = {"query_sequence": sequence[positives], "candidate_sequence": sequence, "negatives": negatives}
    result = info_nce(queries, candidates, positives, allowed=torch.eye(3, dtype=torch.bool), **sets)
    expected = info_nce_loss(queries.double() @ candidates.double().T, positives.tolist(), negatives.tolist())
    assert result.loss.item() == pytest.approx(expected, rel=1e-5)
    assert result.num_candidates.tolist() == [3] * 4


def test_temperature_divides_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(6, 32, generator=generator).bfloat16(), torch.randn(9, 32, generator=generator)
    positives = torch.arange(6)
    scores = queries.double() @ candidates.double().T / 0.07
    expected = info_nce_loss(scores, positives.tolist(), [[j for j in range(9) if j != i] for i in range(6)])
    assert info_nce(queries, candidates, positives, temperature=0.07).loss.item() == pytest.approx(expected, rel=1e-5)


def test_float16_queries_survive_a_gradient_scaler() -> None:
    """GradScaler multiplies the loss by 65536, which float16 cannot hold."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(50, 8, generator=generator)
    candidates = torch.randn(60, 8, generator=generator)
    gradients = []
    for queries in (exact.half().requires_grad_(), exact.half().float().requires_grad_()):
        (info_nce(queries, candidates, torch.arange(50)).loss * 65536).backward()
        gradients.append(queries.grad.float())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-2)


def test_bf16_scores_are_those_of_rounded_operands() -> None:
    """The scores are those of rounded vectors, to float32; gradients are off by the rounding of weights too."""
    generator = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(40, 64, generator=generator), torch.randn(50, 64, generator=generator)
    positives = torch.arange(40)
    rounded = [x.bfloat16().double().requires_grad_() for x in (queries, candidates)]
    expected = torch.nn.functional.cross_entropy(rounded[0] @ rounded[1].T, positives)
    expected.backward()
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [x.to(dtype, copy=True).requires_grad_() for x in (queries, candidates)]
        before = torch.backends.mkldnn.matmul.fp32_precision
        result = info_nce(*inputs, positives, compute="bf16")
        assert torch.backends.mkldnn.matmul.fp32_precision == before
        assert result.loss.item() == pytest.approx(expected.item(), rel=1e-6)
        result.loss.backward()
        for x, reference in zip(inputs, rounded, strict=True):
            assert x.grad.dtype == x.dtype
            torch.testing.assert_close(x.grad.double(), reference.grad, rtol=0.02, atol=4e-4)


def test_duplicates_of_the_positive_floor_the_loss() -> None:
    """With m copies of the positive among the negatives no critic gets below ln(1 + m) (facts section 7)."""
    candidates = torch.tensor([[50.0], [50.0], [50.0], [0.0]])
    result = info_nce(torch.ones(1, 1), candidates, torch.tensor([0]))
    assert result.loss.item() == pytest.approx(math.log(3), abs=1e-5)
    assert result.accuracy.item() == pytest.approx(1 / 3)


def test_scores_are_float32_under_autocast() -> None:
    """512 entries of about 12 give 73 728, beyond float16's largest number (facts T17)."""
    queries = torch.full((2, 512), 12.0, dtype=torch.float16)
    candidates = torch.stack([torch.full((512,), 12.0), torch.full((512,), -12.0)]).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = info_nce(queries, candidates, torch.tensor([0, 0]))
    assert result.loss_nats.dtype == torch.float32
    assert result.loss.item() == 0.0
