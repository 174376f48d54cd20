"""InfoNCE against a bank of stored latents: against the whole bank, in tiles, or against latents that a sampler drew.

M queries (rows), n latents of the bank, m drawn latents, D latent dim.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.bank import LatentBank
from cpc.candidates.samplers import Draw
from cpc.config.argument_rules import Range
from cpc.data.tensors import check_precision, check_tensor
from cpc.losses.class_loss import candidate_loss
from cpc.losses.engine import ScoreCorrections, divide_by_temperature, partition_loss, score_dtype
from cpc.losses.output import RowLosses


def bank_loss(
    queries: Float[Tensor, "M D"],
    positives: Float[Tensor, "M D"],
    bank: LatentBank,
    draw: Draw | None = None,
    *,
    sequence_id: Int[Tensor, " M"] | None = None,
    temperature: float | Tensor = 1.0,
) -> RowLosses:
    """Return the loss of each query's positive against a bank: L = -log( exp s+ / (exp s+ + sum of exp s_i) ).

    Without a draw the sum is exact and takes a pass over the bank in tiles; log N - L is that of all N candidates. With
    a draw the cost is O(m) per query. The log expected count of each candidate is then subtracted from its score, but
    not from the positive's score (Bengio and Senecal 2003; eq. 5 of Rawat et al. 2019, arXiv:1907.10747). The sum Z'
    over the draw has E[Z'] = Z. Since E[log Z'] <= log Z, log N - L is too high in the mean, by about Var[Z' / Z] / 2,
    and is not a bound. Train with draws, and measure without.

    Args:
        queries: predictions W_k c.
        positives: the latent that each query should find. Positives get a gradient, the bank does not.
        bank: the negatives.
        draw: candidates that a sampler drew for these queries from `len(bank)` classes; None: the whole bank.
            Candidates that are separate for each query are gathered as `[M, m, D]`.
        sequence_id: the sequence of each row. Latents of the same sequence, such as a stored positive, are left out of
            Z and the draw. With -1 no latent is left out.
        temperature: divides the scores; a positive tensor of one element gets a gradient.

    Raises:
        ValueError: if shapes do not fit the bank, a draw has ids out of range or another number of rows, or a row has
            no negative in the bank.

    Example:
        >>> bank = LatentBank(torch.zeros(99, 8))
        >>> result = bank_loss(torch.zeros(2, 8), torch.zeros(2, 8), bank)
        >>> abs(result.mi_nats) < 1e-6, result.num_candidates.tolist()
        (True, [100, 100])
    """
    check_tensor("queries", queries, "floats", ("M", bank.dim))
    Range(1).check("the number of queries", len(queries))
    check_tensor("positives", positives, "floats", tuple(queries.shape))
    check_precision(queries=queries, positives=positives)
    if sequence_id is not None:
        check_tensor("sequence_id", sequence_id, "integers", (len(queries),))
    if draw is not None:
        draw.check(len(queries), len(bank), "latents of the bank")
    queries = divide_by_temperature(queries.to(score_dtype(queries)), temperature)
    num_own = 0 if sequence_id is None else bank.num_of(sequence_id)
    num_negatives = torch.full((len(queries),), len(bank), device=queries.device) - num_own
    if bool((num_negatives < 1).any()):
        num = f"{int((num_negatives < 1).sum())} of {len(queries)} rows"
        raise ValueError(f"{num} have only latents of their own sequence in the bank: fill it from more files")
    if draw is None:
        with torch.autocast(queries.device.type, enabled=False):
            loss, loss_nats, accuracy = partition_loss(queries, positives.to(queries.dtype), bank, sequence_id)
        return RowLosses(loss, loss_nats, num_negatives + 1, accuracy)
    log_count = draw.log_count_sampled
    if sequence_id is not None:
        own, drawn = rearrange(sequence_id, "q -> q 1"), bank.sequence_id[draw.ids.to(bank.sequence_id.device)]
        log_count = torch.where((own == drawn.to(own.device)) & (own >= 0), torch.inf, log_count)
    corrections = ScoreCorrections(log_count, queries.new_zeros(len(queries), 1))
    drawn = bank.latents[draw.ids.to(bank.latents.device)].to(queries.device)
    found = candidate_loss(queries, drawn, None, (rearrange(positives, "m d -> m 1 d"), None), corrections)
    num_drawn = found.num_candidates - 1
    accuracy = torch.where(num_drawn > 0, found.accuracy, torch.nan)
    return RowLosses(found.loss, found.loss_nats, num_negatives + 1, accuracy, num_drawn, draw.ids.shape[-1])
