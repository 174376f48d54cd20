"""A layer of gated recurrent units on a CPU, with gradients by hand: the library's results, sooner.

Whatever does not depend on the step before is computed for all steps at once: the products with the inputs, the
derivatives of the gates, the gradients of the weights. Each step then takes one product and a few operations on a
vector per sequence. Compilers see one operator, not a loop over time.

B batch, T latents, D input dim, C context dim; gates in torch's order: reset r, update z, new n.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor


def gru_layer(
    x: Tensor, hidden: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """`(x [B, T, D], hidden [B, C], weight_ih [3C, D], weight_hh [3C, C], bias_ih, bias_hh)` -> `[B, T, C]`.

    The equations are those of `torch.nn.GRU`, which is that of Cho et al. 2014 (arXiv:1406.1078) with the reset gate
    behind the product.
    """
    hiddens, *_ = _gru_layer(x, hidden, weight_ih, weight_hh, bias_ih, bias_hh)
    return rearrange(hiddens[1:], "t b c -> b t c")


@torch.library.custom_op("cpc::gru_layer", mutates_args=())
def _gru_layer(
    x: Tensor, hidden: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden states `[T + 1, B, C]`, the first one given, and what the backward pass needs besides."""
    num_sequences, num_latents, _ = x.shape
    dim = hidden.shape[1]
    flat = rearrange(x, "b t d -> (t b) d")
    gates = rearrange(torch.addmm(bias_ih, flat, weight_ih.T), "(t b) c -> t b c", t=num_latents)
    new_by_hidden = x.new_empty(num_latents, num_sequences, dim)  # what the hidden state adds to the new gate
    from_h = x.new_empty(num_sequences, 3 * dim)
    hiddens = x.new_empty(num_latents + 1, num_sequences, dim)
    hiddens[0] = hidden
    recurrent = weight_hh.T.contiguous()
    for t in range(num_latents):
        from_x = gates[t]
        torch.addmm(bias_hh, hiddens[t], recurrent, out=from_h)
        new_by_hidden[t] = from_h[:, 2 * dim :]
        reset_update = from_x[:, : 2 * dim].add_(from_h[:, : 2 * dim]).sigmoid_()
        new = from_x[:, 2 * dim :].addcmul_(reset_update[:, :dim], from_h[:, 2 * dim :]).tanh_()
        torch.lerp(new, hiddens[t], reset_update[:, dim:], out=hiddens[t + 1])
    return hiddens, gates, new_by_hidden


@torch.library.custom_op("cpc::gru_layer_backward", mutates_args=())
def _gru_layer_backward(
    gradient: Tensor,
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    hiddens: Tensor,
    gates: Tensor,
    new_by_hidden: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the layer's six inputs, given that of `hiddens`."""
    reset, update, new = gates.chunk(3, dim=2)
    by_new = (1 - update) * (1 - new * new)  # d hidden / d (what enters the tanh), and so on
    by_reset = by_new * new_by_hidden * reset * (1 - reset)
    by_update = (hiddens[:-1] - new) * update * (1 - update)
    # [T, B, 3, C]: d hidden / d (what the product with the hidden state adds to each gate)
    slopes = torch.stack([by_reset, by_update, by_new * reset], 2)

    by_gates = torch.empty_like(slopes)
    by_hiddens = torch.empty_like(new)
    carried = torch.zeros_like(hiddens[0])
    for t in reversed(range(len(gates))):
        by_hidden = torch.add(carried, gradient[t + 1], out=by_hiddens[t])
        torch.mul(slopes[t], rearrange(by_hidden, "b c -> b 1 c"), out=by_gates[t])
        carried = torch.addmm(by_hidden * update[t], rearrange(by_gates[t], "b g c -> b (g c)"), weight_hh)

    by_recurrent = rearrange(by_gates, "t b g c -> (t b) (g c)")
    by_weight_hh = by_recurrent.T @ rearrange(hiddens[:-1], "t b c -> (t b) c")
    by_bias_hh = by_recurrent.sum(0)
    by_gates[:, :, 2] = by_hiddens * by_new  # the input enters the new gate without the reset
    by_input = rearrange(by_gates, "t b g c -> (t b) (g c)")
    by_x = rearrange(by_input @ weight_ih, "(t b) d -> b t d", t=len(gates))
    by_weight_ih = by_input.T @ rearrange(x, "b t d -> (t b) d")
    return by_x, carried + gradient[0], by_weight_ih, by_weight_hh, by_input.sum(0), by_bias_hh


@_gru_layer.register_fake
def _(x: Tensor, hidden: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    num_sequences, num_latents, _ = x.shape
    dim = hidden.shape[1]
    sizes = ((num_latents + 1, dim), (num_latents, 3 * dim), (num_latents, dim))
    hiddens, gates, new_by_hidden = (x.new_empty(length, num_sequences, width) for length, width in sizes)
    return hiddens, gates, new_by_hidden


@_gru_layer_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight_ih: Tensor, weight_hh: Tensor, hiddens: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    by_x = rearrange(torch.empty_like(rearrange(x, "b t d -> t b d").contiguous()), "t b d -> b t d")
    by_biases = (weight_ih.new_empty(len(weight_ih)), weight_hh.new_empty(len(weight_hh)))
    return by_x, torch.empty_like(hiddens[0]), torch.empty_like(weight_ih), torch.empty_like(weight_hh), *by_biases


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, _, weight_ih, weight_hh, *_ = inputs
    ctx.save_for_backward(x, weight_ih, weight_hh, *output)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    return _gru_layer_backward(gradient, *ctx.saved_tensors)


_gru_layer.register_autograd(_backward, setup_context=_keep)
