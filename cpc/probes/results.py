"""Results of probes: accuracy, confusion and label information, with intervals. n examples, G clusters, Y the label."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from torch import Tensor

from cpc.probes.task import UNSEEN, Examples, Task

_BLOCK_EXAMPLES = 1024
NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


class Answers(NamedTuple):
    """A probe's answers to the test examples.

    Attributes:
        predicted: `[n]` the most probable class.
        log_likelihood_nats: `[n]` log q(y | features) of the true class; NaN if the class was unseen in training.
        labels: `[n]` the true class, `UNSEEN` if the training part lacks it.
        clusters: `[n]` independent unit of each example.
        num_train: number of training examples; with folds, the mean over them.
        l2: weight of the penalty of each probe that answered.
        num_steps: training steps of a supervised network, as `num_train`; None for probes.
    """

    predicted: np.ndarray
    log_likelihood_nats: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray
    num_train: int = 0
    l2: tuple[float, ...] = ()
    num_steps: int | None = None


@dataclass(frozen=True)
class ProbeResult:
    """The result of one or several seeds on the same test examples.

    An example whose label is unseen in training counts as an error. Entropies leave such examples out. The label
    information H(Y) - CE is a lower bound on I(Y; features) (Barber and Agakov 2003), apart from the error of
    estimating H(Y) from a sample. It is negative if the probe is worse than predicting the label frequencies.

    Attributes:
        accuracy_percent: top-1, mean over the seeds.
        accuracy_interval_percent: 95 % interval by cluster bootstrap, or None with a single cluster.
        accuracy_percent_by_seed: top-1 of each seed.
        label_entropy_nats: H(Y) of the test labels' frequencies.
        cross_entropy_nats: CE, mean over examples and seeds of -log q(y | features).
        label_information_nats: H(Y) - CE.
        label_information_interval_nats: interval of the label information, as for accuracy.
        num_train: number of training examples; with folds, the mean over them.
        num_test: number of test examples.
        num_unseen: number of test examples whose label the training part lacks.
        num_clusters: number of independent units of the test part.
        f1_percent: F1 of the classes, weighted by their test examples; over all seeds.
        macro_f1_percent: mean F1 of the classes that have test examples; over all seeds.
        class_accuracy_percent: recall of each class; None for a class without test examples.
        confusion: number of examples by `[true class][predicted class]`, summed over the seeds.
        l2: weight of each probe's penalty, as given or as chosen on the training part.
        num_network_steps: number of steps of a supervised network within its budget; None for probes.
    """

    accuracy_percent: float
    accuracy_interval_percent: tuple[float, float] | None
    accuracy_percent_by_seed: list[float]
    label_entropy_nats: float
    cross_entropy_nats: float
    label_information_nats: float
    label_information_interval_nats: tuple[float, float] | None
    num_train: int
    num_test: int
    num_unseen: int
    num_clusters: int
    f1_percent: float
    macro_f1_percent: float
    class_accuracy_percent: list[float | None]
    confusion: list[list[int]]
    l2: list[float]
    num_network_steps: int | None


def answer_by_likelihood(
    log_probabilities: Callable[[Tensor], Tensor], test: Examples, l2: tuple[float, ...] = ()
) -> Answers:
    """Return the most probable class of each example, and the log-probability of its true class.

    `log_probabilities` takes the features `[m, D]` of a block of examples and returns `[m, Y]`.
    """
    predicted, log_likelihood = [], []
    for start in range(0, len(test), _BLOCK_EXAMPLES):
        block = slice(start, start + _BLOCK_EXAMPLES)
        values, labels = log_probabilities(test.read(block)).cpu().numpy(), test.labels[block]
        predicted.append(values.argmax(1))
        log_likelihood.append(np.where(labels == UNSEEN, np.nan, values[np.arange(len(labels)), labels]))
    arrays = np.concatenate(predicted), np.concatenate(log_likelihood).astype(np.float64)
    return Answers(*arrays, test.labels, test.clusters, l2=l2)


def cross_validate(task: Task, answer: Callable[[Task], tuple[int, Sequence[Answers]]]) -> list[Answers]:
    """Return the answers of each seed to the test examples of all folds, or of the test part of a task with splits.

    `answer` returns the number of training examples of a fold, and the answers of each seed to its test examples.
    """
    by_fold = [[each._replace(num_train=num) for each in answers] for num, answers in map(answer, task.folds)]
    return [_joined(folds) for folds in zip(*by_fold, strict=True)]


def _joined(folds: Sequence[Answers]) -> Answers:
    arrays = {name: np.concatenate([getattr(each, name) for each in folds]) for name in Answers._fields[:4]}
    num_steps = [each.num_steps for each in folds if each.num_steps is not None]
    return Answers(
        **arrays,
        num_train=round(np.mean([each.num_train for each in folds])),
        l2=tuple(l2 for each in folds for l2 in each.l2),
        num_steps=round(np.mean(num_steps)) if num_steps else None,
    )


def summarise(answers: Sequence[Answers], num_classes: int) -> ProbeResult:
    """Return the result of the answers of one or several seeds to the same test examples."""
    labels = answers[0].labels
    is_seen = labels != UNSEEN
    correct = np.stack([a.predicted == labels for a in answers])  # [seeds, n]; predictions are never UNSEEN
    log_likelihood = np.mean([np.where(is_seen, a.log_likelihood_nats, 0.0) for a in answers], 0)
    confusion = np.zeros((num_classes, num_classes), np.int64)
    for a in answers:
        np.add.at(confusion, (labels[is_seen], a.predicted[is_seen]), 1)

    frequencies = np.bincount(labels[is_seen], minlength=num_classes) / max(1, is_seen.sum())
    surprisal = -np.log(np.where(frequencies > 0, frequencies, 1))[labels]  # -log p(y); H(Y) is its mean
    entropy, cross_entropy = _mean(surprisal, is_seen), _mean(-log_likelihood, is_seen)

    # Intervals resample clusters but keep p(y). Resamples miss rare labels, so the entropies of resamples would be too
    # low. To first order the variance is the same.
    clusters, cluster = np.unique(answers[0].clusters, return_inverse=True)
    columns = (np.ones(len(labels)), correct.mean(0), is_seen, (surprisal + log_likelihood) * is_seen)
    sums = np.zeros((len(clusters), len(columns)))
    for column, values in enumerate(columns):
        np.add.at(sums[:, column], cluster, values)
    intervals: list[tuple[float, float] | None] = [None, None]
    if len(clusters) > 1:
        count, num_correct, seen, information = resample(sums).T
        shares = 100 * num_correct / count, information / np.maximum(seen, 1)
        intervals = [interval(values, len(clusters)) for values in shares]
    counts = confusion.sum(1)
    num_answers = np.bincount(np.concatenate([a.predicted for a in answers]), minlength=num_classes)
    f1 = 2 * confusion.diagonal() / np.maximum(counts + num_answers, 1)  # harmonic mean of precision and recall
    return ProbeResult(
        accuracy_percent=100 * float(correct.mean()),
        accuracy_interval_percent=intervals[0],
        accuracy_percent_by_seed=(100 * correct.mean(1)).tolist(),
        label_entropy_nats=entropy,
        cross_entropy_nats=cross_entropy,
        label_information_nats=entropy - cross_entropy,
        label_information_interval_nats=intervals[1],
        num_train=answers[0].num_train,
        num_test=len(labels),
        num_unseen=int((~is_seen).sum()),
        num_clusters=len(clusters),
        f1_percent=100 * float(counts @ f1) / correct.size,  # examples with an unseen label count with F1 = 0
        macro_f1_percent=100 * _mean(f1, counts > 0),
        class_accuracy_percent=[
            100 * float(right / count) if count else None
            for right, count in zip(confusion.diagonal(), counts, strict=True)
        ],
        confusion=confusion.tolist(),
        l2=[l2 for a in answers for l2 in a.l2],
        num_network_steps=answers[0].num_steps,
    )


def _mean(values: np.ndarray, mask: np.ndarray) -> float:
    return float(values[mask].mean()) if mask.any() else math.nan


def resample(sums: np.ndarray) -> np.ndarray:
    """Draw clusters with replacement; return `[NUM_RESAMPLES, n]` sums over them, from `[G, n]` sums per cluster."""
    rng = np.random.default_rng(0)
    shares = np.full(len(sums), 1 / len(sums))
    return np.stack([rng.multinomial(len(sums), shares) @ sums for _ in range(NUM_RESAMPLES)])


def interval(values: np.ndarray, num_clusters: int) -> tuple[float, float]:
    """Return the expanded percentile interval: with few clusters a plain one is too short (arXiv:1411.5279)."""
    t = stats.t.ppf((1 + CONFIDENCE) / 2, num_clusters - 1)
    tail = stats.norm.cdf(-t * math.sqrt(num_clusters / (num_clusters - 1)))
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
