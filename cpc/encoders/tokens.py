"""g_enc for text: a vector per class of token.

B lanes, T tokens, D latent dim.
"""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class TokenEncoder(nn.Module):
    """Embeds tokens.

    Args:
        num_tokens: size of the vocabulary.
        dim: D.
        dropout: probability of dropping a channel of a token's vector.
        is_tied: embed with the rows of the class table that the model predicts with (Press and Wolf 2017,
            arXiv:1608.05859; Inan et al. 2017, arXiv:1611.01462) instead of vectors of its own. They are embedded
            as stored: a table that normalises its rows does so when it scores.
        vocabulary: what the tokens are, as `cpc.data.text.vocabulary.Vocabulary.description` gives it; training fills
            it in, so that a saved model can read text.

    Raises:
        ValueError: if `num_tokens` or `dim` is below 1, or `dropout` is not a probability below 1.
    """

    modality = "text"
    latents = "sequences"

    def __init__(
        self,
        num_tokens: int,
        dim: int = 200,
        dropout: float = 0.0,
        is_tied: bool = False,
        vocabulary: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if num_tokens < 1 or dim < 1:
            raise ValueError(f"num_tokens={num_tokens} and dim={dim} must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be a probability below 1")
        self.num_tokens = num_tokens
        self.dim = dim
        self.dropout = dropout
        self.is_tied = is_tied
        self.vocabulary = vocabulary
        self.embedding = None if is_tied else nn.Embedding(num_tokens, dim)
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight, std=dim**-0.5)  # as the rows of a class table
        self._table: tuple[Any, ...] = ()

    def forward(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """The vector of every token.

        Raises:
            ValueError: if it is tied, but to no table yet; on ids outside the vocabulary, on a CPU.
        """
        if self.embedding is None and not self._table:
            raise ValueError(
                "is_tied=True, but there is no class table: give the CPC a ClassTableLoss, or set is_tied=False"
            )
        # A GPU would have to wait for the answer; its embedding stops by itself.
        if x.device.type == "cpu" and x.numel() and not 0 <= int(x.min()) <= int(x.max()) < self.num_tokens:
            raise ValueError(
                f"tokens run from {int(x.min())} to {int(x.max())}, but the {self.num_tokens} of the vocabulary from 0 "
                f"to {self.num_tokens - 1}: encode text with the model's own vocabulary"
            )
        weight: Tensor = self._table[0].weight if self.embedding is None else self.embedding.weight
        return F.dropout(F.embedding(x, weight), self.dropout, self.training)

    def connect_classes(self, table: nn.Module) -> None:
        """Check a class table against the tokens, and embed with it if tied; `CPC` calls it.

        Args:
            table: `cpc.candidates.ClassTable`, with a class per token.

        Raises:
            ValueError: if its classes are not as many, or a tied one has another width.
        """
        num_classes, dim = table.weight.shape
        if num_classes != self.num_tokens:
            raise ValueError(
                f"the encoder has num_tokens={self.num_tokens}, the class table num_classes={num_classes}: a class is "
                "a token, so they must agree"
            )
        if self.is_tied and dim != self.dim:
            raise ValueError(
                f"is_tied=True, but the encoder has dim={self.dim} and the class table dim={dim}: let them agree, or "
                "set is_tied=False"
            )
        self._table = (table,)  # in a tuple: the parameter stays the table's, and is saved once

    @property
    def geometry(self) -> dict[str, int]:
        """For readers of config.json."""
        return {"num_tokens": self.num_tokens}

    def num_latents(self, num_samples: Int[Tensor, " B"] | int) -> Int[Tensor, " B"] | int:
        """One latent a token."""
        return num_samples

    def initialise_from(self, x: Int[Tensor, "B T"]) -> None:
        """Do nothing: tokens have nothing to standardise."""
