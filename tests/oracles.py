"""Slow, obvious references in float64: loops over rows and candidates, written from the definitions."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from cpc.bounds import VectorAR1
from cpc.contexts.transformer import TransformerLayer


def is_allowed(strategy: str, b: int, c: int, ids: list[int], groups: list[int]) -> bool:
    if strategy == "mixed":
        return True
    if strategy == "same_speaker":
        return groups[b] == groups[c]
    if strategy == "mixed_excluding":
        return ids[b] != ids[c]
    if strategy == "same_speaker_excluding":
        return groups[b] == groups[c] and ids[b] != ids[c]
    assert strategy == "sequence_only"
    return ids[b] == ids[c]


def contrast_rows(
    queries: Tensor,
    latents: Tensor,
    strategy: str,
    num_valid: list[int],
    ids: list[int],
    groups: list[int],
    is_known: list[list[bool]] | None = None,
    ahead: Sequence[int] | None = None,
) -> list[list[tuple[int, float, int, float]]]:
    """Per step: (sequence, loss_nats, N, accuracy) of each row, all candidates.

    With `is_known`, only known latents have rows, are targets and are negatives, and a row has at least one negative.
    `ahead` is the k of each query; None: 1..K.
    """

    def is_there(b: int, t: int) -> bool:
        return is_known is None or is_known[b][t]

    num_sequences = queries.shape[1]
    queries, latents = queries.double(), latents.double()
    steps = []
    for place, k in enumerate(ahead or range(1, len(queries) + 1)):
        rows = []
        for b in range(num_sequences):
            for t in range(num_valid[b] - k):
                if not (is_there(b, t) and is_there(b, t + k)):
                    continue
                query = queries[place, b, t]
                positive = float(query @ latents[b, t + k])
                negatives = [
                    float(query @ latents[c, s])
                    for c in range(num_sequences)
                    if is_allowed(strategy, b, c, ids, groups)
                    for s in range(num_valid[c])
                    if (c, s) != (b, t + k) and is_there(c, s)
                ]
                if is_known is not None and not negatives:
                    continue
                highest = max([positive, *negatives])
                normaliser = highest + math.log(sum(math.exp(s - highest) for s in [positive, *negatives]))
                ties = sum(s == positive for s in negatives)
                accuracy = 0.0 if max(negatives) > positive else 1 / (1 + ties)
                rows.append((b, normaliser - positive, 1 + len(negatives), accuracy))
        steps.append(rows)
    return steps


def info_nce_loss(scores: Tensor, positives: list[int], candidate_sets: list[list[int]]) -> float:
    """Mean over rows of -log softmax of the positive among its candidate list (duplicates count)."""
    total = 0.0
    for row, positive, members in zip(scores.double(), positives, candidate_sets, strict=True):
        values = [float(row[positive])] + [float(row[j]) for j in members]
        highest = max(values)
        total += highest + math.log(sum(math.exp(v - highest) for v in values)) - float(row[positive])
    return total / len(positives)


def transformer_layer(layer: TransformerLayer, x: Tensor, window: int | None = None) -> Tensor:
    """One sequence `[T, C]`; positions as complex rotations, softmax over an explicit list of keys."""
    num_latents, dim = x.shape
    head_dim = dim // layer.num_heads
    normed = layer_norm(x, (dim,), layer.attention_norm.weight, layer.attention_norm.bias)
    query, key, value = (normed @ layer.query_key_value.weight.T).split(dim, -1)
    attended = torch.zeros_like(x)
    for head in range(layer.num_heads):
        channels = slice(head * head_dim, (head + 1) * head_dim)

        def turned(vectors: Tensor, t: int, channels: slice = channels) -> Tensor:
            pairs = torch.complex(*vectors[t, channels].chunk(2))
            angles = torch.tensor([t * 10000 ** (-2 * i / head_dim) for i in range(head_dim // 2)], dtype=x.dtype)
            return pairs * torch.polar(torch.ones_like(angles), angles)

        for t in range(num_latents):
            members = [s for s in range(t + 1) if window is None or s >= t - window]
            scores = [(turned(query, t) * turned(key, s).conj()).real.sum() / math.sqrt(head_dim) for s in members]
            weights = torch.stack(scores).softmax(0)
            attended[t, channels] = weights @ value[members, channels]
    x = x + attended @ layer.output.weight.T
    norm_weight, norm_bias, widen_weight, widen_bias, narrow_weight, narrow_bias = layer.feedforward.parameters()
    normed = layer_norm(x, (dim,), norm_weight, norm_bias)
    return x + (normed @ widen_weight.T + widen_bias).clamp(min=0) @ narrow_weight.T + narrow_bias


def assert_rows(found: Any, reference: list[list[tuple[int, float, int, float]]], *, rel: float, abs_: float) -> None:
    """Check a `ContrastiveOutput` against the rows of `contrast_rows`, by step and sequence, and its mean loss."""
    for k, rows in enumerate(reference):
        assert found.num_rows[k].sum() == len(rows)
        for b in range(found.num_rows.shape[1]):
            mine = [row for row in rows if row[0] == b]
            assert found.num_rows[k, b] == len(mine)
            assert found.loss_nats[k, b].item() == pytest.approx(sum(r[1] for r in mine), rel=rel, abs=abs_)
            assert found.num_candidates[k, b] == sum(r[2] for r in mine)
            log_num_candidates = sum(math.log(r[2]) for r in mine)
            assert found.log_num_candidates[k, b].item() == pytest.approx(log_num_candidates, rel=min(rel, 1e-5))
            assert found.accuracy[k, b].item() == pytest.approx(sum(r[3] for r in mine))
    step_means = [sum(row[1] for row in rows) / len(rows) for rows in reference if rows]
    assert found.loss.item() == pytest.approx(sum(step_means) / len(step_means), rel=min(rel, 1e-5))


def exact_critic(process: VectorAR1, x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors for queries and latents `[B, T, D + 1]`, whose products at lag one are the best scores: the log density
    ratio, but for a term of the row's own, which cancels."""
    a, square = process.coefficient, x.square().sum(-1, keepdim=True)
    queries = torch.cat([a / (1 - a**2) * x, torch.full_like(square, -(a**2) / (2 - 2 * a**2))], -1)
    return queries, torch.cat([x, square], -1)
