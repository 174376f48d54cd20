"""Which penalty a linear probe gets: the one that reads held-out groups of the training part best.

n examples, Y classes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.probes.convex import Coordinates, Solution, solve

PENALTIES = tuple(float(10.0 ** (power / 2)) for power in range(2, -13, -1))  # l2 / n, from 10 to 1e-6
NUM_FOLDS = 3
MOST_EXAMPLES = 5_000  # that a penalty is chosen with: neighbouring frames say much the same
WITHOUT_CHOICE = 1.0  # l2 where no class is in two folds: scikit-learn's default
_TOLERANCE = 0.1  # standard errors from the optimum: choices were the same as with 0.001
_PATIENCE = 2  # penalties in a row that read worse than the best


def choose_l2(
    coordinates: Coordinates,
    labels: Int[np.ndarray, " n"],
    groups: Int[np.ndarray, " n"],
    num_classes: int,
    chosen_by: str = "likelihood",
) -> tuple[float, Solution | None]:
    """The weight of the penalty, by cross-validation over groups of the training part, and where to begin with it.

    Each class's groups are shared out among the folds. From the largest penalty down, each problem begins where the one
    before it ended, until smaller penalties read worse twice in a row. What is compared is the mean log-likelihood, or
    the accuracy, of held-out examples of classes that the fold was trained on. Accuracy is flat under large penalties:
    the search goes on while either gets better. A penalty is kept per example, l2 / n, as their number changes.

    Args:
        coordinates: the features.
        labels: `[n]` classes.
        groups: `[n]` what is independent of what: speakers, files, images.
        num_classes: Y.
        chosen_by: `likelihood`, which is smoother, or `accuracy`.

    Returns:
        l2, and the mean of the folds' solutions; None where there are no folds.
    """
    thin = np.arange(0, len(labels), -(-len(labels) // MOST_EXAMPLES))
    folds = [
        (coordinates.part(kept), labels[kept], coordinates.part(held_out), labels[held_out])
        for kept, held_out in _folds(thin, labels, groups)
        if len(held_out)
    ]
    if not folds:
        return WITHOUT_CHOICE, None
    found: list[Solution] = []
    judges = {"likelihood": [_log_likelihood], "accuracy": [_is_right, _log_likelihood]}[chosen_by]
    best, best_scores, num_worse = (PENALTIES[0], found), np.full(len(judges), -np.inf), 0
    for penalty in PENALTIES:
        found = [
            solve(kept, kept_labels, num_classes, penalty * len(kept), start, _TOLERANCE)
            for (kept, kept_labels, _, _), start in zip_longest(folds, found)
        ]
        scores = np.array([_mean_over(folds, found, judge) for judge in judges])
        is_better = scores > best_scores
        if is_better[0]:
            best = penalty, found
        best_scores, num_worse = np.maximum(scores, best_scores), 0 if is_better.any() else num_worse + 1
        if num_worse == _PATIENCE:
            break
    penalty, of_folds = best
    weight, bias = (torch.stack(each).mean(0) for each in zip(*((s.weight, s.bias) for s in of_folds), strict=True))
    _, vectors = coordinates.spectrum
    return penalty * len(labels), Solution(weight if vectors is None else weight @ vectors.T, bias)


def _folds(
    thin: Int[np.ndarray, " m"], labels: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each fold, the examples to train on and those held out whose classes are among them."""
    names, first, group = np.unique(groups, return_index=True, return_inverse=True)
    order = np.lexsort((np.random.default_rng(0).permutation(len(names)), labels[first]))
    fold_of_group = np.empty(len(names), int)
    fold_of_group[order] = np.arange(len(names)) % NUM_FOLDS
    fold = fold_of_group[group[thin]]
    for number in range(NUM_FOLDS):
        kept, held_out = thin[fold != number], thin[fold == number]
        yield kept, held_out[np.isin(labels[held_out], labels[kept])]


def _mean_over(folds: Sequence[Any], found: Sequence[Solution], judge: Callable[..., np.ndarray]) -> float:
    """Of all held-out examples."""
    of_folds = [judge(held_out, labels, each) for (_, _, held_out, labels), each in zip(folds, found, strict=True)]
    return float(np.concatenate(of_folds).mean())


def _log_likelihood(
    coordinates: Coordinates, labels: Int[np.ndarray, " n"], solution: Solution
) -> Float[np.ndarray, " n"]:
    """Of every example."""
    return np.concatenate(
        [
            scores.log_softmax(1).gather(1, target)[:, 0].double().cpu().numpy()
            for scores, target in _scored(coordinates, labels, solution)
        ]
    )


def _is_right(coordinates: Coordinates, labels: Int[np.ndarray, " n"], solution: Solution) -> Bool[np.ndarray, " n"]:
    """Whether the label of each example has the highest score."""
    return np.concatenate(
        [(scores.argmax(1) == target[:, 0]).cpu().numpy() for scores, target in _scored(coordinates, labels, solution)]
    )


def _scored(
    coordinates: Coordinates, labels: Int[np.ndarray, " n"], solution: Solution
) -> Iterator[tuple[Float[Tensor, "m Y"], Int[Tensor, "m 1"]]]:
    """Scores of some thousand examples at a time, with their labels."""
    weight, bias = (each.float().to(coordinates.device) for each in (solution.weight, solution.bias))
    for places, x in coordinates.blocks():
        target = rearrange(torch.from_numpy(labels[places]).to(coordinates.device), "m -> m 1")
        yield torch.addmm(bias, x, weight.T), target
