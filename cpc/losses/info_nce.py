"""InfoNCE on tensors, for any training loop.

M queries (rows), N candidates, D latent dim, B sequences, R drawn negatives.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.draws import NegativePool
from cpc.config.argument_rules import Range
from cpc.data.tensors import check_count, check_finite, check_indices, check_precision, check_tensor
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import divide_by_temperature, info_nce_rows, on_device, rounding_of, score_dtype
from cpc.losses.output import RowLosses


def info_nce(
    queries: Float[Tensor, "M D"],
    candidates: Float[Tensor, "N D"],
    positives: Int[Tensor, " M"],
    *,
    query_sequence: Int[Tensor, " M"] | None = None,
    candidate_sequence: Int[Tensor, " N"] | None = None,
    allowed: Bool[Tensor, "B B"] | None = None,
    valid: Bool[Tensor, " N"] | None = None,
    log_count: Float[Tensor, " N"] | None = None,
    num_negatives: int | None = None,
    generator: torch.Generator | None = None,
    negatives: Int[Tensor, "M R"] | None = None,
    temperature: float | Tensor = 1.0,
    compute: str = "auto",
) -> RowLosses:
    """Return the InfoNCE loss of each query's positive: eq. 4 of van den Oord et al. 2018 (arXiv:1807.03748).

    L = -log( exp s(q, z+) / sum over candidates of exp s(q, z) ) with s(q, z) = q . z / temperature, where q = W_k c
    for CPC. `cpc.losses.definition` is this equation as code. The positive enters the sum exactly once, even if its
    sequence is not allowed. Scores and log-sum-exp are float32 (float64 for float64 input) whatever the autocast dtype.
    `.loss` is the mean over rows.

    Args:
        queries: predictions W_k c.
        candidates: candidate latents; mark padding with `valid`.
        positives: index of each query's positive among the candidates.
        query_sequence: which sequence (row of `allowed`) each query belongs to.
        candidate_sequence: which sequence (column of `allowed`) each candidate belongs to.
        allowed: which sequences (columns) give candidates to the queries of each sequence (row), as
            `cpc.candidates.allowed_matrix` returns; None: all sequences to all.
        valid: True for a candidate that exists; None: all exist.
        log_count: log expected count of each candidate in the drawn set, subtracted from every score (the posterior
            correction of sampled softmax).
        num_negatives: number of negatives to draw per row, uniformly with replacement; None: all.
        generator: source of the draws.
        negatives: indices of each row's negatives among the candidates, instead of `num_negatives`. They need not be
            allowed, but must not be the positive.
        temperature: divides the scores; a positive tensor of one element gets a gradient.
        compute: how matrix products are rounded. `auto`: not at all on a CPU; on a GPU like `tf32`, or like `bf16` if
            the queries are bfloat16. `float32`: not at all. `tf32`: operands have 11 bits on a GPU that has TF32.
            `bf16`: operands have 8 bits; on a GPU scores and score gradients too. All sums are float32. `reference`
            runs the definition, in float64 and with the whole score matrix in memory.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit each other, or a row has no negatives.

    Example:
        >>> zeros = torch.zeros(3, 8)
        >>> result = info_nce(zeros, zeros, torch.arange(3))
        >>> bool(torch.isclose(result.loss, torch.tensor(3.0).log())), result.accuracy.tolist()
        (True, [0.3333333432674408, 0.3333333432674408, 0.3333333432674408])
    """
    check_tensor("queries", queries, "floats", ("M", "D"))
    Range(1).check("the number of queries", len(queries))
    check_tensor("candidates", candidates, "floats", ("N", queries.shape[1]))
    num_rows, num_candidates = len(queries), len(candidates)
    check_precision(queries=queries, candidates=candidates)
    check_indices("positives", positives, (num_rows,), num_candidates, "candidates")
    if not queries.device == candidates.device == positives.device:
        devices = f"{queries.device}, {candidates.device} and {positives.device}"
        raise ValueError(f"queries, candidates and positives are on {devices}: move them to one device")
    if num_negatives is not None:
        check_count("num_negatives", num_negatives, 1)
        if negatives is not None:
            raise ValueError(f"num_negatives={num_negatives} and `negatives` are both given: leave one out")
    if negatives is not None:
        check_indices("negatives", negatives, (num_rows, "R"), num_candidates, "candidates")
        check_count("the number of negatives of a row", negatives.shape[1], 1)
        if bool((negatives == rearrange(positives, "m -> m 1")).any()):
            raise ValueError("negatives hold a row's own positive: it would be scored twice; draw another one")
    if valid is not None:
        check_tensor("valid", valid, "booleans", (num_candidates,))
    if log_count is not None:
        check_tensor("log_count", log_count, "floats", (num_candidates,))
        check_finite("log_count", log_count)
    positive_index = positives.cpu().long()  # torch refuses short integers as indices
    sequence, mask = torch.zeros_like(positive_index), torch.ones(1, num_candidates, dtype=torch.bool)
    if (allowed is None) != (query_sequence is None) or (allowed is None) != (candidate_sequence is None):
        raise ValueError("allowed, query_sequence and candidate_sequence belong together: give all three or none")
    if allowed is not None and query_sequence is not None and candidate_sequence is not None:
        check_tensor("allowed", allowed, "booleans", ("B", "B"))
        check_indices("query_sequence", query_sequence, (num_rows,), len(allowed), "rows of allowed")
        check_indices("candidate_sequence", candidate_sequence, (num_candidates,), len(allowed), "columns of allowed")
        if negatives is None:
            sequence = query_sequence.cpu().long()
            mask = allowed.cpu()[:, candidate_sequence.cpu().long()]  # [B, N]
    if negatives is not None:  # any candidate may be a given negative
        negatives = negatives.long()
        mask = torch.zeros_like(mask).index_fill(1, negatives.cpu().flatten(), True)
    elif valid is not None:
        mask = mask & valid.cpu()
    own = mask[sequence, positive_index].long()
    has_no_negatives = mask.sum(1)[sequence] - own < 1
    if bool(has_no_negatives.any()):
        raise ValueError(f"{int(has_no_negatives.sum())} of {num_rows} rows have no negative: allow more sequences")
    weight = torch.full_like(positive_index, 1 / num_rows, dtype=torch.float64)
    rows = CandidateSet(None, positive_index, sequence, torch.zeros_like(sequence), mask, weight, num_steps=1)
    bias = None if log_count is None else -log_count.detach().to(score_dtype(queries))
    if num_negatives is not None:
        negatives = NegativePool.of(mask, sequence, positive_index).draw(num_negatives, generator, queries.device)
    # Queries that are divided by a temperature are float32.
    compute = rounding_of(compute, queries.device.type, queries.dtype)
    scaled = divide_by_temperature(queries, temperature)
    return info_nce_rows(scaled, candidates, on_device(rows, queries.device), negatives, bias, compute)
