"""Word vectors against loops, and a vocabulary expanded by them."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import cpc
from cpc.data.sentences.word_vectors import REACH, SMOOTHING, expand, learn_vectors, neighbours, positive_information
from cpc.data.text.vocabulary import build_vocabulary, encoder_vocabulary
from cpc.encoders import SentenceEncoder


def test_neighbours_and_their_information_by_loop() -> None:
    rng = np.random.default_rng(0)
    tokens, sentence_of = rng.integers(0, 6, 60), np.sort(rng.integers(0, 8, 60))
    expected = np.zeros((6, 6))
    for i in range(60):
        for j in range(60):
            if i != j and abs(i - j) <= REACH and sentence_of[i] == sentence_of[j]:
                expected[tokens[i], tokens[j]] += 1
    counts = neighbours(tokens, sentence_of, 6)
    np.testing.assert_array_equal(counts.toarray(), expected)
    context = expected.sum(0) ** SMOOTHING
    joint, product = expected / expected.sum(), np.outer(expected.sum(1) / expected.sum(), context / context.sum())
    with np.errstate(divide="ignore"):
        ppmi = np.maximum(np.log(joint / product), 0)
    np.testing.assert_allclose(positive_information(csr_array(counts)).toarray(), ppmi, atol=1e-12)


def test_words_used_alike_have_like_vectors() -> None:
    rng = np.random.default_rng(0)
    topics = [["sea", "ship", "sail", "wave"], ["tea", "cup", "cake", "spoon"]]
    sentences = [" ".join(rng.permutation(topics[n % 2])[:3].tolist()) for n in range(400)]
    words, vectors = learn_vectors(sentences, dim=2)
    assert set(words) == {word for topic in topics for word in topic}
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    likeness = vectors @ vectors.T
    same = np.array([[(a in topics[0]) == (b in topics[0]) for b in words] for a in words])
    assert likeness[same].min() > 0.9
    assert likeness[~same].max() < 0.1
    with pytest.raises(ValueError, match="2 different words"):
        learn_vectors(["one two"])


def test_expanding_finds_a_linear_map() -> None:
    """Embeddings that are linear in the vectors: those of unknown words are found too, known ones stay."""
    rng = np.random.default_rng(0)
    sentences = [" ".join(f"w{i}" for i in rng.integers(0, 40, 8) ** 2 // 40) for _ in range(300)]
    words, vectors = learnt = learn_vectors(sentences, dim=5)
    vocabulary = build_vocabulary(sentences, tokens="words", num_tokens=20, lower_case=True)
    encoder = SentenceEncoder(20, dim=4, embedding_dim=3, vocabulary=vocabulary.description)
    model = cpc.CPC(encoder, cpc.contexts.GRU(dim=4), cpc.predictors.Bilinear(num_steps=1))
    true_map = rng.normal(size=(5, 3))
    vector_of = dict(zip(words, vectors, strict=True))
    with torch.no_grad():
        for place, symbol in enumerate(vocabulary.symbols):
            if symbol in vector_of:
                encoder.embedding.weight[place] = torch.from_numpy(vector_of[symbol] @ true_map + 1.0)
    expanded = expand(model, *learnt).encoder
    assert encoder.num_tokens == 20
    assert expanded.num_tokens == len(words) + 2  # <eos> and <unk> have no vectors
    assert torch.equal(expanded.embedding.weight[:20], encoder.embedding.weight)
    for symbol, weight in zip(encoder_vocabulary(expanded).symbols[20:], expanded.embedding.weight[20:], strict=True):
        np.testing.assert_allclose(weight, vector_of[symbol] @ true_map + 1.0, atol=0.05)
    same = torch.tensor([[vocabulary.encode("w0 w1")]])
    torch.testing.assert_close(expanded(same), encoder(same))
    with pytest.raises(ValueError, match="no word in common"):
        expand(model, *learn_vectors(["other words here"]))
    other_scripts = expand(model, *learn_vectors([*sentences, "w0 পাখি w1 உயிர்"], dim=5)).encoder
    assert encoder_vocabulary(other_scripts).unknown not in encoder_vocabulary(other_scripts).encode("পাখি உயிர்")
