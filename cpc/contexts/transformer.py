"""A context network with causal self-attention, for sequences of any length.

B batch, H heads, T latents, P previous latents, C context dim.
"""

import torch
from einops import rearrange
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, checked
from cpc.contexts.context import ANY_LENGTH, Context, State


class CausalTransformer(Context):
    """Pre-norm transformer layers with rotary positions (Su et al. 2021, arXiv:2104.09864).

    Attention depends on the distance of two latents, not on absolute positions, so sequences may be longer than in
    training. With a `window`, context c_t depends only on the last `num_layers * window + 1` latents. The state holds
    keys and values `[B, H, P, C / H]` per layer. P is at most `window`; without a window P grows with the sequence.

    Args:
        dim: width of the contexts and of every layer.
        num_layers: number of pairs of attention and feed-forward layers.
        num_heads: attention heads; `dim / num_heads` must be even.
        feedforward_dim: width of the hidden feed-forward layer.
        dropout: probability of dropping an attention weight or a hidden feed-forward unit.
        window: number of past latents that a latent attends to in each layer; None: all.
    """

    @checked
    def __init__(
        self,
        dim: Count = 256,
        num_layers: Count = 2,
        num_heads: int = 8,
        feedforward_dim: Count = 1024,
        dropout: Dropout = 0.0,
        window: Count | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.dim = dim
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.feedforward_dim = feedforward_dim
        self.dropout = dropout
        self.window = window
        self.has_bounded_state = window is not None

    @property
    def state_shapes(self) -> tuple[tuple[int | range, ...], ...]:
        """Keys and values of each layer."""
        past = ANY_LENGTH if self.window is None else range(self.window + 1)
        return ((self.num_heads, past, self.dim // self.num_heads),) * (2 * self.num_layers)

    def _allocate(self, input_dim: int) -> None:
        self.projection = nn.Identity() if input_dim == self.dim else nn.Linear(input_dim, self.dim)
        self.layers = nn.ModuleList(
            TransformerLayer(self.dim, self.num_heads, self.feedforward_dim, self.dropout, self.window)
            for _ in range(self.num_layers)
        )
        self.norm = nn.LayerNorm(self.dim)

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = self.projection(z)
        after: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            hidden, keys, values = layer(hidden, None if state is None else state[2 * i : 2 * i + 2])
            after += [keys, values]
        return self.norm(hidden), tuple(after)


class TransformerLayer(nn.Module):
    """Causal attention and a feed-forward network on `[B, T, C]`, both pre-norm and residual."""

    @checked
    def __init__(
        self, dim: int, num_heads: int, feedforward_dim: Count, dropout: Dropout = 0.0, window: int | None = None
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.dropout = dropout
        self.window = window
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.feedforward = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, feedforward_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(feedforward_dim, dim),
        )

    def forward(self, x: Tensor, past: State = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output for `x` `[B, T, C]`, and keys and values `[B, H, P, C / H]` for the following latents.

        `past` are the keys and values of the latents before `x`; None if `x` is the start.
        """
        queries, keys, values = rearrange(
            self.query_key_value(self.attention_norm(x)), "b t (three h d) -> three b h t d", three=3, h=self.num_heads
        )
        if past is not None:
            keys, values = torch.cat([past[0].to(keys), keys], 2), torch.cat([past[1].to(values), values], 2)
        # Stored keys are not rotated; they are rotated by their index among the current keys. Attention depends only on
        # distances, and in this way angles stay small and exact in streams of any length.
        rotated = rotate(queries, keys.shape[2] - queries.shape[2]), rotate(keys, 0)
        attended = attend(*rotated, values, self.window, self.dropout if self.training else 0.0)
        x = x + self.output(rearrange(attended, "b h t d -> b t (h d)"))
        x = x + self.feedforward(x)
        if self.window is not None:
            first = max(keys.shape[2] - self.window, 0)
            # The state holds copies, because views would keep all keys and values in memory.
            keys, values = keys[:, :, first:].clone(), values[:, :, first:].clone()
        return x, keys, values


def rotate(x: Tensor, first_position: int) -> Tensor:
    """Rotate pairs of channels of `[B, H, T, D]` by angles proportional to the position from `first_position`.

    This is Eq. 34 of Su et al. 2021, with channel i paired with i + D/2: scalar products depend only on distances.
    """
    half = x.shape[-1] // 2
    precision = torch.promote_types(x.dtype, torch.float32)  # bfloat16 cannot represent integers above 256
    positions = torch.arange(first_position, first_position + x.shape[2], device=x.device, dtype=precision)
    frequencies = 10000 ** (-torch.arange(half, device=x.device, dtype=precision) / half)
    angles = torch.outer(positions, frequencies)  # [T, D / 2]
    cosine, sine = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1).to(x.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor, window: int | None, dropout: float) -> Tensor:
    """Return causal softmax attention of queries `[B, H, T, D]`, which have the last T positions of the keys.

    With a window, long sequences are computed in blocks, so memory grows linearly with T.
    """
    num_queries, num_past = queries.shape[2], keys.shape[2] - queries.shape[2]
    block = max(num_queries, 1) if window is None else max(window, 256)
    outputs = []
    for start in range(0, max(num_queries, 1), block):
        stop = min(start + block, num_queries)
        first = 0 if window is None else max(num_past + start - window, 0)
        visible = slice(first, num_past + stop)
        length, total = stop - start, num_past + stop - first
        if length == total and (window is None or total <= window + 1):
            mask = None
        else:
            mask = torch.ones(length, total, dtype=torch.bool, device=queries.device).tril(total - length)
            if window is not None:
                mask = mask.triu(total - length - window)
        outputs.append(
            nn.functional.scaled_dot_product_attention(
                queries[:, :, start:stop],
                keys[:, :, visible],
                values[:, :, visible],
                mask,
                dropout,
                is_causal=mask is None,
            )
        )
    return torch.cat(outputs, 2)


def check_heads(dim: int, num_heads: int) -> None:
    """Raise ValueError unless `num_heads` divides `dim` into an even number of channels per head."""
    if num_heads < 1 or dim % (2 * num_heads):
        raise ValueError(f"dim={dim} is not a multiple of 2 * num_heads, with num_heads={num_heads}")
