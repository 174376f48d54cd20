"""Baselines in plain PyTorch: CPC in the style of public implementations.

K steps, B sequences, T latents, D latent dim, R negatives, M queries, N candidates.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.draws import draw_negatives
from cpc.contexts.recurrence import run_layers
from cpc.model import CPC


def materialised_info_nce(
    queries: Float[Tensor, "M D"], candidates: Float[Tensor, "N D"], positives: Int[Tensor, " M"]
) -> Tensor:
    """Return the loss from the whole matrix of scores, by autograd."""
    return F.cross_entropy(queries @ candidates.T, positives)


def draw_per_step(
    num_steps: int, num_sequences: int, num_latents: int, num_negatives: int, generator: torch.Generator
) -> list[Int[Tensor, "B t R"]]:
    """Return the negatives that `cpc.losses.contrast` samples with the same generator, one tensor per step."""
    sequence, time, step = torch.meshgrid(
        torch.arange(num_sequences), torch.arange(num_latents), torch.arange(num_steps), indexing="ij"
    )
    is_row = (time + step + 1 < num_latents).flatten()
    sequence, time, step = (each.flatten()[is_row] for each in (sequence, time, step))
    pool = torch.ones(num_sequences, num_sequences * num_latents, dtype=torch.bool)
    positives = sequence * num_latents + time + step + 1
    drawn = draw_negatives(pool, sequence, positives, num_negatives, generator)
    return [rearrange(drawn[step == k], "(b t) r -> b t r", b=num_sequences) for k in range(num_steps)]


def gather_style_loss(model: CPC, x: Float[Tensor, "B S"], negatives: list[Int[Tensor, "B t R"]]) -> Tensor:
    """Compute the loss by a direct implementation of the paper, on the parameters of a `CPC` with layer norm.

    Convolutions and norms keep channels in the middle, each step has a product of its own, and its negatives are
    gathered and concatenated with the positive.
    """
    hidden = rearrange((x - model.encoder.input_mean) / model.encoder.input_std, "b s -> b 1 s")
    for layer in model.encoder.layers:
        hidden = F.relu(_channel_norm(_convolve(layer, hidden), layer.layer_norm))
    latents = rearrange(hidden, "b d t -> b t d")
    state = [latents.new_zeros(1, len(latents), model.context.dim) for _ in model.context.state_shapes]
    contexts, *_ = run_layers(latents, state, list(model.context.layers.parameters()))
    return gather_style_contrast(contexts, latents, model.predictor.weights, negatives)


def gather_style_contrast(
    contexts: Float[Tensor, "B T C"],
    latents: Float[Tensor, "B T D"],
    weights: Float[Tensor, "K D C"],
    negatives: list[Int[Tensor, "B t R"]],
) -> Tensor:
    """Return InfoNCE with gathered negatives, step by step."""
    pool = rearrange(latents, "b t d -> (b t) d")
    losses = []
    for k, (weight, drawn) in enumerate(zip(weights, negatives, strict=True), start=1):
        queries = F.linear(contexts[:, :-k], weight)
        candidates = torch.cat([rearrange(latents[:, k:], "b t d -> b t 1 d"), pool[drawn]], 2)
        scores = (rearrange(queries, "b t d -> b t 1 d") * candidates).sum(3)
        scores = rearrange(scores, "b t n -> (b t) n")
        losses.append(F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device)))
    return torch.stack(losses).mean()


def _convolve(layer: torch.nn.Module, x: Tensor) -> Tensor:
    return F.conv1d(x, layer.weight, layer.bias, layer.stride, layer.padding)  # type: ignore[call-overload]


def _channel_norm(x: Float[Tensor, "B D T"], norm: torch.nn.LayerNorm) -> Float[Tensor, "B D T"]:
    mean = x.mean(1, keepdim=True)
    variance = x.var(1, keepdim=True, unbiased=False)
    x = (x - mean) * torch.rsqrt(variance + norm.eps)
    return x * rearrange(norm.weight, "d -> d 1") + rearrange(norm.bias, "d -> d 1")
