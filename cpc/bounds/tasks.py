"""Pairs of variables with known mutual information and their exact critics.

N pairs, M rows, D dimensions (Dx and Dy if x and y differ), S letters of an alphabet.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, lambertw, xlogy
from torch import Tensor
from torch.nn.functional import one_hot

from cpc.config.argument_rules import Choices, Range

NUM_LETTERS = 16
DEFAULT_FREEDOM = 5.0
SPIRAL_TURN = 1.0  # angle in radians at the mean of |x|^2 / D
_MAX_NATS_PER_DIM = 12  # 1 - rho^2 = exp(-24) has a relative error of 1e-6 in float64; the error grows fast beyond it
Pairs = tuple[Float[Tensor, "N Dx"], Float[Tensor, "N Dy"]]
Bijection = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]  # a map of vectors [N, D] and its inverse


@runtime_checkable
class KnownPairs(Protocol):
    """A distribution of pairs (x, y) with known mutual information and known density ratio."""

    @property
    def mutual_information_nats(self) -> float:
        """The mutual information I(x; y), in nats."""

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Sample independent pairs in float64."""

    def log_density_ratio(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:
        """Return the exact scores log p(y | x) / p(y) of every x with every y."""


@dataclass(frozen=True)
class CorrelatedGaussians:
    """Standard normal x and y = rho x + sqrt(1 - rho^2) noise, independent in each dimension.

    This is the task of Belghazi et al. 2018 and Poole et al. 2019. I = -D/2 ln(1 - rho^2): half the log of the ratio of
    marginal to conditional variance, dimension by dimension (Cover and Thomas, Elements of Information Theory,
    section 8.5).
    """

    correlation: float  # rho, between -1 and 1
    dim: int  # D

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "CorrelatedGaussians":
        """Return the task with this information and a positive rho."""
        _check_range("gaussian", information_nats, dim, 0, _MAX_NATS_PER_DIM * dim)
        return cls(math.sqrt(-math.expm1(-2 * information_nats / dim)), dim)

    @property
    def mutual_information_nats(self) -> float:  # noqa: D102
        return -self.dim / 2 * math.log1p(-(self.correlation**2))

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:  # noqa: D102
        x, noise = torch.randn(2, num_pairs, self.dim, generator=generator, dtype=torch.float64)
        return x, self.correlation * x + math.sqrt(1 - self.correlation**2) * noise

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """Return I - ((x - rho y)^2 - (1 - rho^2) x^2) / (2 (1 - rho^2)), computed as one matrix product."""
        rho, variance = self.correlation, 1 - self.correlation**2
        x_squares, y_squares = (rho**2 * values.square().sum(1) / 2 for values in (x, y))
        squares = rearrange(x_squares, "m -> m 1") + rearrange(y_squares, "n -> 1 n")
        return self.mutual_information_nats + (rho * x @ y.T - squares) / variance


@dataclass(frozen=True)
class StudentT:
    """Correlated Gaussians; each pair is divided by the square root of its own chi-square variable over nu.

    I = I of the Gaussians + f(nu) + f(nu + 2 D) - 2 f(nu + D) with f(v) = ln Gamma(v/2) - v/2 psi(v/2): the difference
    of the entropies of multivariate t distributions (Arellano-Valle, Contreras-Reyes and Genton 2013, Scandinavian
    Journal of Statistics 40(1); used by Czyz et al. 2023, arXiv:2306.11078). The terms in f are the information in the
    common divisor: x and y share information even if rho = 0.
    """

    correlation: float  # rho of the Gaussians, between -1 and 1
    dim: int  # D
    freedom: float = DEFAULT_FREEDOM  # nu, degrees of freedom, positive

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "StudentT":
        """Return the task with this information, with rho >= 0. The common divisor's information is the minimum."""
        divisor_nats = cls(0.0, dim).mutual_information_nats
        _check_range("student", information_nats, dim, divisor_nats, divisor_nats + _MAX_NATS_PER_DIM * dim)
        return cls(CorrelatedGaussians.make(information_nats - divisor_nats, dim).correlation, dim)

    @property
    def mutual_information_nats(self) -> float:
        """The information of the Gaussians plus the information in the common divisor."""

        def f(v: float) -> float:
            return float(gammaln(v / 2) - v / 2 * digamma(v / 2))

        divisor_nats = f(self.freedom) + f(self.freedom + 2 * self.dim) - 2 * f(self.freedom + self.dim)
        return CorrelatedGaussians(self.correlation, self.dim).mutual_information_nats + divisor_nats

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:  # noqa: D102
        x, y = CorrelatedGaussians(self.correlation, self.dim).sample(num_pairs, generator)
        # torch cannot sample chi-square variables from a generator; numpy can, and the torch generator seeds it
        seed = int(torch.randint(2**62, (), generator=generator))
        chi_square = torch.from_numpy(np.random.default_rng(seed).chisquare(self.freedom, (num_pairs, 1)))
        scale = (self.freedom / chi_square).sqrt()
        return scale * x, scale * y

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """Return log t(x, y) - log t(x) - log t(y).

        The log density of a t variable of width w is c(w) - (nu + w) / 2 ln(1 + quadratic form / nu).
        """
        nu, d, rho = self.freedom, self.dim, self.correlation
        x_form, y_form = rearrange(x.square().sum(1), "m -> m 1"), rearrange(y.square().sum(1), "n -> 1 n")
        pair_form = (x_form + y_form - 2 * rho * x @ y.T) / (1 - rho**2)
        constant = gammaln(nu / 2) + gammaln(nu / 2 + d) - 2 * gammaln((nu + d) / 2) - d / 2 * math.log1p(-(rho**2))
        marginal_logs = torch.log1p(x_form / nu) + torch.log1p(y_form / nu)
        return float(constant) - (nu + 2 * d) / 2 * torch.log1p(pair_form / nu) + (nu + d) / 2 * marginal_logs


@dataclass(frozen=True)
class AdditiveUniform:
    """x uniform on [0, 1], y = x + noise uniform on [-e, e], independent in each dimension.

    I = h(y) - ln 2e. The density of y is a trapezium, so I per dimension is e - ln 2e for e <= 1/2 and 1 / (4 e) above
    (Czyz et al. 2023, arXiv:2306.11078). The score is minus infinity if y cannot come from x.
    """

    noise: float  # e, positive
    dim: int  # D

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "AdditiveUniform":
        """Return the task with this information."""
        _check_range("uniform", information_nats, dim, 0, _MAX_NATS_PER_DIM * dim)
        nats = information_nats / dim
        # The solution of e - ln 2e = i is e = -W(-exp(-i) / 2) with Lambert's W.
        return cls(1 / (4 * nats) if nats < 0.5 else -float(lambertw(-math.exp(-nats) / 2).real), dim)

    @property
    def mutual_information_nats(self) -> float:  # noqa: D102
        nats_per_dim = self.noise - math.log(2 * self.noise) if self.noise <= 0.5 else 1 / (4 * self.noise)
        return self.dim * nats_per_dim

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:  # noqa: D102
        x, uniform = torch.rand(2, num_pairs, self.dim, generator=generator, dtype=torch.float64)
        return x, x + self.noise * (2 * uniform - 1)

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """Return -ln 2e - ln p(y) if every |y - x| <= e, else minus infinity."""
        # 2e p(y) is the length of the part of [0, 1] within e of y.
        length = (y + self.noise).clamp(max=1) - (y - self.noise).clamp(min=0)
        log_ratio = -length.log().sum(1)
        reach = self.noise * (1 + 1e-12)  # so that rounding of y - x excludes no pair at the edge
        is_possible = (rearrange(y, "n d -> 1 n d") - rearrange(x, "m d -> m 1 d")).abs().amax(2) <= reach
        return rearrange(log_ratio, "n -> 1 n").expand_as(is_possible).masked_fill(~is_possible, -math.inf)


@dataclass(frozen=True)
class DiscreteChannel:
    """A symmetric channel of D uniform letters. Each letter is replaced by another letter with probability p.

    All other letters are equally likely. x and y are one-hot. I = D (ln S - H(p) - p ln(S - 1)), the capacity of the
    symmetric channel (Cover and Thomas, section 7.2).
    """

    error: float  # p, from 0 to 1
    dim: int  # D; x and y have width D S
    num_letters: int = NUM_LETTERS  # S, at least 2

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "DiscreteChannel":
        """Return the task with this information, which must not exceed D ln S."""
        _check_range("discrete", information_nats, dim, 0, dim * math.log(NUM_LETTERS))
        no_information = 1 - 1 / NUM_LETTERS  # at this error y does not depend on x
        error = brentq(lambda p: cls(p, dim).mutual_information_nats - information_nats, 0, no_information, xtol=1e-15)
        return cls(float(error), dim)

    @property
    def mutual_information_nats(self) -> float:  # noqa: D102
        p = self.error
        entropy = -xlogy(p, p) - xlogy(1 - p, 1 - p)
        return float(self.dim * (math.log(self.num_letters) - entropy - p * math.log(self.num_letters - 1)))

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:  # noqa: D102
        size = (num_pairs, self.dim)
        sent = torch.randint(self.num_letters, size, generator=generator)
        shift = torch.randint(1, self.num_letters, size, generator=generator)
        is_wrong = torch.rand(size, generator=generator, dtype=torch.float64) < self.error
        x, y = (
            rearrange(one_hot(letters % self.num_letters, self.num_letters), "n d s -> n (d s)").double()
            for letters in (sent, sent + shift * is_wrong)
        )
        return x, y

    def log_density_ratio(self, x: Float[Tensor, "M W"], y: Float[Tensor, "N W"]) -> Float[Tensor, "M N"]:
        """Return the sum of ln S (1 - p) over letters that agree and of ln S p / (S - 1) over letters that differ.

        If p = 0, a pair with a letter that differs scores minus infinity.
        """
        num_equal = x @ y.T
        equal, different = self.num_letters * x.new_tensor([1 - self.error, self.error / (self.num_letters - 1)])
        return torch.xlogy(num_equal, equal) + torch.xlogy(self.dim - num_equal, different)


@dataclass(frozen=True)
class Transformed:
    """A task whose x and y are mapped by invertible functions, which makes the critic harder to learn.

    Invertible maps of either variable change neither the mutual information (Kraskov et al. 2004,
    arXiv:cond-mat/0305641, appendix) nor the density ratio.
    """

    base: KnownPairs  # the task before the maps
    x_map: Bijection  # the map of x, and its inverse
    y_map: Bijection  # the map of y, and its inverse

    @property
    def mutual_information_nats(self) -> float:  # noqa: D102
        return self.base.mutual_information_nats

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:  # noqa: D102
        x, y = self.base.sample(num_pairs, generator)
        return self.x_map[0](x), self.y_map[0](y)

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """Return the scores of the base task at the original x and y."""
        return self.base.log_density_ratio(self.x_map[1](x), self.y_map[1](y))


def signed_power(exponent: int | float) -> Bijection:
    """Return the map x -> sign(x) |x|^exponent.

    Exponent 3 is the cubic of Poole et al. 2019, 3/2 the half-cube of Czyz et al. 2023.
    """

    def power(values: Tensor, exponent: int | float) -> Tensor:
        return values.sign() * values.abs() ** exponent

    return lambda x: power(x, exponent), lambda x: power(x, 1 / exponent)


def spiral(turn: int | float = SPIRAL_TURN) -> Bijection:
    """Return the map that rotates pairs of coordinates by an angle proportional to |x|^2.

    This is the spiral of Czyz et al. 2023, appendix B. The length of x does not change, so the inverse rotates back by
    the same angle. If D is odd, the last coordinate does not change.

    Args:
        turn: angle in radians where |x|^2 / D is 1, its mean under standard normal x.
    """

    def rotate(values: Tensor, turn: int | float) -> Tensor:
        num_pairs = values.shape[1] // 2
        angle = turn * reduce(values.square(), "n d -> n 1", "mean")
        first, second = rearrange(values[:, : 2 * num_pairs], "n (two p) -> two n p", two=2)
        rotated = [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()]
        return torch.cat([*rotated, values[:, 2 * num_pairs :]], 1)

    return lambda x: rotate(x, turn), lambda x: rotate(x, -turn)


IDENTITY: Bijection = (lambda x: x, lambda x: x)
INVERSE_SINH: Bijection = (torch.asinh, torch.sinh)  # shortens heavy tails (Czyz et al. 2023)

TaskMaker = Callable[[int | float, int], KnownPairs]  # (information_nats, dim) -> task


def _transformed(make: TaskMaker, x_map: Bijection, y_map: Bijection) -> TaskMaker:
    return lambda information_nats, dim: Transformed(make(information_nats, dim), x_map, y_map)


TASKS: dict[str, TaskMaker] = {
    "gaussian": CorrelatedGaussians.make,
    "cubic": _transformed(CorrelatedGaussians.make, IDENTITY, signed_power(3)),
    "half_cube": _transformed(CorrelatedGaussians.make, signed_power(1.5), signed_power(1.5)),
    "spiral": _transformed(CorrelatedGaussians.make, spiral(), spiral()),
    "student": StudentT.make,
    "student_asinh": _transformed(StudentT.make, INVERSE_SINH, INVERSE_SINH),
    "uniform": AdditiveUniform.make,
    "discrete": DiscreteChannel.make,
}


def make_task(name: str, information_nats: int | float, dim: int) -> KnownPairs:
    """Return the task of a name in `TASKS` with this information I(x; y).

    `dim` counts the dimensions of x and of y, or the letters of the discrete channel.
    """
    Choices(tuple(TASKS)).check("`tasks`", name)
    Range(2 if name == "spiral" else 1).check(f"`dim` of {name}", dim)  # a spiral rotates pairs of coordinates
    return TASKS[name](information_nats, dim)


def _check_range(name: str, information_nats: int | float, dim: int, low: int | float, high: int | float) -> None:
    """Raise ValueError unless the information lies between the limits of the task."""
    Range(1).check("`dim`", dim)
    if not low < information_nats < high:
        legal = f"{low:.3g} to {high:.3g} nats"
        raise ValueError(f"mi={information_nats:g} is out of reach of {name!r} at dim={dim}: {legal}")
