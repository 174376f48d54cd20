"""Kernel approximations, as in Table 1 of Rawat et al. 2019, and the bias of sampled gradients beside its bounds.

Table: the mean squared error of phi(x) . phi(y) against exp(tau x . y) over random pairs of scikit-learn's digits (64
dimensions, unit length; the paper's USPS has 256), in units of exp(2 tau), so that K(x, x) = 1; beside it, for Fourier
features, the mean of the closed form (1 - e^{-nu r^2})^2 / (2 D) with nu = tau. Fourier's kernel is the Gaussian one,
exp(tau x . y) e^-tau.

Bias: E[grad L'] - grad L in the logits, for sampled softmax with `importance`, targets excluded, m = 3 draws with
replacement, over all outcomes from 8 classes. Theorem 1 of the paper bounds it; its text was not at hand, so this is
our own derivation. With w_j = e^{o_j} / q_j, Z' = e^{o_t} + mean of the drawn w, G' the same mean of gradients
(E[Z'] = Z, E[G'] = G = grad Z), g = G / Z and e = G' - g Z', whose mean is zero:

    bias = E[G' / Z'] - g = -E[e (Z' - Z) / Z'] / Z

First order in 1 / m: -Cov(e, Z') / Z^2 = -sum_j e^{o_j} (w_j - Z_t) (grad o_j - g) / (m Z^2), Z_t the sum over the
others. And since Z' is at least e^{o_t} + min w, by Cauchy and Schwarz no component exceeds
sd(e) sd(Z') / (Z (e^{o_t} + min w)). Both vanish where q is the softmax over the others: then w_j = Z_t.

    python -m benchmarks.kernels
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from benchmarks.extreme.kernel_tree import KernelTree
from benchmarks.extreme.kernels import PositiveRandomFeatures, Quadratic, RandomMaclaurin, StructuredFourier
from benchmarks.extreme.softmax import SoftmaxSampler
from cpc.candidates.kernels import KernelMap, RandomFourier
from cpc.candidates.samplers import FeatureMass, QuerySampler, TwoLevel

NUM_PAIRS, NUM_SEEDS, TAU = 500, 5, 1.0
SIZES = (100, 1000)
NUM_CLASSES, DIM, NUM_SAMPLED, TEMPERATURE = 8, 6, 3, 0.4


def digit_pairs() -> tuple[Tensor, Tensor]:
    pixels = F.normalize(torch.tensor(load_digits().data, dtype=torch.float32), dim=1)
    generator = torch.Generator().manual_seed(0)
    first, second = pixels[torch.randint(len(pixels), (2, NUM_PAIRS), generator=generator)]
    return first, second


def kernel_errors() -> dict[str, dict[str, float]]:
    """Mean squared errors by map and number of features."""
    x, y = digit_pairs()
    exact = torch.exp(TAU * ((x * y).sum(1) - 1))
    r2 = ((x - y) ** 2).sum(1)
    closed = {size: float(((1 - torch.exp(-TAU * r2)) ** 2).mean() / (2 * size)) for size in SIZES}

    def error(make: Callable[[int], KernelMap], scale: float) -> float:
        maps = [make(seed) for seed in range(NUM_SEEDS)]
        return sum(float(((m(x) * m(y)).sum(1) * scale - exact).square().mean()) for m in maps) / NUM_SEEDS

    makers: dict[str, tuple[Callable[[int, int], KernelMap], float]] = {
        "RFF": (lambda size, seed: RandomFourier(64, size, TAU, "gaussian", seed), 1.0),
        "RFF, orthogonal": (lambda size, seed: RandomFourier(64, size, TAU, "orthogonal", seed), 1.0),
        "SORF": (lambda size, seed: StructuredFourier(64, size, TAU, seed), 1.0),
        "Maclaurin": (lambda size, seed: RandomMaclaurin(64, size, TAU, seed), math.exp(-TAU)),
        "positive": (lambda size, seed: PositiveRandomFeatures(64, size, TAU, "gaussian", seed), math.exp(-TAU)),
        "positive, orthogonal": (
            lambda size, seed: PositiveRandomFeatures(64, size, TAU, "orthogonal", seed),
            math.exp(-TAU),
        ),
    }
    found = {
        name: {str(size): error(lambda seed, size=size, make=make: make(size, seed), scale) for size in SIZES}
        for name, (make, scale) in makers.items()
    }
    # alpha (x . y)^2 + beta by least squares over the pairs, as the paper fits it
    design = torch.stack([(x * y).sum(1) ** 2, torch.ones(NUM_PAIRS)], dim=1)
    fitted = design @ torch.linalg.lstsq(design, exact[:, None]).solution
    found["quadratic, fitted"] = {str(Quadratic(64).num_features): float((fitted[:, 0] - exact).square().mean())}
    found["RFF, closed form"] = {str(size): value for size, value in closed.items()}
    print(f"{'frequencies or features':24}" + "".join(f"{size:>12}" for size in SIZES))
    for name, errors in found.items():
        print(f"{name:24}" + "".join(f"{value:12.2e}" for value in errors.values()), flush=True)
    return found


def gradient_bias(scores: Tensor, target: int, proposal: Tensor, num: int) -> dict[str, float]:
    """The largest component of the bias in the logits, by enumeration, and what bounds it.

    Args:
        scores: [n] logits.
        target: its index.
        proposal: [n] of each draw, zero at the target.
        num: m.
    """
    num_classes = len(scores)
    others = [i for i in range(num_classes) if i != target]
    exp_scores = scores.exp()
    total = exp_scores.sum()
    softmax = exp_scores / total
    weights = torch.where(proposal > 0, exp_scores / proposal.clamp(min=1e-300), 0.0)  # w_j

    mean_gradient = torch.zeros(num_classes, dtype=torch.float64)  # of log Z': E[p']
    for outcome in itertools.product(others, repeat=num):
        drawn = list(outcome)
        estimate = torch.zeros(num_classes, dtype=torch.float64)
        estimate[target] = exp_scores[target]
        estimate.index_add_(0, torch.tensor(drawn), weights[drawn] / num)
        mean_gradient += proposal[drawn].prod() * estimate / estimate.sum()
    bias = mean_gradient - softmax

    gradient = torch.eye(num_classes, dtype=torch.float64)  # of o_j in the logits
    others_total = total - exp_scores[target]
    deviation = gradient - softmax  # grad o_j - g, rows j
    others_covariance = exp_scores * (weights - others_total)
    others_covariance[target] = 0
    first_order = -(others_covariance[:, None] * deviation).sum(0) / (num * total**2)
    # With one draw, e = e^{o_t} (grad o_t - g) + w_j (grad o_j - g); its mean is zero.
    variance_e = (proposal[:, None] * (weights[:, None] * deviation) ** 2).sum(0) - (
        (proposal * weights)[:, None] * deviation
    ).sum(0) ** 2
    variance_z = (proposal * weights**2).sum() - others_total**2
    smallest = exp_scores[target] + weights[others].min()
    bound = (variance_e.clamp(min=0) * variance_z.clamp(min=0)).sqrt() / (num * total * smallest)
    return {
        "bias": float(bias.abs().max()),
        "first_order": float(first_order.abs().max()),
        "bound": float(bound.max()),
        "least_slack": float((bound - bias.abs()).min()),
    }


def gradient_biases() -> dict[str, dict[str, float]]:
    generator = torch.Generator().manual_seed(2)
    classes = F.normalize(torch.randn(NUM_CLASSES, DIM, generator=generator), dim=1)
    query = F.normalize(classes[:1] + 0.3 * torch.randn(1, DIM, generator=generator), dim=1)
    samplers: dict[str, QuerySampler] = {
        "exact softmax": SoftmaxSampler(NUM_CLASSES, DIM, TEMPERATURE),
        "two-level, two blocks": TwoLevel(NUM_CLASSES, DIM, TEMPERATURE, block_size=4),
        "two-level, RFF 50": TwoLevel(NUM_CLASSES, DIM, TEMPERATURE, FeatureMass(RandomFourier(DIM, 50)), "ids", 4),
        "tree, positive 100": KernelTree(NUM_CLASSES, PositiveRandomFeatures(DIM, 100, 1 / TEMPERATURE)),
        "tree, quadratic": KernelTree(NUM_CLASSES, Quadratic(DIM)),
        "tree, RFF 100": KernelTree(NUM_CLASSES, RandomFourier(DIM, 100, 1 / TEMPERATURE)),
        "tree, RFF 1000": KernelTree(NUM_CLASSES, RandomFourier(DIM, 1000, 1 / TEMPERATURE)),
    }
    scores = (query @ classes.T / TEMPERATURE)[0].double()
    target = 0
    laws = {"uniform": torch.full((NUM_CLASSES,), 1 / NUM_CLASSES, dtype=torch.float64)}
    for name, sampler in samplers.items():
        sampler.refresh(classes)
        laws[name] = sampler.log_prob(query)[0].double().exp()
    found = {}
    print(f"{'proposal':24}{'largest bias':>14}{'first order':>14}{'bound':>14}")
    for name, proposal in laws.items():
        proposal = proposal.clone()
        proposal[target] = 0
        found[name] = gradient_bias(scores, target, proposal / proposal.sum(), NUM_SAMPLED)
        assert found[name]["least_slack"] > -1e-6, "the bound does not hold"
        print(
            f"{name:24}" + "".join(f"{found[name][key]:14.2e}" for key in ("bias", "first_order", "bound")), flush=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    figures = {"mean_squared_error": kernel_errors(), "gradient_bias": gradient_biases()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
