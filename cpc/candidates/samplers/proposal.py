"""Samplers given by a law over the classes that does not depend on the query.

M queries, D dims, n classes, m candidates drawn, T targets per query; R rows are drawn: one where candidates are
shared, M otherwise.
"""

import math
from abc import abstractmethod

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.arrivals import are_among, first_arrivals
from cpc.candidates.samplers.sampler import Draw, Hits, Sampler, distinct, drop_hits

COUNTS = ("gumbel", "rejection", "tensorflow")


class ProposalSampler(Sampler):
    """Draws from one law q for all queries: static candidate sampling.

    With replacement a class is expected m q_i times. Without, candidates are distinct, and the chance that a class is
    among them has no closed form; `counts` names what stands in for it:

    - `gumbel`: 1 - exp(-q_i t), where t is the time at which class m + 1 came in the Poisson stream of `arrivals`
      (e^-kappa for the Gumbel key kappa). Sums over the drawn classes weighted by its inverse are unbiased:
      `importance` has E[Z'] = Z. For m = 1 their variance is infinite.
    - `rejection`: 1 - (1 - q_i)^num_tries, what TensorFlow's samplers estimate. Biased, by some 8 % of Z for three of
      six classes, less where m is large.
    - `tensorflow`: the same, but m q_i where no draw was rejected, as TensorFlow has it. Discontinuous, biased too.

    With hits="exclude" the targets' draws are crossed out of the stream before anything is counted: the rest follows
    the law renormalised without them. `log_count_targets` says how often the targets came meanwhile, as if they had not
    been crossed out (with replacement m q_t / (1 - sum of the targets' q)), so targets and candidates have one scale.
    Without replacement one t or num_tries serves all classes: under the uniform law all counts are equal, as the
    posterior correction needs to cancel.

    Counts are computed in float64 and returned in PyTorch's default dtype.

    Args:
        num_classes: n.
        shared: one draw serves all queries of a batch; else each query has its own.
        replacement: candidates may repeat.
        counts: see above; `gumbel` where none is named.

    Raises:
        ValueError: on unknown `counts`, or any with replacement, where the count is known.
    """

    remedy = "give it a count, or mix with UniformMixture"  # for a target that is never drawn

    def __init__(
        self, num_classes: int, *, shared: bool = True, replacement: bool = False, counts: str | None = None
    ) -> None:
        super().__init__(num_classes)
        if counts is not None and counts not in COUNTS:
            raise ValueError(f"counts={counts!r} is not one of {', '.join(COUNTS)}")
        if counts is not None and replacement:
            raise ValueError(
                f"counts={counts!r} is for draws without replacement; with it the count is m q: drop counts, or set "
                "replacement=False"
            )
        self.shared = shared
        self.replacement = replacement
        self.counts: str | None = None if replacement else counts or "gumbel"

    @abstractmethod
    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Independent draws of q, made of float64 numbers that are uniform in [0, 1)."""

    @abstractmethod
    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The log of q for these classes in float64, -inf for one that is never drawn."""

    @property
    def num_possible(self) -> int:
        """How many classes have a positive probability."""
        return self.num_classes

    def probabilities(self, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """All of q."""
        return self.log_probability(torch.arange(self.num_classes, device=device)).exp()

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"] | None:
        """`m q`; of distinct candidates the chance under independent inclusion, a close approximation."""
        q = self.probabilities(device)
        return num * q if self.replacement else independent_inclusion(q, num)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if fewer than `num` classes that can be drawn are left, or none with replacement."""
        left = self.num_possible - num_excluded
        needed = 1 if self.replacement else num
        if needed > left:
            raise ValueError(
                f"num_sampled={num} with replacement={self.replacement}, but {type(self).__name__} can draw {left} "
                f"classes ({self.num_possible} have a positive probability, {num_excluded} are excluded): "
                + ("use hits='remove'" if self.replacement else "lower num_sampled, or draw with replacement")
            )

    def excludes_per_query(self, num: int) -> bool:
        """Unless one draw serves all queries."""
        return not self.shared

    def observe(self, targets: Int[Tensor, "M ..."]) -> None:
        """Learn from the targets of a batch, after its draw in training mode. Most laws do not."""

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """See `Sampler.sample`; `queries` are not looked at, and the candidates are on the targets' device.

        Raises:
            ValueError: on targets out of range or of probability zero; on more candidates without replacement than
                there are classes to draw; on hits="exclude" with shared candidates, unless all queries have the same
                targets: one draw cannot avoid each query's own. (Avoiding all of the batch's would keep every query
                from meeting the others' targets, which no count can mend.)
        """
        self.check(num, targets, hits)
        targets_of_row = targets.reshape(len(targets), -1)
        log_q = self._log_probability_of_targets(targets_of_row)
        excluded = self._excluded(targets_of_row, hits)
        self.check_left(num, int((excluded >= 0).sum(1).max()) if excluded.numel() else 0)
        if self.replacement:
            ids, num_draws = self._with_replacement(num, excluded, generator)
            log_count = num_draws.log() + self.log_probability(ids)
            log_count_targets = num_draws.log() + log_q
        else:
            ids, until, num_tries = first_arrivals(self, num, excluded, generator)
            until, num_tries = rearrange(until, "r -> r 1"), rearrange(num_tries, "r -> r 1")
            log_count = self._log_inclusion(self.log_probability(ids), until, num_tries, num)
            log_count_targets = self._log_inclusion(log_q, until, num_tries, num)
        log_count_targets = log_count_targets.masked_fill(targets_of_row < 0, torch.inf)
        if self.training:
            self.observe(targets)

        dtype = torch.get_default_dtype()
        ids, log_count = (ids[0], log_count[0].to(dtype)) if self.shared else (ids, log_count.to(dtype))
        if hits == "remove":
            log_count = drop_hits(ids, log_count, targets)
        return Draw(ids, log_count, log_count_targets.reshape(targets.shape).to(dtype))

    def _log_probability_of_targets(self, targets: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
        """0 where a row has no further target."""
        log_q = torch.where(targets < 0, 0.0, self.log_probability(targets.clamp(min=0)))
        if bool((log_q == -torch.inf).any()):
            raise ValueError(
                f"class {int(targets[log_q == -torch.inf][0])} is a target, but {type(self).__name__} never draws it: "
                f"its expected count would be 0; {self.remedy}"
            )
        return log_q

    def _excluded(self, targets: Int[Tensor, "M T"], hits: Hits) -> Int[Tensor, "R E"]:
        """What cannot be drawn for each row, every class once."""
        if hits != "exclude":
            return targets.new_empty(1 if self.shared else len(targets), 0)
        in_order = distinct(targets)
        if not self.shared:
            return in_order
        if bool((in_order != in_order[:1]).any()):
            raise ValueError(
                "hits='exclude' with shared candidates needs the same targets in every query: use hits='remove', or "
                f"{type(self).__name__}(shared=False), which draws for each query"
            )
        return in_order[:1]

    def _with_replacement(
        self, num: int, excluded: Int[Tensor, "R E"], generator: torch.Generator | None
    ) -> tuple[Int[Tensor, "R m"], Float[Tensor, "R 1"]]:
        """Candidates, and the expected number of draws in the whole stream while m of them came."""
        uniform = torch.rand(len(excluded), num, generator=generator, dtype=torch.float64)
        ids = self.inverse_cdf(uniform.to(excluded.device))
        is_hit = are_among(ids, excluded)
        if bool(is_hit.any()):
            of_row = rearrange(torch.arange(len(ids), device=ids.device), "r -> r 1").expand_as(ids)
            ids[is_hit] = first_arrivals(self, 1, excluded[of_row[is_hit]], generator).ids[:, 0]
        q_excluded = torch.where(excluded < 0, 0.0, self.log_probability(excluded.clamp(min=0)).exp())
        return ids, num / (1 - q_excluded.sum(1, keepdim=True))

    def _log_inclusion(
        self, log_q: Float[Tensor, "_ _"], until: Float[Tensor, "R 1"], num_tries: Int[Tensor, "R 1"], num: int
    ) -> Float[Tensor, "_ _"]:
        """The estimate that `counts` names of how often a class is among m distinct ones."""
        q = log_q.exp()
        if self.counts == "gumbel":
            return (-torch.expm1(-q * until)).log()
        log_inclusion = (-torch.expm1(num_tries * torch.log1p(-q))).log()
        if self.counts == "tensorflow":
            return torch.where(num_tries == num, math.log(num) + log_q, log_inclusion)
        return log_inclusion


def independent_inclusion(q: Float[Tensor, " n"], num: int) -> Float[Tensor, " n"]:
    """Chances of inclusion 1 - exp(-q t) whose sum is `num`: about those of the first `num` distinct draws of q."""
    if num >= int((q > 0).sum()):
        return (q > 0).to(q)
    time = torch.tensor(float(num), dtype=q.dtype, device=q.device)
    # The sum is concave in t, and at most t: Newton's steps come from below and never leave that side; a few suffice.
    while float(missing := num + torch.expm1(-q * time).sum()) > 1e-9 * num:
        time += missing / (q * torch.exp(-q * time)).sum()
    return -torch.expm1(-q * time)
