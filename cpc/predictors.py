"""Queries for the latents to come: q_k = W_k c_t for the steps k = 1..K, and non-linear relatives.

K prediction steps, B batch, T latents, D latent dim, C context dim. Every predictor is causal: a query at t uses c_<=t.
"""

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.contexts.transformer import TransformerLayer


class Step(NamedTuple):
    """A prediction: k latents ahead, in a direction of time (unnamed where there is only one)."""

    direction: str
    k: int

    @property
    def name(self) -> str:
        """In short: `down 2`, or `2`."""
        return f"{self.direction} {self.k}".strip()

    @property
    def words(self) -> str:
        """In full: `down, k = 2`, or `k = 2`."""
        return f"{self.direction}, k = {self.k}" if self.direction else f"k = {self.k}"


class Output(NamedTuple):
    """What a model makes of observations.

    Attributes:
        latents: z, `[B, T, D]`, or grids `[B, H, W, D]`.
        contexts: c, `[B, T, C]`, or grids `[B, H, W, C]`.
        queries: W_k c_t by direction of time, `[K, S, T, D]`: under an empty name where latents are sequences (S = B);
            for grids S counts the columns of all images as `cpc.contexts.grid.columns` puts them.
        state: from which encoding goes on.
        targets: the latents that queries find, where a loss compares others than contexts read (`Loss.encode`);
            None: z.
    """

    latents: Tensor
    contexts: Tensor
    queries: dict[str, Tensor]
    state: Any
    targets: Tensor | None = None


class Predictor(nn.Module):
    """c_<=t -> q_1..q_K at t. A subclass gives `_allocate` and `forward`.

    Attributes:
        num_steps: K.
        context_dim: width of the contexts; None before `connect`.
        latent_dim: width of the queries, that of the latents; None before `connect`.
        reads_past_contexts: whether a query at t reads contexts before t, not c_t alone.
    """

    context_dim: int | None = None
    latent_dim: int | None = None
    reads_past_contexts: bool = False

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        self.num_steps = num_steps

    def connect(self, context_dim: int, latent_dim: int) -> None:
        """Allocate the parameters; `CPC` calls it with the widths of its context and encoder.

        Raises:
            ValueError: if other widths were connected before.
        """
        if (self.context_dim, self.latent_dim) == (context_dim, latent_dim):
            return
        if self.context_dim is not None:
            raise ValueError(
                f"this {type(self).__name__} is connected to contexts of width {self.context_dim} and latents of width "
                f"{self.latent_dim}, it cannot take {context_dim} and {latent_dim} as well: build one predictor per "
                "model"
            )
        self._allocate(context_dim, latent_dim)
        self.context_dim, self.latent_dim = context_dim, latent_dim

    @abstractmethod
    def _allocate(self, context_dim: int, latent_dim: int) -> None: ...


class Bilinear(Predictor):
    """The paper's: one linear map per step, so that scores z_{t+k}^T W_k c_t are bilinear (Eq. 3 of arXiv:1807.03748).

    Args:
        num_steps: K, the furthest step predicted.
        dropout: probability of dropping a channel of a context, as language models do before their softmax.

    Raises:
        ValueError: if `num_steps` is below 1, or `dropout` is not a probability below 1.
    """

    def __init__(self, num_steps: int = 12, dropout: float = 0.0) -> None:
        super().__init__(num_steps)
        check_dropout(dropout)
        self.dropout = dropout

    @property
    def weights(self) -> Float[Tensor, "K D C"]:
        """W_1..W_K, a view of the parameter."""
        return rearrange(self.linear.weight, "(k d) c -> k d c", k=self.num_steps)

    def forward(self, c: Float[Tensor, "B T C"]) -> Float[Tensor, "K B T D"]:
        """Queries W_k c_t of all steps, in one product."""
        if self.dropout > 0:
            c = F.dropout(c, self.dropout, self.training)
        return rearrange(self.linear(c), "b t (k d) -> k b t d", k=self.num_steps)

    def _allocate(self, context_dim: int, latent_dim: int) -> None:
        self.linear = nn.Linear(context_dim, self.num_steps * latent_dim, bias=False)
        # A score has variance std^2 |z|^2 |c|^2. Where channels of z and c have a mean square of at most 1, this std
        # keeps it at or below 1, at any width: training starts at a loss of about log N. PyTorch's default grows it
        # with latent_dim, and training first has to unlearn large random scores.
        nn.init.normal_(self.linear.weight, std=1 / math.sqrt(context_dim * latent_dim))


class TransformerPredictor(Predictor):
    """A causal transformer layer, then a linear head per step: a layer per step, or one layer shared by all.

    A layer per step is that of Riviere et al. 2020 (arXiv:2002.02848), the shared one the multi-head form of
    Kharitonov et al. 2020 (arXiv:2007.00991). Theirs (CPC_audio) normalise after each addition and learn a vector per
    distance up to a fixed length; this one has the pre-norm, rotary layer of `cpc.contexts.CausalTransformer`, and
    takes any length. A query attends to all contexts up to its own, within the sequence given: to stream, hand in the
    past contexts again.

    Args:
        num_steps: K, the furthest step predicted.
        num_heads: attention heads; twice their number must divide the context width.
        feedforward_dim: width of the hidden feed-forward layer.
        dropout: probability of dropping an attention weight or a hidden feed-forward unit.
        shared_across_steps: one layer for all steps: a K-th of the layers' time and parameters.

    Raises:
        ValueError: if `num_steps` is below 1, or `dropout` is not a probability below 1; on `connect`, if the heads do
            not divide the context width evenly, or `feedforward_dim` is below 1.
    """

    reads_past_contexts = True

    def __init__(
        self,
        num_steps: int = 12,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        dropout: float = 0.1,
        shared_across_steps: bool = False,
    ) -> None:
        super().__init__(num_steps)
        check_dropout(dropout)
        self.num_heads = num_heads
        self.feedforward_dim = feedforward_dim
        self.dropout = dropout
        self.shared_across_steps = shared_across_steps

    def forward(self, c: Float[Tensor, "B T C"]) -> Float[Tensor, "K B T D"]:
        """Queries of all steps."""
        # Normalised, so that scores start at variance 1 whatever the scale of the contexts; W_k learns the rest.
        hidden = [F.layer_norm(layer(c)[0], c.shape[-1:]) for layer in self.layers]
        if self.shared_across_steps:
            return self.heads(hidden[0])
        return torch.einsum("kbtc,kdc->kbtd", torch.stack(hidden), self.heads.weights)

    def _allocate(self, context_dim: int, latent_dim: int) -> None:
        self.layers = nn.ModuleList(
            TransformerLayer(context_dim, self.num_heads, self.feedforward_dim, self.dropout)
            for _ in range(1 if self.shared_across_steps else self.num_steps)
        )
        self.heads = Bilinear(self.num_steps)
        self.heads.connect(context_dim, latent_dim)


def check_dropout(dropout: float) -> None:
    """Refuse what is no probability, or drops everything."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be a probability below 1")
