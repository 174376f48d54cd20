"""The encoder g_enc for text: one vector per token of the vocabulary.

B streams, T tokens, D latent dim.
"""

from typing import Any, ClassVar

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, checked
from cpc.data.tensors import check_range, check_tensor
from cpc.encoders.encoder import Encoder


class TokenEncoder(Encoder):
    """An embedding of tokens.

    Args:
        num_tokens: size of the vocabulary.
        dim: D.
        dropout: probability of dropping a channel of the vector of a token.
        is_tied: embed with the rows of the class table of the loss (Press and Wolf 2017, arXiv:1608.05859; Inan et al.
            2017, arXiv:1611.01462) instead of separate vectors. The rows are not scaled to length 1, even if the table
            normalises them for its scores.
        vocabulary: description of the tokens from `cpc.data.text.vocabulary.Vocabulary.description`; training sets it,
            so that a saved model can read text.
    """

    modality = "text"
    geometry_names: ClassVar[tuple[str, ...]] = ("num_tokens",)

    @checked
    def __init__(
        self,
        num_tokens: Count,
        dim: Count = 200,
        dropout: Dropout = 0.0,
        is_tied: bool = False,
        vocabulary: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.dim = dim
        self.dropout = dropout
        self.is_tied = is_tied
        self.vocabulary = vocabulary
        self.embedding = None if is_tied else nn.Embedding(num_tokens, dim)
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight, std=dim**-0.5)  # the same scale as rows of a class table
        self._table: tuple[Any, ...] = ()

    def forward(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the vector of every token; on a CPU an id outside the vocabulary is a ValueError."""
        if self.embedding is None and not self._table:
            raise ValueError("is_tied=True, but there is no class table: give the CPC a ClassTableLoss")
        if x.device.type == "cpu":  # a GPU would have to wait; its embedding kernel stops on invalid ids
            check_range("tokens", x, 0, self.num_tokens, "tokens of the vocabulary")
        weight: Tensor = self._table[0].weight if self.embedding is None else self.embedding.weight
        return F.dropout(F.embedding(x, weight), self.dropout, self.training)

    def connect_classes(self, table: nn.Module) -> None:
        """Check the class table, of one class per token, and use its rows if `is_tied`; `CPC` calls this method."""
        check_tensor("the class table", table.weight, "numbers", (self.num_tokens, self.dim if self.is_tied else "D"))
        self._table = (table,)  # in a tuple, so that nn.Module does not save the table's parameter a second time
