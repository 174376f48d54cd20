"""Which penalty a linear probe gets: the one that reads held-out groups of the training part best.

n examples, Y classes.
"""

from collections.abc import Iterator

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int

from cpc.probes.convex import Coordinates, Solution, solve

PENALTIES = tuple(float(10.0 ** (power / 2)) for power in range(2, -13, -1))  # l2 / n, from 10 to 1e-6
NUM_FOLDS = 3
MOST_EXAMPLES = 10_000  # that a penalty is chosen with: neighbouring frames say much the same
WITHOUT_CHOICE = 1.0  # l2 where no class is in two folds: scikit-learn's default
_LEAST_PROGRESS = 3e-4  # of the objective in a step: choices were the same as with 1e-5
_PATIENCE = 2  # penalties in a row that read worse than the best


def choose_l2(
    coordinates: Coordinates, labels: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"], num_classes: int
) -> float:
    """The weight of the penalty, by cross-validation over groups of the training part.

    Each class's groups are shared out among the folds. From the largest penalty down, each problem begins where the one
    before it ended, until smaller penalties read worse twice in a row. What is compared is the mean log-likelihood of
    held-out examples of classes that the fold was trained on: it is smoother than accuracy. A penalty is kept per
    example, l2 / n, as the number of examples changes.

    Args:
        coordinates: the features.
        labels: `[n]` classes.
        groups: `[n]` what is independent of what: speakers, files, images.
        num_classes: Y.
    """
    thin = np.arange(0, len(labels), -(-len(labels) // MOST_EXAMPLES))
    folds = [
        (coordinates.part(kept), labels[kept], coordinates.part(held_out), labels[held_out])
        for kept, held_out in _folds(thin, labels, groups)
        if len(held_out)
    ]
    if not folds:
        return WITHOUT_CHOICE
    found: list[Solution | None] = [None] * len(folds)
    best, best_score, num_worse = PENALTIES[0], -np.inf, 0
    for penalty in PENALTIES:
        scores = []
        for index, (kept, kept_labels, held_out, held_out_labels) in enumerate(folds):
            solution = solve(kept, kept_labels, num_classes, penalty * len(kept), found[index], _LEAST_PROGRESS)
            scores.append(_log_likelihood(held_out, held_out_labels, solution))
            found[index] = solution
        score = np.concatenate(scores).mean()
        if score > best_score:
            best, best_score, num_worse = penalty, score, 0
        else:
            num_worse += 1
        if num_worse == _PATIENCE:
            break
    return best * len(labels)


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


def _log_likelihood(
    coordinates: Coordinates, labels: Int[np.ndarray, " n"], solution: Solution
) -> Float[np.ndarray, " n"]:
    """Of every example."""
    weight, bias = (each.float().to(coordinates.device) for each in (solution.weight, solution.bias))
    of_label = []
    for places, x in coordinates.blocks():
        target = rearrange(torch.from_numpy(labels[places]).to(coordinates.device), "m -> m 1")
        of_label.append(torch.addmm(bias, x, weight.T).log_softmax(1).gather(1, target)[:, 0].double().cpu())
    return torch.cat(of_label).numpy()
