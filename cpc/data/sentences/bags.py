"""Bags of words: sentences as sparse counts, which know no order and nothing but the labelled text."""

import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import block_diag, csr_array
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from torch import Tensor

from cpc.data.text.segmentation import WORD, normal_form

_WORDS = {"preprocessor": partial(normal_form, lower_case=True), "tokenizer": WORD.findall, "token_pattern": None}
KINDS = {
    "bow": lambda: CountVectorizer(**_WORDS),
    "tfidf": lambda: TfidfVectorizer(**_WORDS, ngram_range=(1, 2)),
}


def bags(kind: str, sets: Sequence[Sequence[str]]) -> csr_array:
    """Counts of words (`bow`), or of words and pairs of them, weighted by how few sentences have them (`tfidf`).

    A column stands for a word of one set: no set sees the words or the weights of another. Words that a probe's
    training part lacks get no weight from it, so that leaving them out would change nothing. Counts are divided by the
    root mean square length of a set's rows, which only moves the penalty's grid.

    Args:
        kind: `bow` or `tfidf` (scikit-learn's, rows of length 1).
        sets: the sentences of each set.
    """
    counted = [csr_array(KINDS[kind]().fit_transform(sentences), dtype="float32") for sentences in sets]
    return csr_array(block_diag([unit_rows(each) for each in counted], format="csr"))


def unit_rows(x: csr_array) -> csr_array:
    """Rows divided by one number, so that their squares have a mean sum of 1."""
    return x * np.float32((x.shape[0] / max(x.multiply(x).sum(), 1e-12)) ** 0.5)


class SparseRows:
    """Rows of a sparse matrix, as probes read them.

    Args:
        x: `[n, D]` float32.
    """

    def __init__(self, x: csr_array) -> None:
        self.x = x
        self.shape = x.shape

    def __getitem__(self, chosen: np.ndarray) -> Float[Tensor, "m D"]:
        """These rows as a CSR tensor."""
        found = self.x[chosen]
        with warnings.catch_warnings(action="ignore"):  # that CSR is in beta
            indptr, indices, data = map(torch.from_numpy, (found.indptr, found.indices, found.data))
            return torch.sparse_csr_tensor(indptr, indices, data, size=found.shape, check_invariants=False)
