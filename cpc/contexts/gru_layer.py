"""A GRU layer for CPUs with hand-written gradients: the same results as `torch.nn.GRU`, in less time.

Everything that does not depend on the previous step is computed for all steps at once, in a few large products;
gru_layer.c computes the rest. torch.compile sees one operator instead of a loop over time.

B batch, T latents, D input dim, C context dim. The gates are in torch's order: reset r, update z, new n. A name
`x_grad` is the gradient of the loss with respect to x.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cpc.data.tensors import check_precision, check_tensor
from cpc.native.compiled import REAL, CFunction, compiled, source

SOURCE = source("gru_layer.c")
FORWARD = CFunction(
    SOURCE,
    "gru_forward",
    lambda num_latents, num_sequences, dim: {
        "recurrent": (REAL, (dim, 3 * dim)),
        "bias": (REAL, (3 * dim,)),
        "products": (REAL, (num_sequences, 3 * dim)),
        "gates": (REAL, (num_latents, num_sequences, 3 * dim)),
        "hidden_to_new": (REAL, (num_latents, num_sequences, dim)),
        "hiddens": (REAL, (num_latents + 1, num_sequences, dim)),
    },
)
BACKWARD = CFunction(
    SOURCE,
    "gru_backward",
    lambda num_latents, num_sequences, dim: {
        "hiddens_grad": (REAL, (num_latents + 1, num_sequences, dim)),
        "weight": (REAL, (3 * dim, dim)),
        "hiddens": (REAL, (num_latents + 1, num_sequences, dim)),
        "gates": (REAL, (num_latents, num_sequences, 3 * dim)),
        "hidden_to_new": (REAL, (num_latents, num_sequences, dim)),
        "input_grad": (REAL, (num_latents, num_sequences, 3 * dim)),
        "product_grad": (REAL, (num_latents, num_sequences, 3 * dim)),
        "carried": (REAL, (num_sequences, dim)),
    },
)


def has_gru_layer(x: Tensor) -> bool:
    """Return whether `gru_layer` can run on `x`: a CPU tensor, float32 or float64, and a C compiler is installed."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and _is_compiled()


@torch.compiler.assume_constant_result
def _is_compiled() -> bool:
    return compiled(SOURCE) is not None


def gru_layer(
    x: Tensor, hidden: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """Return the hidden states `[B, T, C]` of a GRU layer.

    The equations are those of `torch.nn.GRU`: the GRU of Cho et al. 2014 (arXiv:1406.1078), with the reset gate applied
    after the product with the hidden weights. Inputs x are `[B, T, D]`, the first hidden state `[B, C]`, the weights
    `[3C, D]` and `[3C, C]`, and the biases `[3C]`.
    """
    hiddens, *_ = _gru_layer(x, hidden, weight_ih, weight_hh, bias_ih, bias_hh)
    return rearrange(hiddens[1:], "t b c -> b t c")


@torch.library.custom_op("cpc::gru_layer", mutates_args=())
def _gru_layer(
    x: Tensor, hidden: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all hidden states `[T + 1, B, C]`, including the initial state, and two tensors for the backward pass."""
    check_tensor("x", x, "floats", ("B", "T", "D"))
    check_tensor("hidden", hidden, "floats", (len(x), "C"))
    num_sequences, num_latents, input_dim = x.shape
    dim = hidden.shape[1]
    check_tensor("weight_ih", weight_ih, "floats", (3 * dim, input_dim))
    check_tensor("weight_hh", weight_hh, "floats", (3 * dim, dim))
    check_tensor("bias_ih", bias_ih, "floats", (3 * dim,))
    check_tensor("bias_hh", bias_hh, "floats", (3 * dim,))
    check_precision(x=x, hidden=hidden)
    flat = rearrange(x, "b t d -> (t b) d")
    gates = rearrange(torch.addmm(bias_ih, flat, weight_ih.T), "(t b) c -> t b c", t=num_latents)
    hidden_to_new = x.new_empty(num_latents, num_sequences, dim)  # the term of the hidden state in the new gate
    hiddens = x.new_empty(num_latents + 1, num_sequences, dim)
    hiddens[0] = hidden
    scratch = x.new_empty(num_sequences, 3 * dim)
    hidden_weights = (weight_hh.T.contiguous(), bias_hh.contiguous())
    FORWARD((num_latents, num_sequences, dim), (), (*hidden_weights, scratch, gates, hidden_to_new, hiddens))
    return hiddens, gates, hidden_to_new


@torch.library.custom_op("cpc::gru_layer_backward", mutates_args=())
def _gru_layer_backward(
    gradient: Tensor,
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    hiddens: Tensor,
    gates: Tensor,
    hidden_to_new: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the six inputs of `_gru_layer`, given the gradient of `hiddens`."""
    # The gates add an input term W_ih x + b_ih and a hidden term W_hh h + b_hh; the new gate scales the latter by r.
    input_grad, product_grad = torch.empty_like(gates), torch.empty_like(gates)
    hidden_grad = torch.zeros_like(hiddens[0])
    saved = (gradient.contiguous(), weight_hh.contiguous(), hiddens, gates, hidden_to_new)
    BACKWARD(hidden_to_new.shape, (), (*saved, input_grad, product_grad, hidden_grad))
    input_grad, product_grad = (rearrange(grad, "t b c -> (t b) c") for grad in (input_grad, product_grad))
    weight_hh_grad = product_grad.T @ rearrange(hiddens[:-1], "t b c -> (t b) c")
    x_grad = rearrange(input_grad @ weight_ih, "(t b) d -> b t d", t=len(gates))
    weight_ih_grad = input_grad.T @ rearrange(x, "b t d -> (t b) d")
    return x_grad, hidden_grad, weight_ih_grad, weight_hh_grad, input_grad.sum(0), product_grad.sum(0)


@_gru_layer.register_fake
def _(x: Tensor, hidden: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    num_sequences, num_latents, _ = x.shape
    dim = hidden.shape[1]
    sizes = ((num_latents + 1, dim), (num_latents, 3 * dim), (num_latents, dim))
    hiddens, gates, hidden_to_new = (x.new_empty(length, num_sequences, width) for length, width in sizes)
    return hiddens, gates, hidden_to_new


@_gru_layer_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight_ih: Tensor, weight_hh: Tensor, hiddens: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x_grad = rearrange(torch.empty_like(rearrange(x, "b t d -> t b d").contiguous()), "t b d -> b t d")
    bias_grads = (weight_ih.new_empty(len(weight_ih)), weight_hh.new_empty(len(weight_hh)))
    return x_grad, torch.empty_like(hiddens[0]), torch.empty_like(weight_ih), torch.empty_like(weight_hh), *bias_grads


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, _, weight_ih, weight_hh, *_ = inputs
    ctx.save_for_backward(x, weight_ih, weight_hh, *output)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    return _gru_layer_backward(gradient, *ctx.saved_tensors)


_gru_layer.register_autograd(_backward, setup_context=_save_inputs)
