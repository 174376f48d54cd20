"""Slow, obvious references in float64: loops over rows and candidates, written from the definitions."""

import math

from torch import Tensor


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
    queries: Tensor, latents: Tensor, strategy: str, num_valid: list[int], ids: list[int], groups: list[int]
) -> list[list[tuple[int, float, int, float]]]:
    """Per step: (sequence, loss_nats, N, accuracy) of each row, all candidates."""
    num_steps, num_sequences, _, _ = queries.shape
    queries, latents = queries.double(), latents.double()
    steps = []
    for k in range(1, num_steps + 1):
        rows = []
        for b in range(num_sequences):
            for t in range(num_valid[b] - k):
                query = queries[k - 1, b, t]
                positive = float(query @ latents[b, t + k])
                negatives = [
                    float(query @ latents[c, s])
                    for c in range(num_sequences)
                    if is_allowed(strategy, b, c, ids, groups)
                    for s in range(num_valid[c])
                    if (c, s) != (b, t + k)
                ]
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
