"""A layer of gated recurrent units on a CPU, with gradients by hand: the library's results, sooner.

Whatever does not depend on the step before is computed for all steps at once, in a few large products; gru_layer.c does
the rest. Compilers see one operator, not a loop over time.

B batch, T latents, D input dim, C context dim; gates in torch's order: reset r, update z, new n.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cpc.native.compiled import call, compiled, source

SOURCE = source("gru_layer.c")


def has_gru_layer(x: Tensor) -> bool:
    """Whether `gru_layer` takes inputs of this device and dtype: here, and with a C compiler."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and _is_compiled()


@torch.compiler.assume_constant_result
def _is_compiled() -> bool:
    return compiled(SOURCE) is not None


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
    hiddens = x.new_empty(num_latents + 1, num_sequences, dim)
    hiddens[0] = hidden
    scratch = x.new_empty(num_sequences, 3 * dim)
    of_hidden = (weight_hh.T.contiguous(), bias_hh.contiguous())
    sizes = (num_latents, num_sequences, dim)
    call(SOURCE, "gru_forward", sizes, (*of_hidden, scratch, gates, new_by_hidden, hiddens))
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
    by_input, by_product = torch.empty_like(gates), torch.empty_like(gates)  # of what enters the gates, from each
    by_hidden = torch.zeros_like(hiddens[0])
    given = (gradient.contiguous(), weight_hh.contiguous(), hiddens, gates, new_by_hidden)
    call(SOURCE, "gru_backward", new_by_hidden.shape, (*given, by_input, by_product, by_hidden))
    by_input, by_product = (rearrange(each, "t b c -> (t b) c") for each in (by_input, by_product))
    by_weight_hh = by_product.T @ rearrange(hiddens[:-1], "t b c -> (t b) c")
    by_x = rearrange(by_input @ weight_ih, "(t b) d -> b t d", t=len(gates))
    by_weight_ih = by_input.T @ rearrange(x, "b t d -> (t b) d")
    return by_x, by_hidden, by_weight_ih, by_weight_hh, by_input.sum(0), by_product.sum(0)


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
