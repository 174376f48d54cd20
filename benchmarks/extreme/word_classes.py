"""An extreme classification problem of any size whose best possible precision is known.

P points, F features (words), n classes, S words of a class, L words of a point, T labels drawn for a point.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from benchmarks.extreme.points import ExtremePoints

_TILE_POINTS = 1024


class WordClasses:
    """A problem whose classes have words, whose points are bags of words, and whose exact posterior is known.

    A class y comes with probability pi_y, proportional to (y + 10)^-exponent. A point is L words, each independently of
    the S words of the class with probability 1 - noise, otherwise any of the F. So

        P(y | x) is proportional to pi_y exp(lambda h_y(x)),  lambda = log(1 + (1 - noise) F / (noise S)),

    where h_y(x) counts the words of x that are words of y: classes without a hit keep their prior, and the posterior of
    a million classes is a sparse product. It is a softmax of scores that are linear in x, what a sparse linear encoder
    with a class table can express if it is wide enough.

    A point's labels are T independent draws from P(. | x), the first of which made its words; a class drawn twice is
    one label. Class y is among them with probability 1 - (1 - P(y | x))^T, which grows with P(y | x): no ranking has a
    higher expected precision@k than that by P(y | x), for any k.

    Args:
        num_classes: n.
        num_features: F.
        words_per_class: S, distinct within a class.
        words_per_point: L.
        noise: in (0, 1).
        labels_per_point: T.
        exponent: of the classes' frequencies; 0: all the same.
        seed: which words the classes have.

    Raises:
        ValueError: on a noise outside (0, 1), or more words per class than there are.
    """

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        words_per_class: int = 4,
        words_per_point: int = 6,
        noise: float = 0.3,
        labels_per_point: int = 2,
        exponent: float = 0.7,
        seed: int = 0,
    ) -> None:
        if not 0 < noise < 1:
            raise ValueError(f"noise={noise} must lie between 0 and 1")
        if not 1 <= words_per_class <= num_features:
            raise ValueError(f"words_per_class={words_per_class} must be between 1 and num_features={num_features}")
        self.num_classes = num_classes
        self.num_features = num_features
        self.words_per_point = words_per_point
        self.noise = noise
        self.labels_per_point = labels_per_point
        self.words = _distinct(np.random.default_rng(seed), num_classes, words_per_class, num_features)
        frequencies = (np.arange(num_classes) + 10.0) ** -exponent
        self.prior = frequencies / frequencies.sum()
        self.lam = np.log1p((1 - noise) * num_features / (noise * words_per_class))
        offsets = np.arange(num_classes + 1) * words_per_class
        has_word = sparse.csr_array(
            (np.ones(self.words.size), self.words.ravel(), offsets), (num_classes, num_features)
        )
        self._classes_of_word = has_word.T.tocsr()

    def draw(self, num_points: int, rng: np.random.Generator) -> ExtremePoints:
        """Sample points with their labels; the value of a feature is the count of the word."""
        first = np.searchsorted(self.prior.cumsum()[:-1], rng.random(num_points), side="right")
        own = self.words[first[:, None], rng.integers(0, self.words.shape[1], (num_points, self.words_per_point))]
        other = rng.integers(0, self.num_features, own.shape)
        is_noise = rng.random(own.shape) < self.noise
        features = _rows(np.where(is_noise, other, own), self.num_features).astype(np.float32)
        further = [
            posterior.draw(rng.random((len(posterior.scale), self.labels_per_point - 1)))
            for posterior in self.posteriors(features)
        ]
        labels = _rows(np.concatenate([first[:, None], np.concatenate(further)], axis=1), self.num_classes)
        return ExtremePoints(features, labels.astype(bool))

    def posteriors(self, features: sparse.csr_array) -> Iterator["Posterior"]:
        """Yield P(y | x) of all points, some points at a time."""
        for start in range(0, features.shape[0], _TILE_POINTS):
            hits = (features[start : start + _TILE_POINTS] @ self._classes_of_word).tocsr()
            yield Posterior.from_hits(self.prior, hits, self.lam)

    def optimal_precision_at(self, k: int, features: sparse.csr_array) -> Float[np.ndarray, " P"]:
        """Return the expected precision@k of the best ranking, by P(y | x), for each point."""
        best = np.concatenate([posterior.highest(k) for posterior in self.posteriors(features)])
        return (1 - (1 - best) ** self.labels_per_point).mean(1)


@dataclass(frozen=True)
class Posterior:
    """P(y | x) = (scale pi_y + excess) / (scale + sum of the excess), with an excess where a class has a hit.

    Attributes:
        prior: `[n]`, pi.
        scale: `[P]`, exp(-lambda times the most hits of a class), so that the largest weights are those of the prior.
        hits: `[P, n]`, whose entries say where there is an excess.
        excess: of these entries.
    """

    prior: Float[np.ndarray, " n"]
    scale: Float[np.ndarray, " P"]
    hits: sparse.csr_array
    excess: Float[np.ndarray, " _"]

    @classmethod
    def from_hits(cls, prior: Float[np.ndarray, " n"], hits: sparse.csr_array, lam: float) -> "Posterior":
        """Compute the posterior from the number of hits of every class with a hit."""
        most = hits.max(axis=1).toarray()
        rows = np.repeat(np.arange(hits.shape[0]), np.diff(hits.indptr))
        scale = np.exp(-lam * most)
        excess = prior[hits.indices] * (np.exp(lam * (hits.data - most[rows])) - scale[rows])
        return cls(prior, scale, hits, excess)

    @property
    def total(self) -> Float[np.ndarray, " P"]:
        """The sum of the weights."""
        return self.scale + sparse.csr_array((self.excess, self.hits.indices, self.hits.indptr), self.hits.shape).sum(1)

    def draw(self, uniform: Float[np.ndarray, "P T"]) -> Int[np.ndarray, "P T"]:
        """Sample classes from P(y | x): from the prior, or from the excess."""
        level = uniform * self.total[:, None]
        scale = self.scale[:, None]
        # If the scale of a point underflows, no class of the point is sampled from the prior.
        prior_draws = np.searchsorted(
            self.prior.cumsum()[:-1], level / np.maximum(scale, np.finfo(np.float64).tiny), side="right"
        )
        if not len(self.excess):
            return prior_draws
        sums = np.concatenate([np.zeros(1), self.excess.cumsum()])
        entry = np.searchsorted(sums, sums[self.hits.indptr[:-1], None] + level - scale, side="right") - 1
        # Rounding can exceed the last entry of a row, so the index is clipped.
        last = np.maximum(self.hits.indptr[1:, None] - 1, 0)
        entry = np.minimum(np.clip(entry, self.hits.indptr[:-1, None], last), len(self.excess) - 1)
        return np.where(level < scale, prior_draws, self.hits.indices[entry])

    def highest(self, k: int) -> Float[np.ndarray, "P k"]:
        """Return the k highest values of P(y | x), best first."""
        rows = []
        most_frequent = np.argsort(-self.prior, kind="stable")
        for row, (start, stop) in enumerate(pairwise(self.hits.indptr)):
            classes = self.hits.indices[start:stop]
            # Among the classes without a hit, only the k most frequent can have one of the k highest values.
            others = most_frequent[: k + len(classes)]
            others = others[~np.isin(others, classes)][:k]
            weights = [
                self.scale[row] * self.prior[classes] + self.excess[start:stop],
                self.scale[row] * self.prior[others],
            ]
            rows.append(-np.sort(-np.concatenate(weights))[:k])
        return np.stack(rows) / self.total[:, None]


def _distinct(rng: np.random.Generator, num_rows: int, num: int, num_values: int) -> Int[np.ndarray, "rows num"]:
    """Return rows of distinct numbers below `num_values`; all sets are equally likely."""
    drawn = rng.integers(0, num_values, (num_rows, num))
    if num**2 > num_values:  # too many repeats to sample again; the table is at most num times as large as `drawn`
        return np.argpartition(rng.random((num_rows, num_values)), num - 1, axis=1)[:, :num]
    while True:
        ordered = np.sort(drawn, axis=1)
        repeats = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(1))
        if not len(repeats):
            return drawn
        drawn[repeats] = rng.integers(0, num_values, (len(repeats), num))


def _rows(columns: Int[np.ndarray, "P L"], num_columns: int) -> sparse.csr_array:
    """Return the count of each column in each row."""
    offsets = np.arange(len(columns) + 1) * columns.shape[1]
    rows = sparse.csr_array((np.ones(columns.size), columns.ravel(), offsets), (len(columns), num_columns))
    rows.sum_duplicates()
    return rows
