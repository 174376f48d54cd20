"""Vectors of sentences against a loop over their tokens."""

import pytest
import torch
from torch import Tensor

from cpc.data.text.vocabulary import encoder_vocabulary
from cpc.encoders import SentenceEncoder

X = torch.tensor([[[3, 0, 2, 6], [1, -1, -1, -1]], [[5, 5, -1, -1], [-1, -1, -1, -1]]])


def loop_encode(encoder: SentenceEncoder, sentence: list[int]) -> Tensor:
    side, kernel = encoder.kernel_size // 2, encoder.kernel_size
    weight = encoder.convolution.weight.double().view(encoder.dim, encoder.embedding_dim, kernel)
    total = torch.zeros(encoder.dim, dtype=torch.float64)
    for place in range(len(sentence)):
        hidden = encoder.convolution.bias.double().clone()
        for offset in range(kernel):
            if 0 <= place + offset - side < len(sentence):
                word = encoder.embedding.weight[sentence[place + offset - side]].double()
                hidden = hidden + weight[:, :, offset] @ word
        total = total + hidden.clamp(min=0)
    return total / max(1, len(sentence))


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_a_sentence_is_the_mean_of_its_convolved_tokens(kernel_size: int) -> None:
    encoder = SentenceEncoder(7, dim=6, embedding_dim=4, kernel_size=kernel_size)
    found = encoder(X)
    for row in range(2):
        for place in range(2):
            sentence = [token for token in X[row, place].tolist() if token >= 0]
            torch.testing.assert_close(found[row, place].double(), loop_encode(encoder, sentence), atol=1e-5, rtol=1e-5)
            if sentence:
                mean = encoder.embedding.weight[sentence].mean(0)
                torch.testing.assert_close(encoder.mean_of_words(X)[row, place], mean)
    assert not found[1, 1].any()
    assert not encoder.mean_of_words(X)[1, 1].any()


def test_padding_and_neighbours_change_nothing() -> None:
    encoder = SentenceEncoder(7, dim=6, embedding_dim=4)
    wider = torch.nn.functional.pad(X, (0, 5), value=-1)
    torch.testing.assert_close(encoder(wider), encoder(X))
    torch.testing.assert_close(encoder(X.flip(0).flip(1)), encoder(X).flip(0).flip(1))
    encoder(X)[1, 1].sum().backward()  # a sentence without tokens has gradients, of 0
    assert not encoder.embedding.weight.grad.any()


def test_data_initialisation_standardises_each_channel() -> None:
    encoder = SentenceEncoder(50, dim=6, embedding_dim=4)
    x = torch.randint(0, 50, (40, 3, 1))  # a token a sentence: latents are its channels
    encoder.initialise_from(x)
    with torch.no_grad():
        hidden = encoder.convolution(encoder._token_windows(x))
    torch.testing.assert_close(hidden.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden.std(0), torch.ones(6))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="tokens run from -2 to 3, but the 3 tokens"):
        SentenceEncoder(3, dim=2)(torch.tensor([[[-2, 3]]]))
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        _ = encoder_vocabulary(SentenceEncoder(3, dim=2, vocabulary={"letters": []}))
