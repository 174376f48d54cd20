"""Vectors of a text's words from the words around them, and a model's vocabulary expanded by them.

V words, d vector dim, E embedding dim.
"""

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import coo_array, csr_array
from sklearn.linear_model import RidgeCV
from sklearn.utils.extmath import randomized_svd

from cpc.data.text.segmentation import VERSION, WORD, normal_form
from cpc.data.text.vocabulary import encoder_vocabulary

REACH = 5  # words on each side that count as around a word
SMOOTHING = 0.75  # exponent of the context's frequency
DIM = 200
_PENALTIES = 10.0 ** np.arange(-3, 4)


class WordVectors(NamedTuple):
    """Words and their vectors.

    Attributes:
        words: in lower case, the most frequent first.
        vectors: `[V, d]`, of length 1.
    """

    words: list[str]
    vectors: Float[np.ndarray, "V d"]


def learn_vectors(sentences: Iterable[str], dim: int = DIM) -> WordVectors:
    """Singular vectors of positive pointwise mutual information (Levy, Goldberg and Dagan 2015, TACL 3).

    Words up to 5 apart in a sentence are neighbours; the context's frequencies are smoothed by the power 0.75, and the
    singular values weighted by the power 0.5, as recommended there.

    Args:
        sentences: of the text.
        dim: d, at most the number of words less one.

    Raises:
        ValueError: if there are fewer than three words.
    """
    split = [WORD.findall(normal_form(sentence, lower_case=True)) for sentence in sentences]
    counts = Counter(word for words in split for word in words)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if len(words) < 3:
        raise ValueError(f"the text has {len(words)} different words: too few for vectors")
    number = {word: place for place, word in enumerate(words)}
    tokens = np.array([number[word] for sentence in split for word in sentence])
    sentence_of = np.repeat(np.arange(len(split)), [len(sentence) for sentence in split])
    ppmi = positive_information(neighbours(tokens, sentence_of, len(words)))
    left, values, _ = randomized_svd(ppmi, min(dim, len(words) - 1), random_state=0)
    return WordVectors(words, _unit(left * values**0.5))


def neighbours(tokens: np.ndarray, sentence_of: np.ndarray, num_words: int) -> csr_array:
    """`[V, V]` how often two words stand at most `REACH` apart in one sentence."""
    found = csr_array((num_words, num_words))
    for distance in range(1, REACH + 1):
        together = sentence_of[distance:] == sentence_of[:-distance]
        pair = tokens[:-distance][together], tokens[distance:][together]
        one_way = coo_array((np.ones(len(pair[0])), pair), shape=found.shape).tocsr()
        found = found + one_way + one_way.T
    return csr_array(found)


def positive_information(counts: csr_array) -> csr_array:
    """max(0, log p(word, context) / (p(word) p(context))), with smoothed p(context)."""
    found = coo_array(counts)
    of_word, of_context = counts.sum(1), counts.sum(0) ** SMOOTHING
    share = of_word / of_word.sum(), of_context / of_context.sum()
    found.data = np.log(found.data / found.data.sum() / (share[0][found.row] * share[1][found.col])).clip(min=0)
    kept = csr_array(found)
    kept.eliminate_zeros()
    return kept


def expand(model: Any, learnt: WordVectors) -> Any:
    """A copy of a model that knows all words of the text: vectors mapped linearly to its embeddings.

    The map is learnt by ridge regression on the words that both know, its penalty by leave-one-out (Kiros et al. 2015,
    arXiv:1506.06726, section 2.2, do this with word2vec). Words of the model keep their embeddings.

    Args:
        model: whose encoder is a `cpc.encoders.SentenceEncoder` with a vocabulary.
        learnt: of its training text.

    Raises:
        ValueError: if the two have no word in common.
    """
    expanded = deepcopy(model)
    encoder = expanded.encoder
    known = {symbol: place for place, symbol in enumerate(encoder_vocabulary(encoder).symbols)}
    shared = [place for place, word in enumerate(learnt.words) if word in known]
    if not shared:
        raise ValueError("the text has no word in common with the model's vocabulary: name the text it was trained on")
    new = [place for place, word in enumerate(learnt.words) if word not in known]
    if not new:
        return expanded
    table = encoder.embedding.weight.detach().cpu().double().numpy()
    of_shared = table[[known[learnt.words[place]] for place in shared]]
    ridge = RidgeCV(alphas=_PENALTIES).fit(learnt.vectors[shared], of_shared)
    weight = torch.from_numpy(np.concatenate([table, ridge.predict(learnt.vectors[new])]))
    symbols = [*encoder_vocabulary(encoder).symbols, *(learnt.words[place] for place in new)]
    encoder.vocabulary = encoder_vocabulary(encoder).description | {"symbols": symbols, "segmentation": VERSION}
    encoder.num_tokens = len(symbols)
    encoder.embedding = torch.nn.Embedding.from_pretrained(weight.to(encoder.embedding.weight))
    return expanded


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
