"""Answers over the folds of a task, each tested by probes of the others, judged together.

n examples, D feature dim.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from cpc.probes.results import Answers, ProbeResult, summarise
from cpc.probes.store import FeatureStore
from cpc.probes.task import Examples, Task

Judge = Callable[[Sequence[Answers]], ProbeResult]


class Fold(NamedTuple):
    """One fold's answers.

    Attributes:
        answers: of each seed.
        test: what was asked.
        num_train: training examples.
    """

    answers: Sequence[Answers]
    test: Examples
    num_train: int


def over_folds(
    task: Task,
    store: FeatureStore,
    feature: str | None,
    answer: Callable[[Examples, Examples, int], Sequence[Answers]],
) -> tuple[list[Answers], Judge]:
    """Answer each fold of a task, or its test part where it has splits.

    Args:
        task: what to learn.
        store: holds the features of all of its observations.
        feature: of the store; None: labels alone.
        answer: of training examples, test examples and the number of classes: the answers of each seed.

    Returns:
        As `joined`.
    """
    folds = []
    for fold in task.folds:
        train, test = (fold.examples(part, store, feature) for part in ("train", "test"))
        folds.append(Fold(answer(train, test, len(task.classes)), test, len(train)))
    return joined(folds, len(task.classes))


def joined(folds: Sequence[Fold], num_classes: int) -> tuple[list[Answers], Judge]:
    """The answers of each seed to the test examples of all folds, and what judges such answers."""
    answers = [
        Answers(
            np.concatenate([of_fold.predicted for of_fold in of_seed]),
            np.concatenate([of_fold.log_likelihood_nats for of_fold in of_seed]),
            sum((of_fold.l2 for of_fold in of_seed), ()),
        )
        for of_seed in zip(*(fold.answers for fold in folds), strict=True)
    ]
    labels, clusters, groups = (
        np.concatenate([getattr(fold.test, name) for fold in folds]) for name in ("labels", "clusters", "groups")
    )
    asked = Examples(np.empty((len(labels), 0), np.float32), np.arange(len(labels)), labels, clusters, groups)
    num_train = round(np.mean([fold.num_train for fold in folds]))
    return answers, partial(summarise, test=asked, num_classes=num_classes, num_train=num_train)
