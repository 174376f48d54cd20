"""A critic trained with an estimator's objective while the truth rises in steps: figure 2 of Poole et al. 2019.

N candidates, L levels of information.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.tasks import Task
from cpc.calibration.critics import CRITICS, Baseline
from cpc.calibration.measured import Measured, draws, measured, read

LEARNING_RATE = 1e-3
MOST_GRADIENT = 10.0  # one exp() of a score could end the run
NUM_STANDARDISED = 4096
READ_EVERY = 4  # steps
NUM_POINTS = 40  # of the trajectory, per level


@dataclass(frozen=True)
class Level:
    """What training found at one information.

    Attributes:
        true_nats: I.
        steps: training steps at the middle of each block.
        estimates: by estimator, the mean over each block of steps, on the training batches.
        measured: by estimator, on fresh matrices after the level's last step.
    """

    true_nats: float
    steps: list[float]
    estimates: dict[str, list[float]]
    measured: dict[str, Measured]


def trainable(names: Sequence[str]) -> list[list[str]]:
    """The estimators that a critic can be trained for, those with the same objective together."""
    groups: dict[object, list[str]] = {}
    for name in names:
        estimator = ESTIMATORS[name]
        if not estimator.needs_conditional:
            groups.setdefault(estimator.objective or name, []).append(name)
    return list(groups.values())


def train(
    tasks: Sequence[Task],
    names: Sequence[str],
    critic: str,
    num_candidates: int,
    num_steps: int,
    num_matrices: int,
    seed: int,
) -> Iterator[Level]:
    """Climb one objective, and read it with every estimator that shares it.

    Adam at 1e-3; the gradient's norm is kept below 10. One critic sees all levels, one after the other.

    Args:
        tasks: the same one at L informations.
        names: estimators of one objective, a group of `trainable`.
        critic: a name in `CRITICS`.
        num_candidates: N, pairs of a batch and of a matrix.
        num_steps: at each level.
        num_matrices: fresh ones, at the end of each level.
        seed: of weights and pairs.

    Raises:
        FloatingPointError: if the objective is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = tuple(values.float() for values in tasks[0].sample(NUM_STANDARDISED, generator))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        networks = nn.ModuleList([CRITICS[critic](*sample), Baseline(sample[0])])
    score, log_baseline = networks
    objective, needs_baseline = _objective(names[0]), ESTIMATORS[names[0]].needs_baseline
    optimiser = torch.optim.Adam(networks.parameters(), LEARNING_RATE)

    def scored(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        return score(x.float(), y.float()), log_baseline(x.float()) if needs_baseline else None

    first = 0
    for task in tasks:
        along: dict[str, list[Tensor]] = {name: [] for name in names}
        for step, pairs in enumerate(draws(task, num_candidates, num_steps, generator), start=first):
            scores, baseline = scored(*pairs)
            climbed = objective(scores, baseline)
            if not bool(climbed.isfinite()):
                raise FloatingPointError(f"the objective of {names[0]} is {climbed.item()} at step {step}")
            optimiser.zero_grad()
            (-climbed).backward()
            nn.utils.clip_grad_norm_(networks.parameters(), MOST_GRADIENT)
            optimiser.step()
            with torch.no_grad():
                for name in names if (step - first) % READ_EVERY == 0 else ():
                    along[name].append(read(name, scores, baseline))
        estimates: dict[str, list[Tensor]] = {name: [] for name in names}
        with torch.no_grad():
            for pairs in draws(task, num_candidates, num_matrices, generator):
                scores, baseline = scored(*pairs)
                for name in names:
                    estimates[name].append(read(name, scores.double(), None if baseline is None else baseline.double()))
        read_at = torch.arange(first, first + num_steps, READ_EVERY)
        blocks = torch.arange(len(read_at)).tensor_split(min(NUM_POINTS, len(read_at)))
        truth = task.mutual_information_nats
        yield Level(
            true_nats=truth,
            steps=[read_at[block].double().mean().item() for block in blocks],
            estimates={
                name: [torch.stack(values)[block].mean().item() for block in blocks] for name, values in along.items()
            },
            measured={name: measured(values, truth) for name, values in estimates.items()},
        )
        first += num_steps


def _objective(name: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    make = ESTIMATORS[name].objective
    if make is None:
        return lambda scores, baseline: read(name, scores, baseline)
    climbed = make()
    return lambda scores, baseline: climbed(scores)
