"""Bags of words: sentences as sparse counts without word order. Only the labelled text is read."""

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
    """Return word counts (`bow`), or counts of words and word pairs weighted by inverse document frequency (`tfidf`).

    A column stands for a word of one set, so that the features of a set do not depend on other sets. Some columns are
    words that a probe's training part lacks; their weight in the probe is zero. Counts are divided by the root mean
    square length of a set's rows. This only shifts the grid of penalties.

    Args:
        kind: `bow` or `tfidf` (as in scikit-learn, rows of length 1).
        sets: sentences by set.
    """
    counts = [csr_array(KINDS[kind]().fit_transform(sentences), dtype="float32") for sentences in sets]
    return csr_array(block_diag([unit_rows(x) for x in counts], format="csr"))


def unit_rows(x: csr_array) -> csr_array:
    """Return the rows divided by one number, so that their mean square length is 1."""
    return x * np.float32((x.shape[0] / max(x.multiply(x).sum(), 1e-12)) ** 0.5)


class SparseRows:
    """Rows of a sparse matrix, which indexing returns as a tensor.

    Args:
        x: `[n, D]` float32.
    """

    def __init__(self, x: csr_array) -> None:
        self.x = x
        self.shape = x.shape

    def __getitem__(self, chosen: np.ndarray) -> Float[Tensor, "m D"]:
        """Return these rows as a CSR tensor."""
        rows = self.x[chosen]
        with warnings.catch_warnings(action="ignore"):  # ignore torch's warning that CSR is in beta
            indptr, indices, data = map(torch.from_numpy, (rows.indptr, rows.indices, rows.data))
            return torch.sparse_csr_tensor(indptr, indices, data, size=rows.shape, check_invariants=False)
