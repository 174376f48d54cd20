"""The encoder g_enc for sentences: one vector per sentence.

B windows, T sentences, W tokens of the longest sentence, E embedding dim, D latent dim, M tokens of all sentences.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, Odd, checked
from cpc.data.tensors import check_range
from cpc.encoders.convolution import standardising_affine
from cpc.encoders.encoder import Encoder

_DEVIATION = 0.02  # deviation of initial embeddings; small, so that rare words, with few Adam steps, still change


class SentenceEncoder(Encoder):
    """A word embedding, one convolution with ReLU, and the mean over the tokens of a sentence.

    This is the encoder of section 3.3 of van den Oord et al. 2018, with embeddings of 620 and latents of 2400
    dimensions; the paper does not state the kernel size.

    Args:
        num_tokens: size of the vocabulary.
        dim: D.
        embedding_dim: E.
        kernel_size: number of tokens under the convolution, odd; sentences are padded with zeros.
        dropout: probability of dropping a channel of the embedding of a token.
        vocabulary: description of the tokens from `cpc.data.text.vocabulary.Vocabulary.description`; training sets it,
            so that a saved model can read text.
    """

    modality = "sentences"
    geometry_names: ClassVar[tuple[str, ...]] = ("num_tokens",)

    @checked
    def __init__(
        self,
        num_tokens: Count,
        dim: Count = 2400,
        embedding_dim: Count = 620,
        kernel_size: Odd = 3,
        dropout: Dropout = 0.0,
        vocabulary: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.dim = dim
        self.embedding_dim = embedding_dim
        self.kernel_size = kernel_size
        self.dropout = dropout
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(num_tokens, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=_DEVIATION)
        self.convolution = nn.Linear(kernel_size * embedding_dim, dim)  # of each token and its neighbours

    def forward(self, x: Int[Tensor, "B T W"]) -> Float[Tensor, "B T D"]:
        """Return the vector of every sentence; zeros if a sentence has no token."""
        check_range("tokens", x, -1, self.num_tokens, "tokens of the vocabulary")
        hidden = self.convolution(self._token_windows(x)).relu()
        return mean_over_tokens(hidden, x >= 0)

    def mean_of_words(self, x: Int[Tensor, "B T W"]) -> Float[Tensor, "B T E"]:
        """Return the mean embedding of the tokens of each sentence; zeros if a sentence has no token."""
        return mean_over_tokens(self.embedding(x[x >= 0]), x >= 0)

    @torch.no_grad()
    def initialise_from(self, x: Int[Tensor, "B T W"]) -> None:
        """Set the convolution to give every channel zero mean and unit deviation over the tokens of these sentences."""
        hidden = self.convolution(self._token_windows(x))
        scale, bias = standardising_affine(hidden, (0,))
        self.convolution.weight.mul_(rearrange(scale, "d -> d 1"))
        self.convolution.bias.mul_(scale).add_(bias)

    def _token_windows(self, x: Int[Tensor, "B T W"]) -> Float[Tensor, "M kernel_E"]:
        """Return, for each token, the embeddings of the token and its neighbours in the same sentence."""
        is_token = x >= 0
        words = self.embedding(x.clamp(min=0)) * rearrange(is_token, "b t w -> b t w 1")
        words = F.dropout(words, self.dropout, self.training)
        side = self.kernel_size // 2
        return F.pad(words, (0, 0, side, side)).unfold(2, self.kernel_size, 1)[is_token].flatten(1)


def mean_over_tokens(values: Float[Tensor, "M D"], is_token: Tensor) -> Float[Tensor, "B T D"]:
    """Return the mean vector of the tokens of each sentence; zeros if a sentence has no token."""
    num_windows, num_sentences = is_token.shape[:2]
    sentence = torch.arange(num_windows * num_sentences, device=values.device)
    token_sentence = repeat(sentence, "(b t) -> b t w", b=num_windows, w=is_token.shape[2])[is_token]
    sums = values.new_zeros(len(sentence), values.shape[1]).index_add(0, token_sentence, values)
    counts = rearrange(is_token.sum(2).clamp(min=1), "b t -> b t 1")
    return rearrange(sums, "(b t) d -> b t d", b=num_windows) / counts
