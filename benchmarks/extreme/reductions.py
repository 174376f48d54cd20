"""Points of several classes as examples of one class each.

P points, n classes, E examples.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy import sparse


class ClassExamples(NamedTuple):
    """Examples of one class each.

    Attributes:
        points: `[E]`, which point each is.
        classes: `[E]`, its class.
    """

    points: Int[np.ndarray, " E"]
    classes: Int[np.ndarray, " E"]


def pick_all_labels(labels: sparse.csr_array, rng: np.random.Generator) -> ClassExamples:
    """Every class of every point is an example: points of many classes count more.

    The softmax that is best for them ranks classes by P(class is among the labels | x), the order that precision@k asks
    for: "pick all labels" in Menon et al. 2019, "Multilabel reductions: what is my loss optimising?". Rawat et al. 2019
    (arXiv:1907.10747) only say that they reduce as Reddi et al. 2019 (arXiv:1810.07076), to whom this is credited. The
    trap: the other labels of the point stay among the candidates, to be drawn as negatives.

    Args:
        labels: `[P, n]`, points without a class give no example.
        rng: not used; every reduction takes one.
    """
    points = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
    return ClassExamples(points, labels.indices.astype(np.int64))


def pick_one_label(labels: sparse.csr_array, rng: np.random.Generator) -> ClassExamples:
    """One class of every point, drawn uniformly: every point counts the same.

    In expectation `pick_all_labels` with each point's examples weighted by one over their number: its softmax ranks as
    recall@k asks for (Menon et al. 2019). Draw anew for every epoch.

    Args:
        labels: `[P, n]`, points without a class give no example.
        rng: source of the draws.
    """
    num_labels = np.diff(labels.indptr)
    points = np.flatnonzero(num_labels)
    drawn = labels.indptr[points] + rng.integers(0, num_labels[points])
    return ClassExamples(points, labels.indices[drawn].astype(np.int64))


REDUCTIONS = {"pick_all_labels": pick_all_labels, "pick_one_label": pick_one_label}
