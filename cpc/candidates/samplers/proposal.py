"""Samplers with a proposal distribution that does not depend on the query.

M queries, D dims, n classes, m sampled candidates, T targets per query, R rows of candidates: 1 if candidates are
shared, else M.
"""

import math
from abc import abstractmethod
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.arrivals import first_arrivals, isin_rows
from cpc.candidates.samplers.sampler import Draw, Hits, Request, Sampler, check_possible, distinct, make_draw
from cpc.config.argument_rules import checked

Counts = Literal["gumbel", "rejection", "tensorflow"]


class ProposalSampler(Sampler):
    """A sampler with one proposal distribution q for all queries (static candidate sampling).

    With replacement the expected count of class i is m q_i. Without replacement candidates are distinct, and the
    probability that a class is among them has no closed form; `counts` selects an estimate:

    - `gumbel`: 1 - exp(-q_i t), where t is the time at which class m + 1 arrives in the Poisson stream of `arrivals`
      (e^-kappa for the Gumbel key kappa). Sums over the candidates weighted by the inverse of this estimate are
      unbiased: `importance` has E[Z'] = Z. For m = 1 their variance is infinite.
    - `rejection`: 1 - (1 - q_i)^num_tries, the estimate of TensorFlow's samplers. The estimate is biased: by about 8 %
      of Z for three of six classes, by less for large m.
    - `tensorflow`: `rejection`, but m q_i if nothing was rejected, as in TensorFlow. This estimate is discontinuous and
      biased.

    With hits="exclude", targets are removed from the stream before anything is counted, so candidates follow q
    renormalised without the targets. `log_count_targets` is the log of the expected count of each target in the stream
    before the removal (with replacement m q_t / (1 - sum of q over the targets)), so targets and candidates have the
    same scale. Without replacement one t or num_tries serves all classes: with the uniform proposal all counts are
    equal, so they cancel in the posterior correction.

    Counts are computed in float64 and returned in PyTorch's default dtype.

    Args:
        num_classes: n.
        shared: whether one sample serves all queries of a batch; otherwise each query has a separate sample.
        replacement: whether candidates may repeat.
        counts: `gumbel`, `rejection` or `tensorflow`; None: `gumbel` without replacement.

    Raises:
        ValueError: if `counts` is unknown, or is given together with replacement.
    """

    remedy = "give it a count"  # the advice in the error on a target of probability zero

    @checked
    def __init__(
        self, num_classes: int, *, shared: bool = True, replacement: bool = False, counts: Counts | None = None
    ) -> None:
        super().__init__(num_classes)
        if counts is not None and replacement:
            raise ValueError(f"counts={counts!r} is for draws without replacement; with replacement it is m q")
        self.shared = shared
        self.replacement = replacement
        self.counts: Counts | None = None if replacement else counts or "gumbel"

    @abstractmethod
    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Map float64 numbers that are uniform in [0, 1) to independent samples of q."""

    @abstractmethod
    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return log q of these classes in float64; -inf for a class that is never sampled."""

    @property
    def num_possible(self) -> int:
        """The number of classes with a positive probability."""
        return self.num_classes

    def probabilities(self, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """Return q of all classes."""
        return self.log_probability(torch.arange(self.num_classes, device=device)).exp()

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"] | None:
        """Return m q; without replacement, the inclusion probability if classes were included independently."""
        q = self.probabilities(device)
        return num * q if self.replacement else independent_inclusion(q, num)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if fewer than `num` classes remain; with replacement, one remaining class suffices."""
        left = self.num_possible - num_excluded
        needed = 1 if self.replacement else num
        if needed > left:
            classes = f"{left} classes ({self.num_possible} have a positive probability, {num_excluded} are excluded)"
            given = f"num_sampled={num} with replacement={self.replacement}"
            raise ValueError(f"{given}, but {type(self).__name__} can draw {classes}")

    def excludes_per_query(self, num: int) -> bool:  # noqa: D102
        return not self.shared

    def observe(self, targets: Int[Tensor, "M ..."]) -> None:
        """Process the targets of a batch after sampling in training mode; most proposals do nothing."""

    def _sample(self, request: Request) -> Draw:
        """Sample candidates on the device of the targets; `queries` are ignored."""
        _, num, targets, hits, generator = request
        log_q = self._target_log_probability(targets)
        excluded = self._excluded_classes(targets, hits)
        self.check_left(num, int((excluded >= 0).sum(1).max()) if excluded.numel() else 0)
        if self.replacement:
            ids, stream_length = self._sample_with_replacement(num, excluded, generator)
            log_count = stream_length.log() + self.log_probability(ids)
            log_count_targets = stream_length.log() + log_q
        else:
            ids, until, num_tries = first_arrivals(self, num, excluded, generator)
            until, num_tries = rearrange(until, "r -> r 1"), rearrange(num_tries, "r -> r 1")
            log_count = self._log_inclusion(self.log_probability(ids), until, num_tries, num)
            log_count_targets = self._log_inclusion(log_q, until, num_tries, num)
        if self.training:
            self.observe(targets)
        return make_draw(ids, log_count, log_count_targets, self.shared)

    def _target_log_probability(self, targets: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
        """Return log q of the targets; 0 for padding."""
        self.check_targets(targets)
        log_q = torch.where(targets < 0, 0.0, self.log_probability(targets.clamp(min=0)))
        check_possible(targets, log_q, self.remedy)
        return log_q

    def _excluded_classes(self, targets: Int[Tensor, "M T"], hits: Hits) -> Int[Tensor, "R E"]:
        """Return the distinct excluded classes of each row."""
        if hits != "exclude":
            return targets.new_empty(1 if self.shared else len(targets), 0)
        distinct_targets = distinct(targets)
        if not self.shared:
            return distinct_targets
        # Without the targets of the whole batch, a query would lack candidates that are not its own targets, which no
        # correction of counts could repair.
        if bool((distinct_targets != distinct_targets[:1]).any()):
            needs = "hits='exclude' with shared candidates needs the same targets in every query"
            raise ValueError(f"{needs}: use hits='remove', or {type(self).__name__}(shared=False)")
        return distinct_targets[:1]

    def _sample_with_replacement(
        self, num: int, excluded: Int[Tensor, "R E"], generator: torch.Generator | None
    ) -> tuple[Int[Tensor, "R m"], Float[Tensor, "R 1"]]:
        """Return candidates, and the expected length of the stream that contains m of them."""
        uniform = torch.rand(len(excluded), num, generator=generator, dtype=torch.float64)
        ids = self.inverse_cdf(uniform.to(excluded.device))
        is_hit = isin_rows(ids, excluded)
        if bool(is_hit.any()):
            row = is_hit.nonzero()[:, 0]
            ids[is_hit] = first_arrivals(self, 1, excluded[row], generator)[0][:, 0]
        q_excluded = torch.where(excluded < 0, 0.0, self.log_probability(excluded.clamp(min=0)).exp())
        return ids, num / (1 - q_excluded.sum(1, keepdim=True))

    def _log_inclusion(
        self, log_q: Float[Tensor, "_ _"], until: Float[Tensor, "R 1"], num_tries: Int[Tensor, "R 1"], num: int
    ) -> Float[Tensor, "_ _"]:
        """Return the log of the estimate `counts` of the probability that a class is among m distinct candidates."""
        q = log_q.exp()
        if self.counts == "gumbel":
            return (-torch.expm1(-q * until)).log()
        log_inclusion = (-torch.expm1(num_tries * torch.log1p(-q))).log()
        if self.counts == "tensorflow":
            return torch.where(num_tries == num, math.log(num) + log_q, log_inclusion)
        return log_inclusion


def independent_inclusion(q: Float[Tensor, " n"], num: int) -> Float[Tensor, " n"]:
    """Return inclusion probabilities 1 - exp(-q t) with sum `num`, close to those of `num` distinct samples of q."""
    if num >= int((q > 0).sum()):
        return (q > 0).to(q)
    time = torch.tensor(float(num), dtype=q.dtype, device=q.device)
    # The sum of inclusion probabilities is concave in t and at most t, so Newton's method converges from below in a few
    # steps.
    while float(missing := num + torch.expm1(-q * time).sum()) > 1e-9 * num:
        time += missing / (q * torch.exp(-q * time)).sum()
    return -torch.expm1(-q * time)
