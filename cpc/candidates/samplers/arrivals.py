"""Sampling without replacement: the first m distinct classes of a stream of independent samples.

Let samples of a proposal q arrive as a Poisson process of rate 1. Class i first arrives at time T_i ~ Exp(q_i),
independently of all other classes, so -log T_i is the Gumbel key log q_i + G_i. The first m distinct arrivals, which
rejection would collect one by one, are the classes with the m largest keys (Gumbel top-k). A stream of a few more than
m samples therefore contains all relevant keys, and a class outside the stream can be given an exact T_i afterwards.

R independent rows, m candidates per row, J samples in the stream, n classes, E excluded classes.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from cpc.candidates.samplers.proposal import ProposalSampler

Arrivals = tuple[Int[Tensor, "R m"], Float[Tensor, " R"], Int[Tensor, " R"]]
MOST_TABLE_ENTRIES = 2**24  # entries of a table of 64 MiB; larger inputs are sorted instead


def first_arrivals(
    proposal: "ProposalSampler", num: int, excluded: Int[Tensor, "R E"], generator: torch.Generator | None = None
) -> Arrivals:
    """Return the first `num` distinct classes of R streams of a proposal, without excluded classes (padded with -1).

    The results are the classes in order of arrival, the time at which the next class would arrive (inf if no class
    is left), and the number of samples until the m-th class arrived, including repeats and excluded classes.

    Every row needs at least `num` classes of positive probability that are not excluded. This samples slightly more
    than rejection would. If a stream as long as the number of classes is too short, the remaining classes come from
    n exponential clocks. The result has the same distribution, because the waiting time of an unseen class does not
    depend on the time that has passed.
    """
    num_rows, device, num_possible = len(excluded), excluded.device, proposal.num_possible

    def sample(length: int) -> Tensor:
        uniform = torch.rand(num_rows, length, generator=generator, dtype=torch.float64)
        return proposal.inverse_cdf(uniform.to(device))

    stream = sample(2 * num + 2)
    while True:
        length = stream.shape[1]
        is_first = first_occurrences(stream, proposal.num_classes) == torch.arange(length, device=device)
        is_new = is_first & ~isin_rows(stream, excluded)
        num_new = is_new.cumsum(1)
        fewest = int(num_new[:, -1].min())
        if fewest > num or length >= num_possible:
            break
        missing = num + 1 - fewest
        stream = torch.cat([stream, sample(min(num_possible, 2 * missing * length // max(fewest, 1) + 1))], dim=1)

    if fewest <= num:
        return _arrivals_from_clocks(stream, proposal.probabilities(device), num, excluded, generator)
    # The k-th new class goes to column k - 1; all other samples go to an extra column, which is dropped.
    column = (num_new - 1).masked_fill_(~is_new, num).clamp_(max=num)
    reached = torch.tensor([num, num + 1], device=device).expand(num_rows, 2).contiguous()
    num_tries, num_until = (torch.searchsorted(num_new, reached) + 1).unbind(1)
    ids = torch.empty_like(stream[:, : num + 1]).scatter_(1, column, stream)[:, :num]
    # The times between samples are exponential.
    until = torch._standard_gamma(num_until.double().cpu(), generator).to(device)
    return ids, until, num_tries


def _arrivals_from_clocks(
    stream: Int[Tensor, "R J"],
    probabilities: Float[Tensor, " n"],
    num: int,
    excluded: Int[Tensor, "R E"],
    generator: torch.Generator | None,
) -> Arrivals:
    """Return arrivals if the stream has too few classes: every class outside it gets an exponential clock."""
    num_classes = len(probabilities)
    times = exponentials(stream.shape, generator).to(stream.device).cumsum(1)
    waited = exponentials((len(stream), num_classes), generator).to(stream.device) / probabilities
    started = times[:, -1:]
    clocks = F.pad(started + waited, (0, 1), value=torch.inf)  # the last column is padding
    clocks.scatter_reduce_(1, stream, times, "amin")
    is_excluded = torch.zeros_like(clocks, dtype=torch.bool)
    is_excluded.scatter_(1, torch.where(excluded < 0, num_classes, excluded), True)
    clocks.masked_fill_(is_excluded, torch.inf)

    first, ids = clocks.topk(num + 1, largest=False)
    first, until, ids = first[:, :num], first[:, num], ids[:, :num]
    last = first[:, -1:]
    # Until the last clock the stream also repeats classes that arrived or are excluded. Only the number of these
    # samples is needed.
    since = torch.where(is_excluded, started, clocks.maximum(started))
    repeating = F.pad(probabilities, (0, 1)) * (is_excluded | (clocks <= last))
    num_repeats = torch.poisson((repeating * (last - since).clamp(min=0)).sum(1).cpu(), generator)
    num_tries = (times <= last).sum(1) + (first > started).sum(1) + num_repeats.to(ids)
    return ids, until, num_tries


def exponentials(shape: tuple[int, ...], generator: torch.Generator | None = None) -> Float[Tensor, "..."]:
    """Sample exponential times of mean 1 on the CPU; inversion is four times faster than `Tensor.exponential_`."""
    return torch.rand(shape, generator=generator, dtype=torch.float64).neg_().log1p_().neg_()


def first_occurrences(ids: Int[Tensor, "R J"], num_classes: int) -> Int[Tensor, "R J"]:
    """Return, for each entry, the index of its first occurrence in its row."""
    num_rows, length = ids.shape
    indices = torch.arange(length, dtype=torch.int32, device=ids.device).expand_as(ids)
    if num_rows * num_classes <= MOST_TABLE_ENTRIES:
        table = torch.empty(num_rows, num_classes, dtype=torch.int32, device=ids.device)
        # The table is not initialised: n may be a million and J a thousand, and only written entries are read.
        return table.scatter_reduce_(1, ids, indices, "amin", include_self=False).gather(1, ids)
    ascending, order = ids.sort(dim=1, stable=True)
    is_first = F.pad(ascending[:, 1:] != ascending[:, :-1], (1, 0), value=True)
    first_of_group = torch.where(is_first, indices, 0).cummax(1).values.long()
    return torch.empty_like(ids).scatter_(1, order, order.gather(1, first_of_group))


def isin_rows(ids: Int[Tensor, "R J"], members: Int[Tensor, "R E"]) -> Bool[Tensor, "R J"]:
    """Return the mask of the entries of `ids` that are in the same row of `members`."""
    if members.shape[1] == 0:
        return torch.zeros_like(ids, dtype=torch.bool)
    ascending = members.sort(dim=1).values
    indices = torch.searchsorted(ascending, ids.contiguous()).clamp(max=members.shape[1] - 1)
    return ascending.gather(1, indices) == ids
