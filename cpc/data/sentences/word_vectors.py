"""Word vectors learnt from co-occurrences in a text, and the expansion of a model's vocabulary with them.

V words, d vector dim, E embedding dim.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import coo_array, csr_array
from sklearn.linear_model import RidgeCV
from sklearn.utils.extmath import randomized_svd

from cpc.data.text.segmentation import VERSION, WORD, normal_form
from cpc.data.text.vocabulary import encoder_vocabulary

REACH = 5  # number of neighbouring words on each side of a word
SMOOTHING = 0.75  # exponent of the frequencies of neighbours
DIM = 200
_PENALTIES = 10.0 ** np.arange(-3, 4)


def learn_vectors(sentences: Iterable[str], dim: int = DIM) -> tuple[list[str], Float[np.ndarray, "V d"]]:
    """Return the singular vectors of positive pointwise mutual information (Levy, Goldberg and Dagan 2015, TACL 3).

    Words up to 5 apart in a sentence are neighbours. The frequencies of neighbours are raised to the power 0.75, and
    the singular values to the power 0.5, as the paper recommends. The words are in lower
    case, the most frequent first, and their vectors have length 1.
    """
    word_lists = [WORD.findall(normal_form(sentence, lower_case=True)) for sentence in sentences]
    counts = Counter(word for sentence in word_lists for word in sentence)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if len(words) < 3:
        raise ValueError(f"the text has {len(words)} different words: too few for vectors")
    word_ids = {word: i for i, word in enumerate(words)}
    tokens = np.array([word_ids[word] for sentence in word_lists for word in sentence])
    sentence_ids = np.repeat(np.arange(len(word_lists)), [len(sentence) for sentence in word_lists])
    ppmi = positive_information(neighbours(tokens, sentence_ids, len(words)))
    left, values, _ = randomized_svd(ppmi, min(dim, len(words) - 1), random_state=0)
    vectors = left * values**0.5
    return words, vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)


def neighbours(tokens: np.ndarray, sentence_ids: np.ndarray, num_words: int) -> csr_array:
    """Return how often two words stand at most `REACH` apart in one sentence, `[V, V]`."""
    counts = csr_array((num_words, num_words))
    for distance in range(1, REACH + 1):
        is_same_sentence = sentence_ids[distance:] == sentence_ids[:-distance]
        pairs = tokens[:-distance][is_same_sentence], tokens[distance:][is_same_sentence]
        one_way = coo_array((np.ones(len(pairs[0])), pairs), shape=counts.shape).tocsr()
        counts = counts + one_way + one_way.T
    return csr_array(counts)


def positive_information(counts: csr_array) -> csr_array:
    """Return max(0, log p(word, neighbour) / (p(word) p(neighbour))), with smoothed p(neighbour)."""
    pairs = coo_array(counts)
    word_counts, neighbour_counts = counts.sum(1), counts.sum(0) ** SMOOTHING
    p_word, p_neighbour = word_counts / word_counts.sum(), neighbour_counts / neighbour_counts.sum()
    pairs.data = np.log(pairs.data / pairs.data.sum() / (p_word[pairs.row] * p_neighbour[pairs.col])).clip(min=0)
    ppmi = csr_array(pairs)
    ppmi.eliminate_zeros()
    return ppmi


def expand(model: Any, words: Sequence[str], vectors: Float[np.ndarray, "V d"]) -> Any:
    """Return a copy of a model whose vocabulary includes all words of the text.

    A linear map turns word vectors into embeddings. Ridge regression learns the map from the words that text and model
    share; leave-one-out selects the penalty. Kiros et al. 2015 (arXiv:1506.06726, section 2.2) do this with word2vec.
    Words of the model keep their embeddings. Its encoder is a `cpc.encoders.SentenceEncoder` with a vocabulary; words
    and vectors are those of its training text.
    """
    expanded = deepcopy(model)
    encoder = expanded.encoder
    symbol_ids = {symbol: i for i, symbol in enumerate(encoder_vocabulary(encoder).symbols)}
    shared = [i for i, word in enumerate(words) if word in symbol_ids]
    if not shared:
        raise ValueError(
            "the text has no word in common with the model's vocabulary: name the text on which the model was trained"
        )
    new = [i for i, word in enumerate(words) if word not in symbol_ids]
    if not new:
        return expanded
    table = encoder.embedding.weight.detach().cpu().double().numpy()
    shared_embeddings = table[[symbol_ids[words[i]] for i in shared]]
    ridge = RidgeCV(alphas=_PENALTIES).fit(vectors[shared], shared_embeddings)
    weight = torch.from_numpy(np.concatenate([table, ridge.predict(vectors[new])]))
    symbols = [*encoder_vocabulary(encoder).symbols, *(words[i] for i in new)]
    encoder.vocabulary = encoder_vocabulary(encoder).description | {"symbols": symbols, "segmentation": VERSION}
    encoder.num_tokens = len(symbols)
    encoder.embedding = torch.nn.Embedding.from_pretrained(weight.to(encoder.embedding.weight))
    return expanded
