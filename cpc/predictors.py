"""Predictors of future latents: queries q_k = W_k c_t of K steps k, and non-linear variants.

K prediction steps, B batch, T latents, D latent dim, C context dim. Every predictor is causal: a query at t uses c_<=t.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Choices, Count, Dropout, checked, plain
from cpc.contexts.transformer import TransformerLayer

_NUM_STEPS = 12  # without `num_steps` and `steps`


class Step(NamedTuple):
    """A prediction step: k latents ahead in a direction of time. A single direction of sequences has an empty name."""

    direction: str
    k: int

    @property
    def name(self) -> str:
        """The short label: `down 2`, or `2`."""
        return f"{self.direction} {self.k}".strip()

    @property
    def words(self) -> str:
        """The long label: `down, k = 2`, or `k = 2`."""
        return f"{self.direction}, k = {self.k}" if self.direction else f"k = {self.k}"


class Output(NamedTuple):
    """The output of a model.

    Attributes:
        latents: z, `[B, T, D]`, or grids `[B, H, W, D]`.
        contexts: c, `[B, T, C]`, or grids `[B, H, W, C]`.
        queries: W_k c_t `[K, S, T, D]` by direction of time. For sequences S = B, and a single direction has an empty
            name; for grids S counts the columns of all images in the order of `cpc.contexts.grid.columns`.
        state: state of the context network, with which the next chunk continues.
        targets: latents to which queries are compared, if they are not z; None: z.
        steps: the step of each of the K queries, to which the loss adds its `skip_steps`; None: 1..K.
    """

    latents: Tensor
    contexts: Tensor
    queries: dict[str, Tensor]
    state: Any
    targets: Tensor | None = None
    steps: tuple[int, ...] | None = None


def check_steps(name: str, steps: Any) -> tuple[int, ...]:
    """Return steps as a tuple."""
    steps = plain(steps)
    is_legal = isinstance(steps, list | tuple) and len(steps) > 0 and all(type(step) is int for step in steps)
    if not is_legal or steps[0] < 1 or any(step >= after for step, after in pairwise(steps)):
        raise ValueError(f"{name}={steps!r} must be increasing whole numbers of at least 1, such as [1, 4, 14]")
    return tuple(steps)


class Predictor(nn.Module):
    """A predictor c_<=t -> q_k at t for K steps k; a subclass defines `_allocate` and `forward`.

    Args:
        num_steps: K; None: the number of `steps`, or 12.
        steps: the predicted steps, to which the loss adds its `skip_steps`; None: 1..K.

    Attributes:
        context_dim: width of the contexts; None before `connect`.
        latent_dim: width of the latents and queries; None before `connect`.
        reads_past_contexts: whether a query at t depends on contexts before t besides c_t.
    """

    context_dim: int | None = None
    latent_dim: int | None = None
    reads_past_contexts: bool = False

    @checked
    def __init__(self, num_steps: Count | None = None, steps: Sequence[int] | None = None) -> None:
        super().__init__()
        if steps is not None:
            steps = check_steps("`predictor.steps`", steps)
            Choices((None, len(steps))).check("`predictor.num_steps`", num_steps)
            num_steps = len(steps)
        self.num_steps = _NUM_STEPS if num_steps is None else num_steps
        # None for 1..K, as in models and checkpoints that were saved without `steps`.
        self.steps = None if steps is None or steps[-1] == len(steps) else steps

    def connect(self, context_dim: int, latent_dim: int) -> None:
        """Allocate the parameters; `CPC` passes the widths of its context and encoder."""
        if (self.context_dim, self.latent_dim) == (context_dim, latent_dim):
            return
        if self.context_dim is not None:
            widths = (self.context_dim, self.latent_dim)
            Choices((widths,)).check(f"{type(self).__name__}: the widths", (context_dim, latent_dim))
        self._allocate(context_dim, latent_dim)
        self.context_dim, self.latent_dim = context_dim, latent_dim

    @abstractmethod
    def _allocate(self, context_dim: int, latent_dim: int) -> None: ...


class Bilinear(Predictor):
    """One linear map per step, so that scores z_{t+k}^T W_k c_t are bilinear (Eq. 3 of arXiv:1807.03748).

    Args:
        num_steps: K; None: the number of `steps`, or 12.
        dropout: probability of dropping a channel of a context, as language models do before their softmax.
        steps: the predicted steps k in increasing order, such as `[14]` or `[1, 3, 9]`; None: 1..K.
    """

    @checked
    def __init__(
        self, num_steps: Count | None = None, dropout: Dropout = 0.0, steps: Sequence[int] | None = None
    ) -> None:
        super().__init__(num_steps, steps)
        self.dropout = dropout

    @property
    def weights(self) -> Float[Tensor, "K D C"]:
        """The matrices W_k in the order of `steps`, a view of the parameter."""
        return rearrange(self.linear.weight, "(k d) c -> k d c", k=self.num_steps)

    def forward(self, c: Float[Tensor, "B T C"]) -> Float[Tensor, "K B T D"]:
        """Return the queries W_k c_t of all steps, computed as one product."""
        if self.dropout > 0:
            c = F.dropout(c, self.dropout, self.training)
        return rearrange(self.linear(c), "b t (k d) -> k b t d", k=self.num_steps)

    def _allocate(self, context_dim: int, latent_dim: int) -> None:
        self.linear = nn.Linear(context_dim, self.num_steps * latent_dim, bias=False)
        # A score has variance std^2 |z|^2 |c|^2. If channels of z and c have a mean square of at most 1, this std keeps
        # the variance at or below 1 at any width, so training starts at a loss of about log N. With PyTorch's default
        # the variance grows with latent_dim, and training first has to unlearn large random scores.
        nn.init.normal_(self.linear.weight, std=1 / math.sqrt(context_dim * latent_dim))


class TransformerPredictor(Predictor):
    """A causal transformer layer, separate for each step or shared by all steps, and a linear head per step.

    Riviere et al. 2020 (arXiv:2002.02848) use separate layers; Kharitonov et al. 2020 (arXiv:2007.00991) use one layer
    with several heads. Their layers (CPC_audio) normalise after each addition, and learn a vector per distance up to a
    fixed length. This class uses the layer of `cpc.contexts.CausalTransformer`: pre-norm, with rotary positions, for
    sequences of any length. A query attends to its own context and to all previous contexts of the input. To process a
    stream, pass the past contexts again.

    Args:
        num_steps: K; None: the number of `steps`, or 12.
        num_heads: attention heads; twice their number must divide the context width.
        feedforward_dim: width of the hidden feed-forward layer.
        dropout: probability of dropping an attention weight or a hidden feed-forward unit.
        shared_across_steps: use one layer for all steps, which takes 1 / K of the time and parameters of the layers.
        steps: the predicted steps k in increasing order, such as `[14]` or `[1, 3, 9]`; None: 1..K.
    """

    reads_past_contexts = True

    @checked
    def __init__(
        self,
        num_steps: Count | None = None,
        num_heads: int = 8,
        feedforward_dim: Count = 2048,
        dropout: Dropout = 0.1,
        shared_across_steps: bool = False,
        steps: Sequence[int] | None = None,
    ) -> None:
        super().__init__(num_steps, steps)
        self.num_heads = num_heads
        self.feedforward_dim = feedforward_dim
        self.dropout = dropout
        self.shared_across_steps = shared_across_steps

    def forward(self, c: Float[Tensor, "B T C"]) -> Float[Tensor, "K B T D"]:
        """Return the queries of all steps."""
        # Contexts are normalised so that initial scores have variance 1; W_k learns the scale.
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
