"""Cross-validation: probes of the other folds answer a fold, and the answers to all folds are judged together.

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
    """The answers to one fold.

    Attributes:
        answers: the answers of each seed.
        test: the test examples.
        num_train: number of training examples.
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
    """Answer every fold of a task, or the test part if the task has splits.

    Args:
        task: the task.
        store: the features of all observations of the task.
        feature: a feature of the store; None to pass only labels.
        answer: function of training examples, test examples and the number of classes that returns the answers of each
            seed.

    Returns:
        The answers of each seed to all test examples, and a function that judges such answers.
    """
    folds = []
    for fold in task.folds:
        train, test = (fold.examples(part, store, feature) for part in ("train", "test"))
        folds.append(Fold(answer(train, test, len(task.classes)), test, len(train)))
    return join_folds(folds, len(task.classes))


def join_folds(folds: Sequence[Fold], num_classes: int) -> tuple[list[Answers], Judge]:
    """Return the answers of each seed to the test examples of all folds, and a function that judges such answers."""
    answers = [
        Answers(
            np.concatenate([part.predicted for part in parts]),
            np.concatenate([part.log_likelihood_nats for part in parts]),
            sum((part.l2 for part in parts), ()),
        )
        for parts in zip(*(fold.answers for fold in folds), strict=True)
    ]
    labels, clusters, groups = (
        np.concatenate([getattr(fold.test, name) for fold in folds]) for name in ("labels", "clusters", "groups")
    )
    test = Examples(np.empty((len(labels), 0), np.float32), np.arange(len(labels)), labels, clusters, groups)
    num_train = round(np.mean([fold.num_train for fold in folds]))
    return answers, partial(summarise, test=test, num_classes=num_classes, num_train=num_train)
