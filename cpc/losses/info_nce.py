"""InfoNCE on tensors, for anyone's training loop.

M queries (rows), N candidates, D latent dim, B sequences, R drawn negatives.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.data.tensors import check_count, check_precision, check_range, check_tensor
from cpc.losses.candidate_sets import CandidateSet, plan_of_blocks
from cpc.losses.definition import definition
from cpc.losses.engine.blocks import Block, Blocks, blocks
from cpc.losses.engine.tiled_loss import mask_unused, scaled, score_dtype, tiled_loss
from cpc.losses.engine.tiles import COMPUTE
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
    compute: str = "float32",
) -> RowLosses:
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
        log_count: log expected count of each candidate in the drawn set, subtracted from every score (the posterior
            correction of sampled softmax).
        num_negatives: draw so many negatives per row, uniformly with replacement, instead of taking all.
        generator: source of those draws.
        negatives: the negatives of each row, instead of drawing them here, as places among the candidates; from the
            pool or not, never the positive.
        temperature: divides the scores; a positive tensor of one element gets a gradient.
        compute: `bf16` computes scores from operands rounded to bfloat16 and gradients with bfloat16 products: faster
            where the processor has units for it. Scores, log-sum-exp and sums over tiles stay float32, and so do
            products with negatives so few that their vectors are gathered. `reference` computes the definition as it is
            written (`cpc.losses.definition`), with all M x N scores at once.

    Returns:
        `RowLosses`, reduced to the mean over rows in `.loss`.

    Raises:
        ValueError: on shapes, dtypes or devices that do not fit each other, or a row without negatives.

    Example:
        >>> zeros = torch.zeros(3, 8)
        >>> result = info_nce(zeros, zeros, torch.arange(3))
        >>> bool(torch.isclose(result.loss, torch.tensor(3.0).log())), result.accuracy.tolist()
        (True, [0.3333333432674408, 0.3333333432674408, 0.3333333432674408])
    """
    _check_kinds(queries, candidates, positives, negatives)
    _check_sequences(query_sequence, candidate_sequence, allowed, len(queries), len(candidates))
    _check_places(len(candidates), positives, negatives)
    if valid is not None:
        check_tensor("valid", valid, "booleans", (len(candidates),))
    if log_count is not None:
        check_tensor("log_count", log_count, "floats", (len(candidates),))
        if not bool(log_count.isfinite().all()):
            raise ValueError("log_count holds values that are not finite: mark candidates that do not exist by valid")
    if num_negatives is not None:
        check_count("num_negatives", num_negatives, 1)
    if num_negatives is not None and negatives is not None:
        raise ValueError(f"num_negatives={num_negatives} draws negatives, but negatives are given: leave one out")
    # As indices short integers are refused, and uint8 would be a mask.
    sequence, of_candidate = (
        None if each is None else each.cpu().long() for each in (query_sequence, candidate_sequence)
    )
    allowed, valid = (None if each is None else each.cpu() for each in (allowed, valid))
    places = positives.cpu().long()
    negatives = None if negatives is None else negatives.long()
    pool = torch.ones(1, len(candidates), dtype=torch.bool) if allowed is None else allowed[:, of_candidate]  # [B, N]
    pool = pool if valid is None else pool & valid
    nothing = torch.zeros_like(places)
    sequence = nothing if sequence is None else sequence
    if negatives is None:
        of_blocks = blocks(pool, allowed, sequence, of_candidate, places)
    else:  # from the pool or not
        of_blocks = Blocks.of([Block(positives=rearrange(places, "m -> m 1"))])
    candidate_set = plan_of_blocks(None, nothing, sequence, places, pool, of_blocks, (1, 1, len(places)))
    is_alone = candidate_set.num_negatives < 1
    if negatives is None and bool(is_alone.any()):
        raise ValueError(
            f"{int(is_alone.sum())} of {len(places)} rows have no negative: their loss is 0 and teaches nothing; allow "
            "more sequences or put more of them in the batch"
        )
    if num_negatives is not None and negatives is None:
        negatives = candidate_set.draw(num_negatives, generator, device=queries.device)
    bias = None if log_count is None else -log_count.detach().to(score_dtype(queries))
    return loss_of_rows(
        scaled(queries, temperature), candidates, candidate_set.on(queries.device), negatives, compute, bias
    )


def loss_of_rows(
    queries: Float[Tensor, "Q D"],
    candidates: Float[Tensor, "N D"],
    candidate_set: CandidateSet,
    negatives: Int[Tensor, "M R"] | None,
    compute: str,
    bias: Float[Tensor, " N"] | None = None,
) -> RowLosses:
    """`info_nce` of planned rows: nothing here depends on values, or waits for a GPU; `bias` adds to scores.

    Raises:
        ValueError: on an unknown `compute`, or one that rounds float64.
    """
    if compute not in COMPUTE:
        raise ValueError(f"compute={compute!r} is not one of {', '.join(COMPUTE)}")
    dtype = score_dtype(queries)
    if dtype == torch.float64 and compute == "bf16":
        raise ValueError(f"compute={compute!r} rounds operands, but the queries are float64: pass float32 ones")

    def is_used() -> Tensor:
        if negatives is None:
            return candidate_set.is_used
        return torch.zeros_like(candidate_set.is_used).index_fill(
            0, torch.cat([negatives.flatten(), candidate_set.positives]), True
        )

    num_negatives = candidate_set.num_negatives
    if negatives is not None:
        num_negatives = torch.full_like(num_negatives, negatives.shape[1])
    if compute == "reference":
        row_queries = (queries if candidate_set.query is None else queries[candidate_set.query]).to(dtype)
        used = mask_unused(candidates.to(dtype), is_used)
        mask = None if negatives is not None else candidate_set.pool[candidate_set.sequence]
        with torch.autocast(queries.device.type, enabled=False):
            found = definition(
                row_queries, used, candidate_set.positives, candidate_set.weight.to(dtype), mask, negatives, bias
            )
        return RowLosses(found[0], found[1], num_negatives + 1, found[2])
    loss, loss_nats, accuracy = tiled_loss(
        queries,
        mask_unused(candidates.to(dtype), is_used),
        candidate_set.blocks,
        candidate_set.weight.to(dtype),
        query=candidate_set.query,
        negatives=negatives,
        bias=bias,
        compute=compute,
    )
    return RowLosses(loss, loss_nats, num_negatives + 1, accuracy)


def _check_kinds(queries: Tensor, candidates: Tensor, positives: Tensor, negatives: Tensor | None) -> None:
    check_tensor("queries", queries, "floats", ("M", "D"))
    if len(queries) == 0:
        raise ValueError("no queries: every sequence is too short for this prediction step")
    check_tensor("candidates", candidates, "floats", ("N", queries.shape[1]))
    check_tensor("positives", positives, "integers", (len(queries),))
    if negatives is not None:
        check_tensor("negatives", negatives, "integers", (len(queries), "R"))
        check_count("the number of negatives of a row", negatives.shape[1], 1)
    check_precision(queries=queries, candidates=candidates)
    devices = [each.device for each in (queries, candidates, positives)]
    if len(set(devices)) > 1:
        raise ValueError(
            "queries, candidates and positives are on {}, {} and {}; move them to one device".format(*devices)
        )


def _check_sequences(
    query_sequence: Tensor | None,
    candidate_sequence: Tensor | None,
    allowed: Tensor | None,
    num_queries: int,
    num_candidates: int,
) -> None:
    if (allowed is None) != (query_sequence is None) or (allowed is None) != (candidate_sequence is None):
        raise ValueError(
            "allowed, query_sequence and candidate_sequence go together: whose latents a sequence meets, and who "
            "belongs to whom; give all three or none"
        )
    if allowed is None or query_sequence is None or candidate_sequence is None:
        return
    check_tensor("allowed", allowed, "booleans", ("B", "B"))
    check_tensor("query_sequence", query_sequence, "integers", (num_queries,))
    check_tensor("candidate_sequence", candidate_sequence, "integers", (num_candidates,))
    check_range("query_sequence", query_sequence, 0, allowed.shape[0], "rows of allowed")
    check_range("candidate_sequence", candidate_sequence, 0, allowed.shape[1], "columns of allowed")


def _check_places(num_candidates: int, positives: Tensor, negatives: Tensor | None) -> None:
    check_range("positives", positives, 0, num_candidates, "candidates")
    if negatives is not None:
        check_range("negatives", negatives, 0, num_candidates, "candidates")
        if bool((negatives == rearrange(positives, "m -> m 1")).any()):
            raise ValueError("negatives hold a row's own positive: it would be scored twice; draw another in its place")
