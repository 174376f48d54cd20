"""What `info_nce` refuses, and how it says so: what was given, what it needs. All raise ValueError."""

import torch
from einops import rearrange
from torch import Tensor


def check_shapes(
    queries: Tensor,
    candidates: Tensor,
    positives: Tensor,
    query_sequence: Tensor | None,
    candidate_sequence: Tensor | None,
    allowed: Tensor | None,
    valid: Tensor | None,
    log_q: Tensor | None,
    negatives: Tensor | None,
) -> None:
    """Refuse lengths that do not go together, naming the argument."""
    num_rows, num_candidates = len(queries), len(candidates)
    if num_rows == 0:
        raise ValueError("no queries: every sequence is too short for this prediction step")
    if queries.shape[1] != candidates.shape[1]:
        raise ValueError(f"queries have {queries.shape[1]} channels, candidates {candidates.shape[1]}")
    lengths = {
        "positives": (positives, num_rows),
        "negatives": (negatives, num_rows),
        "query_sequence": (query_sequence, num_rows),
        "candidate_sequence": (candidate_sequence, num_candidates),
        "valid": (valid, num_candidates),
        "log_q": (log_q, num_candidates),
    }
    for name, (given, expected) in lengths.items():
        if given is not None and len(given) != expected:
            raise ValueError(
                f"{name} has {len(given)} entries, but there are {num_rows} queries and {num_candidates} candidates: "
                f"it needs {expected}"
            )
    if (allowed is None) != (query_sequence is None) or (allowed is None) != (candidate_sequence is None):
        raise ValueError(
            "allowed, query_sequence and candidate_sequence go together: whose latents a sequence meets, and who "
            "belongs to whom; give all three or none"
        )
    if allowed is not None and query_sequence is not None and candidate_sequence is not None:
        needed = (int(query_sequence.max()) + 1, int(candidate_sequence.max()) + 1)
        if allowed.ndim != 2 or allowed.dtype != torch.bool or any(map(int.__lt__, allowed.shape, needed)):
            raise ValueError(
                f"allowed is {allowed.dtype} {tuple(allowed.shape)}, but the sequences of queries and candidates need "
                f"torch.bool of at least {needed}: a row for each sequence of queries, a column for each of candidates"
            )


def check_values(
    queries: Tensor,
    candidates: Tensor,
    positives: Tensor,
    negatives: Tensor | None,
    num_negatives: int | None,
    temperature: float | Tensor,
) -> None:
    """Refuse devices, dtypes, indices and numbers that make no loss."""
    if len({queries.device, candidates.device, positives.device}) > 1:
        raise ValueError(
            f"queries, candidates and positives are on {queries.device}, {candidates.device} and {positives.device}; "
            "move them to one device"
        )
    for name, indices in (("positives", positives), ("negatives", negatives)):
        if indices is not None and (int(indices.min()) < 0 or int(indices.max()) >= len(candidates)):
            raise ValueError(
                f"{name} index the {len(candidates)} candidates, got values from {int(indices.min())} to "
                f"{int(indices.max())}"
            )
    if queries.dtype != candidates.dtype and torch.float64 in (queries.dtype, candidates.dtype):
        raise ValueError(
            f"queries are {queries.dtype}, candidates {candidates.dtype}: float64 goes with float64 alone; convert one"
        )
    if negatives is not None and bool((negatives == rearrange(positives, "m -> m 1")).any()):
        raise ValueError("negatives hold a row's own positive: it would be scored twice; draw another in its place")
    if num_negatives is not None and num_negatives < 1:
        raise ValueError(f"num_negatives={num_negatives} must be at least 1, or None for all candidates")
    if isinstance(temperature, Tensor) and temperature.numel() != 1:
        raise ValueError(f"temperature {tuple(temperature.shape)} must be a number or a tensor of one element")
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")
