"""Drawing without replacement: the first m distinct classes of a stream of independent draws.

Let draws of a law q arrive as a Poisson process of rate 1. Class i arrives for the first time at T_i ~ Exp(q_i),
independently of all others, so that -log T_i is the Gumbel key log q_i + G_i: the first m distinct arrivals, which
rejection collects one by one, are the m largest keys (Gumbel top-k). Hence a few more than m draws give the keys of
all n classes that matter, and a class that is not among the draws can be given an exact T_i afterwards.

R rows that are drawn independently, m classes drawn per row, J draws in the stream, n classes, E classes excluded.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from cpc.candidates.samplers.proposal import ProposalSampler

if TYPE_CHECKING:
    pass

MOST_TABLE_ENTRIES = 2**24  # 64 MiB; beyond, first places are found by sorting


class Arrivals(NamedTuple):
    """The first m distinct classes of each row.

    Attributes:
        ids: `[R, m]`, in the order in which they came.
        until: `[R]`, the time at which one more class would have come; inf where there is none.
        num_tries: `[R]`, the draws that it took to collect them, repeats and excluded ones included.
    """

    ids: Tensor
    until: Tensor
    num_tries: Tensor


def first_arrivals(
    proposal: "ProposalSampler", num: int, excluded: Int[Tensor, "R E"], generator: torch.Generator | None = None
) -> Arrivals:
    """The first `num` distinct classes of R streams, those excluded crossed out.

    The cost is that of a little more than the draws which rejection needs. Where as many as there are classes are
    not enough, the rest comes from n exponential clocks, which leaves the law as it is: the time until an unseen
    class comes does not depend on how long one has waited.

    Args:
        proposal: of the draws.
        num: m; every row must have as many classes of positive probability that are not excluded.
        excluded: classes that cannot come, -1 where a row has fewer; its rows are the R streams.
        generator: source of the draws, on the CPU.
    """
    num_rows, device, num_possible = len(excluded), excluded.device, proposal.num_possible

    def more(num_draws: int) -> Tensor:
        uniform = torch.rand(num_rows, num_draws, generator=generator, dtype=torch.float64)
        return proposal.inverse_cdf(uniform.to(device))

    stream = more(2 * num + 2)
    while True:
        num_draws = stream.shape[1]
        is_first = first_places(stream, proposal.num_classes) == torch.arange(num_draws, device=device)
        is_new = is_first & ~are_among(stream, excluded)
        num_new = is_new.cumsum(1)
        fewest = int(num_new[:, -1].min())
        if fewest > num or num_draws >= num_possible:
            break
        missing = num + 1 - fewest
        stream = torch.cat([stream, more(min(num_possible, 2 * missing * num_draws // max(fewest, 1) + 1))], dim=1)

    if fewest <= num:
        return _by_clocks(stream, proposal.probabilities(device), num, excluded, generator)
    # The first m go where they are counted; a column that is cut off takes all others.
    place = (num_new - 1).masked_fill_(~is_new, num).clamp_(max=num)
    reached = torch.tensor([num, num + 1], device=device).expand(num_rows, 2).contiguous()
    num_tries, num_until = (torch.searchsorted(num_new, reached) + 1).unbind(1)
    return Arrivals(
        ids=torch.empty_like(stream[:, : num + 1]).scatter_(1, place, stream)[:, :num],
        # Draws come an exponential time after each other.
        until=torch._standard_gamma(num_until.double().cpu(), generator).to(device),
        num_tries=num_tries,
    )


def _by_clocks(
    stream: Int[Tensor, "R J"],
    probabilities: Float[Tensor, " n"],
    num: int,
    excluded: Int[Tensor, "R E"],
    generator: torch.Generator | None,
) -> Arrivals:
    """Where a stream holds too few: each class that has not come yet has an exponential clock."""
    num_classes = len(probabilities)
    times = exponentials(stream.shape, generator).to(stream.device).cumsum(1)
    waited = exponentials((len(stream), num_classes), generator).to(stream.device) / probabilities
    started = times[:, -1:]
    clocks = F.pad(started + waited, (0, 1), value=torch.inf)  # the last column is for no class
    clocks.scatter_reduce_(1, stream, times, "amin")
    is_excluded = torch.zeros_like(clocks, dtype=torch.bool)
    is_excluded.scatter_(1, torch.where(excluded < 0, num_classes, excluded), True)
    clocks.masked_fill_(is_excluded, torch.inf)

    first, ids = clocks.topk(num + 1, largest=False)
    first, until, ids = first[:, :num], first[:, num], ids[:, :num]
    last = first[:, -1:]
    # Who has come, or is excluded, keeps coming while the clocks run; nothing remembers these draws but their number.
    since = torch.where(is_excluded, started, clocks.maximum(started))
    repeating = F.pad(probabilities, (0, 1)) * (is_excluded | (clocks <= last))
    num_repeats = torch.poisson((repeating * (last - since).clamp(min=0)).sum(1).cpu(), generator)
    num_tries = (times <= last).sum(1) + (first > started).sum(1) + num_repeats.to(ids)
    return Arrivals(ids, until, num_tries)


def exponentials(shape: tuple[int, ...], generator: torch.Generator | None = None) -> Float[Tensor, "..."]:
    """Waiting times of mean 1, on the CPU; by inversion, which is four times faster than `Tensor.exponential_`."""
    return torch.rand(shape, generator=generator, dtype=torch.float64).neg_().log1p_().neg_()


def first_places(ids: Int[Tensor, "R J"], num_classes: int) -> Int[Tensor, "R J"]:
    """Where in its row each entry came first."""
    num_rows, num_draws = ids.shape
    places = torch.arange(num_draws, dtype=torch.int32, device=ids.device).expand_as(ids)
    if num_rows * num_classes <= MOST_TABLE_ENTRIES:
        table = torch.empty(num_rows, num_classes, dtype=torch.int32, device=ids.device)
        # Only what is looked up is written: n may be a million, J a thousand.
        return table.scatter_reduce_(1, ids, places, "amin", include_self=False).gather(1, ids)
    in_order, order = ids.sort(dim=1, stable=True)
    is_first = F.pad(in_order[:, 1:] != in_order[:, :-1], (1, 0), value=True)
    first_of_group = torch.where(is_first, places, 0).cummax(1).values.long()
    return torch.empty_like(ids).scatter_(1, order, order.gather(1, first_of_group))


def are_among(ids: Int[Tensor, "R J"], members: Int[Tensor, "R E"]) -> Bool[Tensor, "R J"]:
    """Which entries of a row of `ids` are in the same row of `members`."""
    if members.shape[1] == 0:
        return torch.zeros_like(ids, dtype=torch.bool)
    in_order = members.sort(dim=1).values
    places = torch.searchsorted(in_order, ids.contiguous()).clamp(max=members.shape[1] - 1)
    return in_order.gather(1, places) == ids
