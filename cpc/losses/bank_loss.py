"""InfoNCE against a bank of stored latents: all of them, exactly and in tiles, or as many as a sampler drew.

M queries (rows), n latents of the bank, m drawn ones, D latent dim.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.bank import LatentBank
from cpc.candidates.samplers import Draw, without_hits
from cpc.losses.candidate_loss import Shifts, candidate_loss, tie_width
from cpc.losses.class_loss import check_places
from cpc.losses.partition import log_partition

CORRECTIONS = ("importance", "posterior")


class BankLoss(NamedTuple):
    """The loss of each row with its company; only `loss` carries gradients.

    Attributes:
        loss: scalar, nats: the mean of `loss_nats`.
        loss_nats: `[M]`.
        num_candidates: `[M]`, N: the positive and the latents of the bank that are its negatives, drawn or not.
        accuracy: `[M]`, [no negative that was met scores higher] / (1 + ties); scores that differ by no more than
            rounding are ties. nan for a row that met none.
        num_met: `[M]`, negatives that were met: all of them, or the places of a draw that hold no latent of the row's
            own. The loss of a row that met none is 0 and says nothing: `mi_nats` leaves it out.
        num_sampled: m; None: every latent was met.
        correction: of the draws; None without.
    """

    loss: Tensor
    loss_nats: Tensor
    num_candidates: Tensor
    accuracy: Tensor
    num_met: Tensor
    num_sampled: int | None
    correction: str | None

    @property
    def mi_nats(self) -> float:
        """Mean of log N - L over the rows that met a negative, which is what `reading` says.

        Raises:
            ValueError: with the posterior correction, whose loss is that of another problem; if no row met a negative.
        """
        if self.correction == "posterior":
            raise ValueError(
                "the loss with correction='posterior' is no estimate of the bank's: log N - L would say nothing; "
                "measure with the importance correction, or without a draw"
            )
        has_met = self.num_met > 0
        if not bool(has_met.any()):
            raise ValueError(f"no row met a negative: all {self.num_sampled} draws were the rows' own; draw more")
        return float((self.num_candidates.double().log() - self.loss_nats.double())[has_met].mean())

    @property
    def reading(self) -> str:
        """What log N - L is, in words for a legend."""
        if self.correction == "posterior":
            return "loss of a draw, neither a bound on I(z; c) nor an estimate of one"
        if self.num_sampled is not None:
            num_left_out = int((self.num_met == 0).sum())
            left_out = f" (without {num_left_out} rows that met no negative)" if num_left_out else ""
            return f"estimate from {self.num_sampled} draws{left_out}, too high in the mean, no bound on I(z; c)"
        return "lower bound on I(z; c), if the bank's latents are this encoder's and independent of the contexts"


def bank_loss(
    queries: Float[Tensor, "M D"],
    positives: Float[Tensor, "M D"],
    bank: LatentBank,
    draw: Draw | None = None,
    *,
    correction: str = "importance",
    sequence_id: Int[Tensor, " M"] | None = None,
    targets: Int[Tensor, " M"] | None = None,
    temperature: float | Tensor = 1.0,
) -> BankLoss:
    """Contrast each query's positive with a bank: L = -log( exp s+ / (exp s+ + sum over the bank of exp s_i) ).

    Without a draw the sum is exact, at the cost of a pass over the bank in tiles (`cpc.losses.partition`): the loss,
    and log N - L, of all N candidates. With a draw of m it costs m:

    - `importance` (Bengio and Senecal 2003; eq. 5 of Rawat et al. 2019, arXiv:1907.10747): candidates' scores less
      their log expected count, the positive's as it is. The sum Z' that a row sees has E[Z'] = Z, so the loss
      estimates that of the bank, and tends to it as m grows. E[log Z'] <= log Z: what a draw reads as log N - L is too
      high in the mean, by about Var[Z' / Z] / 2, and no bound. Train with draws, then measure without.
    - `posterior` (sampled softmax as TensorFlow has it): the log expected count is subtracted from the positive's score
      too, which has to be in the bank for it to have one. A loss to train with, no estimate.

    A row's own sequence and its target are its negatives in neither case: of a draw their places are left empty, which
    keeps E[Z'] = Z for the rest.

    Args:
        queries: predictions W_k c.
        positives: the latent that each of them is to find; gets a gradient, the bank gets none.
        bank: the negatives.
        draw: what a sampler drew for these queries from `len(bank)` classes; None: all of the bank. Candidates of each
            query's own are gathered, `[M, m, D]`; shared ones cost a matrix product.
        correction: of the draw: `importance` or `posterior`.
        sequence_id: of each row; latents of the same sequence are left out; -1: none.
        targets: the place of each row's positive in the bank, -1 where it is not there; None: nowhere.
        temperature: divides the scores; a positive tensor of one element gets a gradient.

    Raises:
        ValueError: on shapes that do not fit the bank, an unknown correction, targets or drawn places out of range, a
            draw for other rows, `posterior` for positives that are not in the bank, or a row that the bank has no
            negative for.

    Example:
        >>> bank = LatentBank(torch.zeros(99, 8))
        >>> result = bank_loss(torch.zeros(2, 8), torch.zeros(2, 8), bank)
        >>> abs(result.mi_nats) < 1e-6, result.num_candidates.tolist()
        (True, [100, 100])
    """
    _check(queries, positives, bank, draw, correction, sequence_id, targets, temperature)
    is_one = not isinstance(temperature, Tensor) and temperature == 1
    queries = queries if queries.dtype == torch.float64 else queries.float()
    queries = queries if is_one else queries / temperature
    num_negatives = _num_negatives(bank, queries, sequence_id, targets)
    if draw is None:
        with torch.autocast(queries.device.type, enabled=False):
            return _exact(queries, positives.to(queries.dtype), bank, num_negatives, sequence_id, targets)
    log_count = _of_others(bank, draw, sequence_id, targets).to(queries)
    of_positive = log_count.new_zeros(len(queries), 1)
    if correction == "posterior":
        of_positive = draw.log_count_targets.reshape(-1, 1).to(log_count)
    found = candidate_loss(
        queries,
        rearrange(positives, "m d -> m 1 d"),
        bank.latents[draw.ids.to(bank.latents.device)].to(queries.device),
        form="softmax",
        shifts=Shifts(of_positive, log_count),
    )
    num_sampled = draw.ids.shape[-1]
    num_met = found.num_candidates - 1
    accuracy = torch.where(num_met > 0, found.accuracy, torch.nan)
    return BankLoss(found.loss, found.loss_nats, num_negatives + 1, accuracy, num_met, num_sampled, correction)


def _exact(
    queries: Tensor,
    positives: Tensor,
    bank: LatentBank,
    num_negatives: Tensor,
    sequence_id: Tensor | None,
    targets: Tensor | None,
) -> BankLoss:
    positive_scores = torch.einsum("md,md->m", queries, positives)
    rounding = tie_width(queries, rearrange(positives, "m d -> m 1 d"))
    of_bank = log_partition(queries, bank, positive_scores, rounding, sequence_id=sequence_id, targets=targets)
    loss_nats = F.softplus(of_bank.log_odds)  # log(1 + Z / exp s+), which stays precise where the loss is tiny
    shared = 1 / (1 + of_bank.num_ties.float())
    accuracy = torch.where(of_bank.highest > positive_scores + rounding, 0.0, shared)
    return BankLoss(loss_nats.mean(), loss_nats.detach(), num_negatives + 1, accuracy, num_negatives, None, None)


def _of_others(bank: LatentBank, draw: Draw, sequence_id: Tensor | None, targets: Tensor | None) -> Tensor:
    """The draw's log counts, +inf for what is a row's own."""
    ids, log_count = draw.ids, draw.log_count_sampled
    if sequence_id is not None:
        own, of_drawn = rearrange(sequence_id, "q -> q 1"), bank.sequence_id[ids.to(bank.sequence_id.device)]
        log_count = torch.where((own == of_drawn.to(own.device)) & (own >= 0), torch.inf, log_count)
    return log_count if targets is None else without_hits(ids.expand_as(log_count), log_count, targets)


def _num_negatives(
    bank: LatentBank, queries: Tensor, sequence_id: Tensor | None, targets: Tensor | None
) -> Int[Tensor, " M"]:
    """How many latents of the bank are a row's negatives."""
    num_own = torch.zeros(len(queries), dtype=torch.long, device=queries.device)
    if sequence_id is not None:
        num_own += bank.num_of(sequence_id)
    if targets is not None:
        is_another = targets >= 0
        if sequence_id is not None:  # than those of its sequence
            of_target = bank.sequence_id[targets.to(bank.sequence_id.device)].to(targets.device)
            is_another &= (of_target != sequence_id) | (sequence_id < 0)
        num_own += is_another
    num_negatives = len(bank) - num_own
    if bool((num_negatives < 1).any()):
        raise ValueError(
            f"{int((num_negatives < 1).sum())} of {len(queries)} rows find nothing but their own sequence in the bank: "
            "fill it from more files"
        )
    return num_negatives


def _check(
    queries: Tensor,
    positives: Tensor,
    bank: LatentBank,
    draw: Draw | None,
    correction: str,
    sequence_id: Tensor | None,
    targets: Tensor | None,
    temperature: float | Tensor,
) -> None:
    if queries.shape != positives.shape or queries.shape[1] != bank.dim or len(queries) == 0:
        raise ValueError(
            f"queries {tuple(queries.shape)}, positives {tuple(positives.shape)} and a bank of {bank.dim} channels do "
            "not go together: they need one row each, at least one, and the same channels"
        )
    for name, given in (("sequence_id", sequence_id), ("targets", targets)):
        if given is not None and given.shape != (len(queries),):
            raise ValueError(f"{name} {tuple(given.shape)}: {len(queries)} queries need one each")
    if targets is not None and not -1 <= int(targets.min()) <= int(targets.max()) < len(bank):
        raise ValueError(
            f"targets run from {int(targets.min())} to {int(targets.max())}, the bank's places from 0 to "
            f"{len(bank) - 1} (-1: not in the bank)"
        )
    if correction not in CORRECTIONS:
        raise ValueError(f"correction={correction!r} is not one of {', '.join(CORRECTIONS)}")
    if not temperature > 0:
        raise ValueError(f"temperature={float(temperature)} must be positive")
    if draw is None:
        return
    check_places(draw, len(queries))
    if draw.ids.numel() and not 0 <= int(draw.ids.min()) <= int(draw.ids.max()) < len(bank):
        raise ValueError(
            f"the draw's ids run from {int(draw.ids.min())} to {int(draw.ids.max())}, the bank's places from 0 to "
            f"{len(bank) - 1}: was the sampler built for len(bank) classes?"
        )
    if correction != "posterior":
        return
    if draw.log_count_targets.numel() != len(queries):
        raise ValueError(
            f"log_count_targets {tuple(draw.log_count_targets.shape)} are not one for each of {len(queries)} queries"
        )
    if targets is None or bool((targets < 0).any()) or not bool(draw.log_count_targets.isfinite().all()):
        raise ValueError(
            "correction='posterior' subtracts the positive's own log expected count: give the place of every positive "
            "in the bank as targets, here and to the sampler, or choose correction='importance'"
        )
