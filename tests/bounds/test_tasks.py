"""Closed forms against integrals and enumerations, exact critics against scipy's densities, samples against both."""

import itertools
import math

import numpy as np
import pytest
import torch
from refusals import refuses
from scipy import integrate, stats
from torch import Tensor

from cpc.bounds.tasks import (
    IDENTITY,
    INVERSE_SINH,
    TASKS,
    AdditiveUniform,
    Bijection,
    CorrelatedGaussians,
    DiscreteChannel,
    StudentT,
    Transformed,
    make_task,
    signed_power,
    spiral,
)

NUM_PAIRS = 20_000


def ratio_of_pairs(task: object, x: Tensor, y: Tensor) -> Tensor:
    blocks = zip(x.split(100), y.split(100), strict=True)
    return torch.cat([task.log_density_ratio(*block).diagonal() for block in blocks])


@pytest.mark.parametrize("information_nats", [2.0, 6.0, 10.0])
@pytest.mark.parametrize("name", TASKS)
def test_the_exact_critic_averages_to_the_closed_form(name: str, information_nats: float) -> None:
    task = make_task(name, information_nats, 4)
    assert task.mutual_information_nats == pytest.approx(information_nats, abs=1e-6)
    x, y = task.sample(NUM_PAIRS, torch.Generator().manual_seed(0))
    assert x.dtype == y.dtype == torch.float64
    ratios = ratio_of_pairs(task, x, y)
    standard_error = ratios.std().item() / NUM_PAIRS**0.5
    assert standard_error < 0.06
    assert abs(ratios.mean().item() - information_nats) < 3 * standard_error


@pytest.mark.parametrize("name", TASKS)
def test_the_exact_critic_is_a_density_ratio(name: str) -> None:
    """E[p(y | x) / p(y)] over independent y is 1 (at 1 nat, where the mean settles)."""
    task = make_task(name, 1.0, 3)
    generator = torch.Generator().manual_seed(0)
    means = []
    for _ in range(200):
        x, y = task.sample(60, generator)
        is_pair = torch.eye(60, dtype=torch.bool)
        means.append(task.log_density_ratio(x, y).exp()[~is_pair].mean())
    means = torch.stack(means)
    standard_error = means.std().item() / 200**0.5
    assert standard_error < 0.05
    assert abs(means.mean().item() - 1) < 3 * standard_error


def test_gaussians_by_integration() -> None:
    rho = 0.75
    density = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]])

    grid = np.linspace(-9, 9, 121)
    pairs = np.stack(np.meshgrid(grid, grid), axis=-1)
    marginal_logs = stats.norm.logpdf(pairs).sum(-1)
    values = density.pdf(pairs) * (density.logpdf(pairs) - marginal_logs)
    integral = integrate.trapezoid(integrate.trapezoid(values, grid), grid)
    assert CorrelatedGaussians(rho, 1).mutual_information_nats == pytest.approx(integral, abs=1e-5)
    assert CorrelatedGaussians(rho, 1).mutual_information_nats == pytest.approx(0.4133, abs=1e-4)  # facts.md, section 1


@pytest.mark.parametrize(
    ("information_nats", "rho"), [(2, 0.4258), (4, 0.5742), (6, 0.6717), (8, 0.7421), (10, 0.7951)]
)
def test_correlations_of_the_usual_grid(information_nats: float, rho: float) -> None:
    """Figures of facts.md, section 1."""
    assert CorrelatedGaussians.make(information_nats, 20).correlation == pytest.approx(rho, abs=1e-4)


def test_gaussian_scores_against_scipy(generator: torch.Generator) -> None:
    task = CorrelatedGaussians(0.6, 2)
    x, y = task.sample(3, generator)
    for i, j in itertools.product(range(3), range(3)):
        conditional = stats.norm.logpdf(y[j], 0.6 * x[i], 0.8).sum()
        assert task.log_density_ratio(x, y)[i, j].item() == pytest.approx(conditional - stats.norm.logpdf(y[j]).sum())


def test_student_by_scipys_entropies_and_densities(generator: torch.Generator) -> None:
    task = StudentT(0.6, 2, freedom=3.0)
    shape = np.kron([[1, 0.6], [0.6, 1]], np.eye(2))
    pair, marginal = (stats.multivariate_t(np.zeros(len(s)), s, df=3) for s in (shape, np.eye(2)))
    assert task.mutual_information_nats == pytest.approx(2 * marginal.entropy() - pair.entropy())
    x, y = task.sample(3, generator)
    for i, j in itertools.product(range(3), range(3)):
        expected = pair.logpdf(torch.cat([x[i], y[j]])) - marginal.logpdf(x[i]) - marginal.logpdf(y[j])
        assert task.log_density_ratio(x, y)[i, j].item() == pytest.approx(expected)


def test_without_correlation_the_common_divisor_still_tells() -> None:
    assert StudentT(0.0, 3).mutual_information_nats > 0.08
    assert StudentT(0.0, 3, freedom=1e4).mutual_information_nats == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("noise", "expected"), [(0.1, 1.709), (0.75, 1 / 3), (0.5, 0.5)])
def test_uniform_by_the_entropy_of_its_trapezium(noise: float, expected: float) -> None:
    def density(y: float) -> float:
        return max(0.0, min(1, y + noise) - max(0, y - noise)) / (2 * noise)

    def surprise(y: float) -> float:
        return -density(y) * math.log(density(y)) if density(y) > 0 else 0.0

    corners = sorted([-noise, noise, 1 - noise, 1 + noise])
    entropy = sum(integrate.quad(surprise, low, high)[0] for low, high in itertools.pairwise(corners))
    assert AdditiveUniform(noise, 1).mutual_information_nats == pytest.approx(entropy - math.log(2 * noise), abs=1e-6)
    assert AdditiveUniform(noise, 1).mutual_information_nats == pytest.approx(expected, abs=1e-3)  # facts.md, section 1


def test_uniform_scores_are_minus_infinity_out_of_reach() -> None:
    x, y = torch.tensor([[0.0], [0.5]], dtype=torch.float64), torch.tensor([[0.1], [0.6]], dtype=torch.float64)
    log_ratio = [-math.log(0.3), -math.log(0.4)]  # the length of [0, 1] within 0.2 of y
    expected = torch.tensor([[log_ratio[0], -math.inf], [-math.inf, log_ratio[1]]], dtype=torch.float64)
    assert torch.allclose(AdditiveUniform(0.2, 1).log_density_ratio(x, y), expected)


@pytest.mark.parametrize("error", [0.0, 0.3, 2 / 3, 1.0])
def test_discrete_by_enumeration(error: float) -> None:
    """Two letters of an alphabet of three, all 81 pairs."""
    channel = DiscreteChannel(error, 2, num_letters=3)
    letters = torch.tensor(list(itertools.product(range(3), repeat=2)))
    words = torch.nn.functional.one_hot(letters, 3).flatten(1).double()
    is_right = (letters[:, None] == letters[None]).double()
    joint = (is_right * (1 - error) + (1 - is_right) * error / 2).prod(2) / 9
    ratio = joint / joint.sum(0) / joint.sum(1, keepdim=True)
    information = torch.special.xlogy(joint, ratio).sum().item()
    assert channel.mutual_information_nats == pytest.approx(information, abs=1e-12)
    assert torch.allclose(channel.log_density_ratio(words, words), ratio.log())


@pytest.mark.parametrize("bend", [signed_power(3), signed_power(1.5), spiral(), INVERSE_SINH])
@pytest.mark.parametrize("dim", [2, 5])
def test_bends_are_invertible_and_bend(bend: Bijection, dim: int, generator: torch.Generator) -> None:
    values = 2 * torch.randn(50, dim, generator=generator, dtype=torch.float64)
    bent = bend[0](values)
    assert torch.allclose(bend[1](bent), values)
    assert (bent - values).abs().mean() > 0.1
    linear = torch.linalg.lstsq(values, bent).solution
    assert (values @ linear - bent).abs().mean() > 0.1  # no linear map does it


def test_a_spiral_turns_by_the_squared_length() -> None:
    values = torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    turned = spiral(turn=math.pi / 2)[0](values)
    # a quarter turn where |x|^2 / D is 1, a half turn where it is 2
    assert torch.allclose(turned, torch.tensor([[-1.0, 1.0], [-2.0, 0.0]], dtype=torch.float64))


def test_transformed_scores_are_those_of_the_base(generator: torch.Generator) -> None:
    base = CorrelatedGaussians(0.5, 2)
    x, y = base.sample(4, generator)
    bent = Transformed(base, IDENTITY, signed_power(3))
    assert torch.allclose(bent.log_density_ratio(x, y**3), base.log_density_ratio(x, y))


def test_mistakes() -> None:
    refuses("tasks`='swiss_roll' is not one of gaussian", make_task, "swiss_roll", 2.0, 3)
    refuses("mi=6 is out of reach of 'discrete' at dim=2: 0 to 5.55 nats", make_task, "discrete", 6.0, 2)
    refuses("mi=0.1 is out of reach of 'student' at dim=20: ", make_task, "student", 0.1, 20)
    refuses("mi=0 is out of reach", make_task, "gaussian", 0.0, 2)
    refuses("mi=800 is out of reach of 'uniform' at dim=1: 0 to 12 nats", make_task, "uniform", 800.0, 1)
    refuses("spiral=1 must be at least 2", make_task, "spiral", 1.0, 1)
