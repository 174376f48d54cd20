"""InfoNCE on tensors, for anyone's training loop.

M queries (rows), N candidates, D latent dim, B sequences, R drawn negatives.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.draws import draw_negatives
from cpc.losses.blocks import blocks, only_met
from cpc.losses.checks import check_shapes, check_values
from cpc.losses.fused import MeanInfoNCE
from cpc.losses.products import Products, RoundedProducts

COMPUTE: dict[str, type[Products]] = {"float32": Products, "bf16": RoundedProducts}


class InfoNCE(NamedTuple):
    """The loss of each row with its company; only `loss` carries gradients.

    Attributes:
        loss: scalar, nats: the mean of `loss_nats`.
        loss_nats: `[M]`, minus the log probability of the positive among the row's candidates.
        num_candidates: `[M]`, N of each row, the positive included.
        accuracy: `[M]`, [no negative scores higher] / (1 + ties): equal scores give exactly 1/N.
    """

    loss: Tensor
    loss_nats: Tensor
    num_candidates: Tensor
    accuracy: Tensor


def info_nce(
    queries: Float[Tensor, "M D"],
    candidates: Float[Tensor, "N D"],
    positives: Int[Tensor, " M"],
    *,
    query_sequence: Int[Tensor, " M"] | None = None,
    candidate_sequence: Int[Tensor, " N"] | None = None,
    allowed: Bool[Tensor, "B B"] | None = None,
    valid: Bool[Tensor, " N"] | None = None,
    log_q: Float[Tensor, " N"] | None = None,
    num_negatives: int | None = None,
    generator: torch.Generator | None = None,
    negatives: Int[Tensor, "M R"] | None = None,
    temperature: float | Tensor = 1.0,
    compute: str = "float32",
) -> InfoNCE:
    """Contrast each query's positive with the other candidates: eq. 4 of van den Oord et al. 2018 (arXiv:1807.03748).

    L = -log( exp s(q, z+) / sum over candidates of exp s(q, z) ) with s(q, z) = q . z / temperature, where q = W_k c
    for CPC. The softmax runs over candidates, never over queries; the positive enters its sum exactly once, also
    where its own sequence is not allowed. Scores and log-sum-exp are float32 (float64 for float64 input) whatever the
    autocast dtype.

    Args:
        queries: predictions W_k c.
        candidates: latents; those of padding are marked by `valid`.
        positives: index of each query's positive among the candidates.
        query_sequence: which sequence (row of `allowed`) each query belongs to.
        candidate_sequence: which sequence (column of `allowed`) each candidate belongs to.
        allowed: whose latents a sequence is compared with (`cpc.candidates.allowed_matrix`); None: everyone's.
        valid: candidates that exist; None: all.
        log_q: log expected count of each candidate in the drawn set, subtracted from every score
            (the posterior correction of sampled softmax).
        num_negatives: draw so many negatives per row, uniformly with replacement, instead of taking all.
        generator: source of those draws.
        negatives: the negatives of each row, instead of drawing them here, as places among the candidates; from the
            pool or not, never the positive.
        temperature: divides the scores; a positive tensor of one element gets a gradient.
        compute: `bf16` computes scores from operands rounded to bfloat16 and gradients with bfloat16 products: faster
            where the processor has units for it. Scores, log-sum-exp and sums over tiles stay float32, and so do
            products with negatives so few that their vectors are gathered (`cpc.losses.tiles`).

    Returns:
        `InfoNCE`, reduced to the mean over rows in `.loss`.

    Raises:
        ValueError: on shapes, dtypes or devices that do not fit each other, or a row without negatives.

    Example:
        >>> zeros = torch.zeros(3, 8)
        >>> result = info_nce(zeros, zeros, torch.arange(3))
        >>> bool(torch.isclose(result.loss, torch.tensor(3.0).log())), result.accuracy.tolist()
        (True, [0.3333333432674408, 0.3333333432674408, 0.3333333432674408])
    """
    check_shapes(queries, candidates, positives, query_sequence, candidate_sequence, allowed, valid, log_q, negatives)
    check_values(queries, candidates, positives, negatives, num_negatives, temperature)
    if allowed is None or query_sequence is None:
        query_sequence = torch.zeros_like(positives)
    pool = _pool(candidates, candidate_sequence, allowed, valid)  # [B, N]
    if num_negatives is not None and negatives is None:
        negatives = draw_negatives(pool, query_sequence, positives, num_negatives, generator)
    weight = torch.full(positives.shape, 1 / len(positives), device=positives.device, dtype=torch.float64)
    sequences = Sequences(allowed, query_sequence, candidate_sequence)
    # scores are float32 whatever the queries' dtype: so is the division
    is_one = not isinstance(temperature, Tensor) and temperature == 1
    dtype = _score_dtype(queries)
    temperature = temperature.to(dtype) if isinstance(temperature, Tensor) else temperature
    scaled = queries if is_one else queries.to(dtype) / temperature
    return info_nce_of_rows(
        scaled,
        candidates,
        positives,
        query=None,
        weight=weight,
        pool=pool,
        sequences=sequences,
        bias=None if log_q is None else -log_q,
        negatives=negatives,
        compute=compute,
    )


class Sequences(NamedTuple):
    """`allowed` `[B, B]` or None, and who belongs to which of its rows `[M]` and columns `[N]`."""

    allowed: Tensor | None
    of_row: Tensor
    of_candidate: Tensor | None


def info_nce_of_rows(
    queries: Float[Tensor, "Q D"],
    candidates: Float[Tensor, "N D"],
    positives: Int[Tensor, " M"],
    *,
    query: Int[Tensor, " M"] | None,
    weight: Float[Tensor, " M"],
    pool: Bool[Tensor, "B N"],
    sequences: Sequences,
    negatives: Int[Tensor, "M R"] | None,
    compute: str,
    bias: Float[Tensor, " N"] | None = None,
) -> InfoNCE:
    """`info_nce` of those queries that `query` names, with a weight for each row instead of a plain mean.

    `bias` is added to the scores.

    Raises:
        ValueError: on an unknown `compute`, or a row without negatives.
    """
    if compute not in COMPUTE:
        raise ValueError(f"compute={compute!r} is not one of {', '.join(COMPUTE)}")
    if negatives is None:
        num_candidates = pool.sum(1)[sequences.of_row] - pool[sequences.of_row, positives].long() + 1
    else:
        num_candidates = torch.full_like(positives, negatives.shape[1] + 1)
    if bool((num_candidates < 2).any()):
        raise ValueError(
            f"{int((num_candidates < 2).sum())} of {len(positives)} rows have no negative: their loss is 0 and "
            "teaches nothing; allow more sequences or put more of them in the batch"
        )
    dtype = _score_dtype(queries)
    if dtype == torch.float64 and compute != "float32":
        raise ValueError(f"compute={compute!r} rounds operands, but the queries are float64: pass float32 ones")

    def is_met() -> Tensor:
        if negatives is None:
            found = pool[sequences.of_row.unique()].any(0)
        else:
            found = torch.zeros_like(pool[0])
            found[negatives.flatten()] = True
        found[positives] = True
        return found

    with torch.autocast(queries.device.type, enabled=False):
        loss, loss_nats, accuracy = MeanInfoNCE.apply(
            queries,
            only_met(candidates.to(dtype), is_met),
            query,
            weight.to(dtype),
            None if bias is None else bias.to(dtype),
            blocks(pool, sequences.allowed, sequences.of_row, sequences.of_candidate, positives, negatives),
            COMPUTE[compute],
        )
    return InfoNCE(loss, loss_nats, num_candidates, accuracy)


def _score_dtype(queries: Tensor) -> torch.dtype:
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def _pool(
    candidates: Tensor, candidate_sequence: Tensor | None, allowed: Tensor | None, valid: Tensor | None
) -> Tensor:
    """`[B, N]`, or `[1, N]` without sequences: the candidates that each sequence's queries may meet."""
    everyone = torch.ones(1, len(candidates), dtype=torch.bool, device=candidates.device)
    pool = everyone if allowed is None else allowed[:, candidate_sequence]
    return pool if valid is None else pool & valid
