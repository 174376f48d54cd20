"""Pairs of known mutual information, each with the critic that knows everything.

N pairs, M rows, D dimensions (Dx and Dy where the two differ), S letters of an alphabet.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, lambertw, xlogy
from torch import Tensor
from torch.nn.functional import one_hot

NUM_LETTERS = 16
DEFAULT_FREEDOM = 5.0
_MOST_NATS_PER_DIM = 12  # from where on float64 loses 1 - rho^2 = exp(-24) to a millionth, and soon all of it
SPIRAL_TURN = 1.0  # radians at the mean of |x|^2 / D
Pairs = tuple[Float[Tensor, "N Dx"], Float[Tensor, "N Dy"]]


@runtime_checkable
class Task(Protocol):
    """Pairs (x, y) of known mutual information, and the best scores there are."""

    @property
    def mutual_information_nats(self) -> float:
        """I(x; y)."""

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Independent pairs, float64."""

    def log_density_ratio(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:
        """Log p(y | x) / p(y) of every x with every y."""


@dataclass(frozen=True)
class CorrelatedGaussians:
    """Standard normal x and y = rho x + sqrt(1 - rho^2) noise, independent in each dimension.

    The task of Belghazi et al. 2018 and Poole et al. 2019. I = -D/2 ln(1 - rho^2): half the log of the ratio of
    marginal to conditional variance, dimension by dimension (Cover and Thomas, Elements of Information Theory,
    section 8.5).

    Attributes:
        correlation: rho, between -1 and 1.
        dim: D.
    """

    correlation: float
    dim: int

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "CorrelatedGaussians":
        """The rho, positive, that gives this information; a ValueError if it is not positive."""
        _check_reach("gaussian", information_nats, dim, 0, _MOST_NATS_PER_DIM * dim)
        return cls(math.sqrt(-math.expm1(-2 * information_nats / dim)), dim)

    @property
    def mutual_information_nats(self) -> float:
        """-D/2 ln(1 - rho^2)."""
        return -self.dim / 2 * math.log1p(-(self.correlation**2))

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Independent pairs."""
        x, noise = torch.randn(2, num_pairs, self.dim, generator=generator, dtype=torch.float64)
        return x, self.correlation * x + math.sqrt(1 - self.correlation**2) * noise

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """I - ((x - rho y)^2 - (1 - rho^2) x^2) / (2 (1 - rho^2)), written as one product of matrices."""
        rho, variance = self.correlation, 1 - self.correlation**2
        of_x, of_y = (rho**2 * values.square().sum(1) / 2 for values in (x, y))
        squares = rearrange(of_x, "m -> m 1") + rearrange(of_y, "n -> 1 n")
        return self.mutual_information_nats + (rho * x @ y.T - squares) / variance


@dataclass(frozen=True)
class StudentT:
    """Correlated Gaussians, each pair divided by the root of its own chi-square over nu: informative even if rho = 0.

    I = I of the Gaussians + f(nu) + f(nu + 2 D) - 2 f(nu + D) with f(v) = ln Gamma(v/2) - v/2 psi(v/2): the difference
    of the entropies of multivariate t distributions (Arellano-Valle, Contreras-Reyes and Genton 2013, Scandinavian
    Journal of Statistics 40(1); used by Czyz et al. 2023, arXiv:2306.11078). The second part is what the common
    divisor tells.

    Attributes:
        correlation: of the Gaussians, between -1 and 1.
        dim: D.
        freedom: nu, degrees of freedom, positive.
    """

    correlation: float
    dim: int
    freedom: float = DEFAULT_FREEDOM

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "StudentT":
        """The correlation, not negative, that gives this information; a ValueError if the divisor alone gives more."""
        of_divisor = cls(0.0, dim).mutual_information_nats
        _check_reach("student", information_nats, dim, of_divisor, of_divisor + _MOST_NATS_PER_DIM * dim)
        return cls(CorrelatedGaussians.make(information_nats - of_divisor, dim).correlation, dim)

    @property
    def mutual_information_nats(self) -> float:
        """The Gaussians' plus that of the common divisor."""

        def f(v: float) -> float:
            return float(gammaln(v / 2) - v / 2 * digamma(v / 2))

        of_divisor = f(self.freedom) + f(self.freedom + 2 * self.dim) - 2 * f(self.freedom + self.dim)
        return CorrelatedGaussians(self.correlation, self.dim).mutual_information_nats + of_divisor

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Independent pairs."""
        x, y = CorrelatedGaussians(self.correlation, self.dim).sample(num_pairs, generator)
        # torch draws no chi-square from a generator: numpy does, from a seed of that generator
        seed = int(torch.randint(2**62, (), generator=generator))
        chi_square = torch.from_numpy(np.random.default_rng(seed).chisquare(self.freedom, (num_pairs, 1)))
        scale = (self.freedom / chi_square).sqrt()
        return scale * x, scale * y

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """Log t(x, y) - log t(x) - log t(y), each log t of width w: c(w) - (nu + w) / 2 ln(1 + quadratic form / nu)."""
        nu, d, rho = self.freedom, self.dim, self.correlation
        of_x, of_y = rearrange(x.square().sum(1), "m -> m 1"), rearrange(y.square().sum(1), "n -> 1 n")
        of_pair = (of_x + of_y - 2 * rho * x @ y.T) / (1 - rho**2)
        constant = gammaln(nu / 2) + gammaln(nu / 2 + d) - 2 * gammaln((nu + d) / 2) - d / 2 * math.log1p(-(rho**2))
        of_each = torch.log1p(of_x / nu) + torch.log1p(of_y / nu)
        return float(constant) - (nu + 2 * d) / 2 * torch.log1p(of_pair / nu) + (nu + d) / 2 * of_each


@dataclass(frozen=True)
class AdditiveUniform:
    """x uniform on [0, 1], y = x + noise uniform on [-e, e], independent in each dimension.

    I = h(y) - ln 2e, and y has a trapezium for a density: e - ln 2e per dimension for e <= 1/2, 1 / (4 e) above (Czyz
    et al. 2023, arXiv:2306.11078). The score is minus infinity wherever y cannot come from x.

    Attributes:
        noise: e, positive.
        dim: D.
    """

    noise: float
    dim: int

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "AdditiveUniform":
        """The noise that gives this information; a ValueError if it is not positive."""
        _check_reach("uniform", information_nats, dim, 0, _MOST_NATS_PER_DIM * dim)
        each = information_nats / dim
        # e - ln 2e = i solves to e = -W(-exp(-i) / 2), Lambert's W
        return cls(1 / (4 * each) if each < 0.5 else -float(lambertw(-math.exp(-each) / 2).real), dim)

    @property
    def mutual_information_nats(self) -> float:
        """Over all dimensions."""
        each = self.noise - math.log(2 * self.noise) if self.noise <= 0.5 else 1 / (4 * self.noise)
        return self.dim * each

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Independent pairs."""
        x, uniform = torch.rand(2, num_pairs, self.dim, generator=generator, dtype=torch.float64)
        return x, x + self.noise * (2 * uniform - 1)

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """-ln 2e - ln p(y) where every |y - x| <= e, else minus infinity."""
        # p(y) is the length of [0, 1] that noise could have come from, divided by 2e; so 2e p(y) is that length
        length = (y + self.noise).clamp(max=1) - (y - self.noise).clamp(min=0)
        of_y = -length.log().sum(1)
        reach = self.noise * (1 + 1e-12)  # a pair at the very edge stays one when y - x is rounded
        is_possible = (rearrange(y, "n d -> 1 n d") - rearrange(x, "m d -> m 1 d")).abs().amax(2) <= reach
        return rearrange(of_y, "n -> 1 n").expand_as(is_possible).masked_fill(~is_possible, -math.inf)


@dataclass(frozen=True)
class DiscreteChannel:
    """D uniform letters; each arrives with probability 1 - p, else one of the others, all alike. x and y are one-hot.

    I = D (ln S - H(p) - p ln(S - 1)), the symmetric channel's capacity (Cover and Thomas, section 7.2).

    Attributes:
        error: p, from 0 to 1.
        dim: D; x and y have width D S.
        num_letters: S, at least 2.
    """

    error: float
    dim: int
    num_letters: int = NUM_LETTERS

    @classmethod
    def make(cls, information_nats: int | float, dim: int) -> "DiscreteChannel":
        """The error that gives this information; a ValueError if D letters do not hold it."""
        _check_reach("discrete", information_nats, dim, 0, dim * math.log(NUM_LETTERS))
        without_any = 1 - 1 / NUM_LETTERS
        error = brentq(lambda p: cls(p, dim).mutual_information_nats - information_nats, 0, without_any, xtol=1e-15)
        return cls(float(error), dim)

    @property
    def mutual_information_nats(self) -> float:
        """Over all letters."""
        p = self.error
        entropy = -xlogy(p, p) - xlogy(1 - p, 1 - p)
        return float(self.dim * (math.log(self.num_letters) - entropy - p * math.log(self.num_letters - 1)))

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Independent pairs."""
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
        """Ln S (1 - p) for each letter that agrees, ln S p / (S - 1) for each other; minus infinity without errors."""
        num_right = x @ y.T
        right, wrong = self.num_letters * x.new_tensor([1 - self.error, self.error / (self.num_letters - 1)])
        return torch.xlogy(num_right, right) + torch.xlogy(self.dim - num_right, wrong)


class Bend(NamedTuple):
    """An invertible map of vectors `[N, D]` and its inverse."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Transformed:
    """A task whose x and y were each mapped by an invertible function: a critic has more to learn.

    Neither mutual information (Kraskov et al. 2004, arXiv:cond-mat/0305641, appendix) nor the density ratio changes
    under invertible maps of either variable.

    Attributes:
        base: the task that is bent.
        of_x: what is done to x.
        of_y: what is done to y.
    """

    base: Task
    of_x: Bend
    of_y: Bend

    @property
    def mutual_information_nats(self) -> float:
        """That of the base."""
        return self.base.mutual_information_nats

    def sample(self, num_pairs: int, generator: torch.Generator) -> Pairs:
        """Independent pairs."""
        x, y = self.base.sample(num_pairs, generator)
        return self.of_x.forward(x), self.of_y.forward(y)

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """That of the base, at the inverse images."""
        return self.base.log_density_ratio(self.of_x.inverse(x), self.of_y.inverse(y))


def signed_power(exponent: int | float) -> Bend:
    """X -> sign(x) |x|^exponent: 3 is the cubic of Poole et al. 2019, 3/2 the half-cube of Czyz et al. 2023."""

    def power(values: Tensor, exponent: int | float) -> Tensor:
        return values.sign() * values.abs() ** exponent

    return Bend(lambda x: power(x, exponent), lambda x: power(x, 1 / exponent))


def spiral(turn: int | float = SPIRAL_TURN) -> Bend:
    """Turns each pair of coordinates by an angle that grows with |x|^2 (the spiral of Czyz et al. 2023, appendix B).

    The length of x stays, so the same angle turns back. A coordinate left over in odd dimensions is not turned.

    Args:
        turn: angle in radians where |x|^2 / D is 1, its mean under standard normal x.
    """

    def turned(values: Tensor, turn: int | float) -> Tensor:
        num_pairs = values.shape[1] // 2
        angle = turn * reduce(values.square(), "n d -> n 1", "mean")
        first, second = rearrange(values[:, : 2 * num_pairs], "n (two p) -> two n p", two=2)
        rotated = [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()]
        return torch.cat([*rotated, values[:, 2 * num_pairs :]], 1)

    return Bend(lambda x: turned(x, turn), lambda x: turned(x, -turn))


STRAIGHT = Bend(lambda x: x, lambda x: x)
INVERSE_SINH = Bend(torch.asinh, torch.sinh)  # brings heavy tails in (Czyz et al. 2023)


def _bent(make: Callable[[int | float, int], Task], of_x: Bend, of_y: Bend) -> Callable[[int | float, int], Task]:
    return lambda information_nats, dim: Transformed(make(information_nats, dim), of_x, of_y)


TASKS: dict[str, Callable[[int | float, int], Task]] = {
    "gaussian": CorrelatedGaussians.make,
    "cubic": _bent(CorrelatedGaussians.make, STRAIGHT, signed_power(3)),
    "half_cube": _bent(CorrelatedGaussians.make, signed_power(1.5), signed_power(1.5)),
    "spiral": _bent(CorrelatedGaussians.make, spiral(), spiral()),
    "student": StudentT.make,
    "student_asinh": _bent(StudentT.make, INVERSE_SINH, INVERSE_SINH),
    "uniform": AdditiveUniform.make,
    "discrete": DiscreteChannel.make,
}


def task_named(name: str, information_nats: int | float, dim: int) -> Task:
    """A task with this information.

    Args:
        name: in `TASKS`.
        information_nats: I(x; y).
        dim: of x and of y; letters of the discrete channel.

    Raises:
        ValueError: on an unknown name, or an information that the task does not reach.
    """
    if name not in TASKS:
        raise ValueError(f"tasks names {name!r}, which is not one of {', '.join(TASKS)}")
    if name == "spiral" and dim < 2:
        raise ValueError(f"task 'spiral' turns pairs of coordinates: dim={dim} must be at least 2")
    return TASKS[name](information_nats, dim)


def _check_reach(name: str, information_nats: int | float, dim: int, low: int | float, high: int | float) -> None:
    if dim < 1:
        raise ValueError(f"dim={dim} must be at least 1")
    if not low < information_nats < high:
        raise ValueError(
            f"mi={information_nats:g} is out of reach of task {name!r} at dim={dim}, which goes from {low:.3g} to "
            f"{high:.3g} nats: change mi or dim"
        )
