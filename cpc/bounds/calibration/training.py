"""Measurement of estimators with the exact critic, or with a small network that is trained while the information rises.

M rows, N candidates, Dx and Dy dimensions, R matrices, L levels of information.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.tasks import KnownPairs

HIDDEN_DIM = 128
EMBEDDING_DIM = 32


class Standardise(nn.Module):
    """A layer that shifts and scales each dimension. On a given sample the result has mean 0 and deviation 1."""

    def __init__(self, sample: Float[Tensor, "N D"]) -> None:
        super().__init__()
        self.mean = nn.Buffer(sample.mean(0))
        self.deviation = nn.Buffer(sample.std(0).clamp(min=1e-6))

    def forward(self, values: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:  # noqa: D102
        return (values - self.mean) / self.deviation


def perceptron(input_dim: int, output_dim: int = EMBEDDING_DIM) -> list[nn.Module]:
    """Return the layers of a perceptron with two hidden layers."""
    hidden = [nn.Linear(input_dim, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU()]
    return [*hidden, nn.Linear(HIDDEN_DIM, output_dim)]


def baseline_network(x: Float[Tensor, "N Dx"]) -> nn.Module:
    """Return a network from `[M, Dx]` to `[M]` for log a(x), the baseline that some estimators divide by."""
    return nn.Sequential(Standardise(x), *perceptron(x.shape[1], 1), nn.Flatten(0))


class Separable(nn.Module):
    """A critic f(x) . g(y) / temperature of two networks. N^2 scores take 2 N evaluations of a network.

    `layers` returns the layers between the standardised x or y and its embedding, by the number of its dimensions.
    """

    def __init__(
        self,
        x: Float[Tensor, "N Dx"],
        y: Float[Tensor, "N Dy"],
        layers: Callable[[int], list[nn.Module]] = perceptron,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.x_network, self.y_network = (
            nn.Sequential(Standardise(sample), *layers(sample.shape[1])) for sample in (x, y)
        )

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:  # noqa: D102
        return self.x_network(x) @ self.y_network(y).T / self.temperature


class Concatenated(Separable):
    """A critic with two hidden layers on x and y together. N^2 scores take N^2 evaluations.

    The first layer is the sum of a layer of x and a layer of y. Each of the two is evaluated N times.
    """

    def __init__(self, x: Float[Tensor, "N Dx"], y: Float[Tensor, "N Dy"]) -> None:
        super().__init__(x, y, lambda input_dim: [nn.Linear(input_dim, HIDDEN_DIM)])
        self.pair_network = nn.Sequential(
            nn.ReLU(), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, 1)
        )

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:  # noqa: D102
        pairs = rearrange(self.x_network(x), "m h -> m 1 h") + rearrange(self.y_network(y), "n h -> 1 n h")
        return rearrange(self.pair_network(pairs), "m n 1 -> m n")


CRITICS: dict[str, Callable[[Tensor, Tensor], nn.Module]] = {
    "separable": Separable,
    "concatenated": Concatenated,
    # x^T W y, as in CPC; it cannot express a term that depends only on y. W is a product of two factors and may have
    # full rank. Adam would move each entry of a single W by about the learning rate at each step.
    "bilinear": partial(
        Separable,
        layers=lambda input_dim: [nn.Linear(input_dim, HIDDEN_DIM, bias=False)],
        temperature=math.sqrt(HIDDEN_DIM),
    ),
}


LEARNING_RATE = 1e-3
MOST_GRADIENT = 10.0  # norm to which the gradient is clipped: the exp() of one large score could make training diverge
NUM_STANDARDISED = 4096


@dataclass(frozen=True)
class Measured:
    """Statistics of estimates from one matrix each, compared to the true information."""

    mean_nats: float  # mean over matrices
    standard_error_nats: float  # standard error of the mean
    bias_nats: float  # mean minus truth
    standard_deviation_nats: float  # standard deviation of an estimate; its square is the variance

    @classmethod
    def of(cls, estimates: Sequence[Tensor], true_nats: float) -> "Measured":
        """Return the statistics of these estimates."""
        nats = torch.stack(list(estimates)).double()
        mean, deviation = nats.mean().item(), nats.std().item()
        return cls(mean, deviation / math.sqrt(len(nats)), mean - true_nats, deviation)


def measure_exact(
    task: KnownPairs,
    names: Iterable[str],
    num_candidates: int,
    num_matrices: int,
    generator: torch.Generator,
    device: str = "cpu",
) -> dict[str, Measured]:
    """Measure estimators with the exact critic, each with its best offset. The exact baseline is 1."""
    log_baseline = torch.zeros(num_candidates, dtype=torch.float64, device=device)
    samples = (task.sample(num_candidates, generator) for _ in range(num_matrices))
    pairs = ((x.to(device), y.to(device)) for x, y in samples)
    scored = ((task.log_density_ratio(x, y), log_baseline) for x, y in pairs)
    offsets = {name: ESTIMATORS[name].best_offset for name in names}
    return _measured(task, scored, offsets)


def trainable(names: Sequence[str]) -> list[list[str]]:
    """Return the estimators for which a critic can be trained, grouped by their objective."""
    groups: dict[object, list[str]] = {}
    for name in names:
        estimator = ESTIMATORS[name]
        if not estimator.needs_conditional:
            groups.setdefault(estimator.objective or name, []).append(name)
    return list(groups.values())


def train(
    tasks: Sequence[KnownPairs],
    names: Sequence[str],
    critic: str,
    num_candidates: int,
    num_steps: int,
    num_matrices: int,
    seed: int,
    device: str = "cpu",
) -> Iterator[dict[str, Measured]]:
    """Train one critic, and measure every estimator that shares its objective, as in figure 2 of Poole et al. 2019.

    Adam has learning rate 1e-3, and the norm of the gradient is clipped to 10. The critic is trained on all levels, one
    after the other: `num_steps` on each, after which its estimators are measured on new matrices. The estimators
    `names` share one objective (a group of `trainable`).
    """
    generator = torch.Generator().manual_seed(seed)
    sample = tuple(values.float() for values in tasks[0].sample(NUM_STANDARDISED, generator))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        networks = nn.ModuleList([CRITICS[critic](*sample), baseline_network(sample[0])]).to(device)
    score, log_baseline = networks
    objective, needs_baseline = _objective(names[0]), ESTIMATORS[names[0]].needs_baseline
    optimiser = torch.optim.Adam(networks.parameters(), LEARNING_RATE)

    def scored(task: KnownPairs, num_batches: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        for _ in range(num_batches):
            x, y = (values.to(device, torch.float32) for values in task.sample(num_candidates, generator))
            yield score(x, y), log_baseline(x) if needs_baseline else None

    first = 0
    for task in tasks:
        for step, (scores, baseline) in enumerate(scored(task, num_steps), start=first):
            value = objective(scores, baseline)
            if not bool(value.isfinite()):
                raise FloatingPointError(f"the objective of {names[0]} is {value.item()} at step {step}")
            optimiser.zero_grad()
            (-value).backward()
            nn.utils.clip_grad_norm_(networks.parameters(), MOST_GRADIENT)
            optimiser.step()
        yield _measured(task, scored(task, num_matrices), dict.fromkeys(names, 0.0))
        first += num_steps


@torch.no_grad()
def _measured(
    task: KnownPairs, matrices: Iterable[tuple[Tensor, Tensor | None]], offsets: Mapping[str, float]
) -> dict[str, Measured]:
    """Measure every estimator, with its offset added to the scores, on every matrix of scores with its baseline."""
    estimates: dict[str, list[Tensor]] = {name: [] for name in offsets}
    for scores, log_baseline in matrices:
        for name, offset in offsets.items():
            estimates[name].append(_read(name, scores.double() + offset, log_baseline))
    return {name: Measured.of(values, task.mutual_information_nats) for name, values in estimates.items()}


def _read(name: str, scores: Tensor, log_baseline: Tensor | None) -> Tensor:
    """Return the estimate of one matrix, with the baseline if the estimator needs it."""
    estimator = ESTIMATORS[name]
    return estimator.estimate(scores, **({"log_baseline": log_baseline} if estimator.needs_baseline else {})).nats


def _objective(name: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    make = ESTIMATORS[name].objective
    if make is None:
        return lambda scores, baseline: _read(name, scores, baseline)
    objective = make()
    return lambda scores, baseline: objective(scores)
