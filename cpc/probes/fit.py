"""The fit of a linear probe to frozen features, and the choice of its penalty. n examples, D feature dim, Y classes."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from cpc.probes.classifier import Probe, standardise
from cpc.probes.convex import Coordinates, Solution, solve
from cpc.probes.task import Examples

_TOLERANCE_CHOSEN = 0.01  # tolerance, in standard errors, if the penalty was chosen on a coarse grid
_TOLERANCE_GIVEN = 0.001  # tolerance with which weights equal scikit-learn's
PENALTIES = tuple(float(10.0 ** (power / 2)) for power in range(2, -13, -1))  # grid of l2 / n, from 10 to 1e-6
NUM_FOLDS = 3
MOST_EXAMPLES = 5_000  # limit for the choice of the penalty; neighbouring frames are nearly equal
DEFAULT_L2 = 1.0  # scikit-learn's default, used if no class is in two folds
_TOLERANCE = 0.1  # tolerance of the choice in standard errors; 0.001 led to the same choices
_PATIENCE = 2  # the search stops after this many penalties in a row without a better score


def fit_probe(
    train: Examples,
    num_classes: int,
    l2: float | None = None,
    device: str | torch.device = "cpu",
    *,
    title: str | None = None,
    penalty_chosen_by: str = "likelihood",
) -> Probe:
    """Fit a probe to frozen features, standardised by the training examples.

    It minimises the sum of the cross-entropies + l2 / 2 |W|^2 (see `cpc.probes.convex.solve`). If l2 is None,
    `choose_l2` chooses it. `title` is that of the progress bar, None for no bar.
    """
    mean, scale = standardise(train)
    coordinates = Coordinates(train.values, train.indices, mean, scale, device)
    start, tolerance = None, _TOLERANCE_GIVEN
    with tqdm(total=2, desc=title, unit="step", disable=title is None) as bar:
        if l2 is None:
            l2, start = choose_l2(coordinates, train.labels, train.groups, num_classes, penalty_chosen_by)
            tolerance = _TOLERANCE_CHOSEN
        bar.update()
        solution = solve(coordinates, train.labels, num_classes, l2, start, tolerance)
        bar.update()
    probe = Probe(train.values.shape[1], num_classes, l2=l2).requires_grad_(False)
    fitted = (coordinates.feature_weights(solution.weight), solution.bias, mean, scale)
    for parameter, values in zip((probe.weight, probe.bias, probe.mean, probe.scale), fitted, strict=True):
        parameter.copy_(values)
    return probe.to(device)


def choose_l2(
    coordinates: Coordinates,
    labels: Int[np.ndarray, " n"],
    groups: Int[np.ndarray, " n"],
    num_classes: int,
    chosen_by: str = "likelihood",
) -> tuple[float, Solution | None]:
    """Choose the weight of the penalty by cross-validation over groups of the training part.

    The groups of each class are distributed over the folds. The search goes from the largest penalty down and starts
    each problem at the solution of the previous one. It stops when two smaller penalties in a row have no better score.
    The score is the mean log-likelihood, or the accuracy, over those held-out examples whose classes are among the
    training examples of the fold. Accuracy is flat for large penalties, so the search by accuracy goes on while
    accuracy or likelihood improves. Penalties are compared per example, l2 / n, because the folds have fewer examples
    than the whole.

    Return l2, and the mean of the folds' solutions to start from; None if there are no folds.
    """
    subsample = np.arange(0, len(labels), -(-len(labels) // MOST_EXAMPLES))
    folds = [
        (coordinates.part(kept), labels[kept], coordinates.part(held_out), labels[held_out])
        for kept, held_out in _folds(subsample, labels, groups)
        if len(held_out)
    ]
    if not folds:
        return DEFAULT_L2, None
    solutions: list[Solution] = []
    best, best_scores, num_worse = (PENALTIES[0], solutions), np.array(-np.inf), 0
    for penalty in PENALTIES:
        solutions = [
            solve(kept, kept_labels, num_classes, penalty * len(kept), start, _TOLERANCE)
            for (kept, kept_labels, _, _), start in zip_longest(folds, solutions)
        ]
        scores = _mean_scores(folds, solutions, chosen_by)
        is_better = scores > best_scores
        if is_better[0]:
            best = penalty, solutions
        best_scores, num_worse = np.maximum(scores, best_scores), 0 if is_better.any() else num_worse + 1
        if num_worse == _PATIENCE:
            break
    penalty, solutions = best
    _, vectors = coordinates.spectrum
    weight = torch.stack([solution.weight for solution in solutions]).mean(0)
    bias = _mean_bias(solutions, [kept_labels for _, kept_labels, _, _ in folds])
    return penalty * len(labels), Solution(weight if vectors is None else weight @ vectors.T, bias)


def _mean_bias(solutions: Sequence[Solution], labels: Sequence[Int[np.ndarray, " _"]]) -> Float[Tensor, " Y"]:
    """Return the mean bias of each class over the folds that have examples of it.

    Without examples the bias of a class falls without limit. A start at such a bias has no curvature, and the first
    Newton step of the class would be a million times too long.
    """
    bias = torch.stack([solution.bias for solution in solutions])
    has_class = torch.stack([torch.from_numpy(np.bincount(each, minlength=bias.shape[1]) > 0) for each in labels])
    mean = bias.where(has_class, 0).sum(0) / has_class.sum(0)  # NaN for a class without examples in any fold
    return mean.nan_to_num(float(mean[has_class.any(0)].min()))


def _folds(
    subsample: Int[np.ndarray, " m"], labels: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each fold, the training examples and the held-out examples whose classes have training examples."""
    names, first, group = np.unique(groups, return_index=True, return_inverse=True)
    order = np.lexsort((np.random.default_rng(0).permutation(len(names)), labels[first]))
    fold_of_group = np.empty(len(names), int)
    fold_of_group[order] = np.arange(len(names)) % NUM_FOLDS
    fold = fold_of_group[group[subsample]]
    for index in range(NUM_FOLDS):
        kept, held_out = subsample[fold != index], subsample[fold == index]
        yield kept, held_out[np.isin(labels[held_out], labels[kept])]


def _mean_scores(folds: Sequence[Any], solutions: Sequence[Solution], chosen_by: str) -> np.ndarray:
    """Return mean scores over all held-out labels: log-likelihood, or accuracy first if that is the criterion."""
    sums, num = torch.zeros(2, dtype=torch.float64), 0
    for (_, _, held_out, labels), solution in zip(folds, solutions, strict=True):
        weight, bias = (each.float().to(held_out.device) for each in (solution.weight, solution.bias))
        for indices, x in held_out.blocks():
            target = rearrange(torch.from_numpy(labels[indices]).to(held_out.device), "m -> m 1")
            scores = torch.addmm(bias, x, weight.T)
            is_right = scores.argmax(1, keepdim=True) == target
            log_likelihood = scores.log_softmax(1).gather(1, target)
            sums += torch.stack([is_right.double().sum(), log_likelihood.double().sum()]).cpu()
            num += len(target)
    means = (sums / num).numpy()
    return means if chosen_by == "accuracy" else means[1:]
