"""Recurrent layers of torch: one operator for `torch.compile`, and gradients that survive half precision.

B batch, T latents, D input dim, C context dim. A state has one tensor for a GRU, two for an LSTM.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _VF, Tensor
from torch.autograd.function import once_differentiable
from torch.backends.cudnn.rnn import get_cudnn_mode

MODES = {1: "GRU", 2: "LSTM"}  # by the number of tensors of the state
_LARGEST_GRADIENT = 2.0**-6  # of a backward pass in float16: far from both ends, so that sums over time fit too


def run_layers(
    x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], dropout: float = 0.0, training: bool = True
) -> tuple[Tensor, ...]:
    """Return the outputs of torch's GRU or LSTM `[B, T, C]`, and the state after them.

    x is `[B, T, D]`; the state is the hidden state `[L, B, C]`, for an LSTM also the cell. Each layer has input
    weights, hidden weights, input bias and hidden bias. Outputs between layers are dropped only if `training`.
    """
    options = (True, len(weights) // 4, dropout, training, False, True)
    if len(state) == 1:
        return _VF.gru(x, state[0], list(weights), *options)
    return _VF.lstm(x, list(state), list(weights), *options)


def run_in_float16(layers: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Call layers that compute in float16, and return their outputs in float32.

    The gradient of a mean over a batch is about as small as the smallest number of float16. So it is divided by a scale
    before the backward pass of the layers, and the gradients of the inputs are multiplied by the scale. The scale
    follows from the largest gradient, and the host does not wait for it.
    """
    scale: list[Tensor] = []
    return _Half.apply(scale, False, *layers(*_Half.apply(scale, True, *inputs)))


class _Half(torch.autograd.Function):
    """The inputs of layers in float16 as they are, or their outputs in float32; gradients as `run_in_float16` says."""

    @staticmethod
    def forward(ctx: Any, scale: list[Tensor], is_input: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.scale, ctx.is_input, ctx.dtype = scale, is_input, tensors[0].dtype
        return tuple(each.view_as(each) if is_input else each.float() for each in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.is_input:
            return None, None, *(each * ctx.scale[0] for each in gradients)
        ctx.scale[:] = [_scale(gradients)]
        return None, None, *((each / ctx.scale[0]).to(ctx.dtype) for each in gradients)


def _scale(gradients: Sequence[Tensor]) -> Tensor:
    largest = torch.stack([each.abs().amax() for each in gradients]).amax()
    return (largest / _LARGEST_GRADIENT).clamp(min=torch.finfo(largest.dtype).tiny)


def recurrent_layer(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the results of `run_layers` for one layer; `torch.compile` sees one operator, not T steps.

    Under autocast a GPU computes in float16, as cuDNN does without a compiler. The backward pass computes the layer
    again, because an operator cannot keep what cuDNN reserves.
    """
    return tuple(_recurrent_layer(x, state, weights, torch.is_autocast_enabled(x.device.type)))


@torch.library.custom_op("cpc::recurrent_layer", mutates_args=())
def _recurrent_layer(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], is_half: bool) -> list[Tensor]:
    x, state, weights = _prepare(x, state, weights, is_half)
    with torch.autocast(x.device.type, enabled=False):
        outputs = run_layers(x, state, weights, training=False)
    dtype = torch.float32 if is_half else x.dtype
    return [each.to(dtype, copy=True, memory_format=torch.contiguous_format) for each in outputs]


@torch.library.custom_op("cpc::recurrent_layer_backward", mutates_args=())
def _recurrent_layer_backward(
    gradients: Sequence[Tensor], x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], is_half: bool
) -> list[Tensor]:
    """Return the gradients of x, the state and the weights."""
    inputs = [x, *state, *weights]
    x, state, weights = _prepare(x, state, weights, is_half)
    prepared = [x, *state, *weights]
    scale = _scale(gradients) if is_half else x.new_ones(())
    below_autograd = torch._C.DispatchKey.AutogradFunctionality  # where operators run
    with (
        torch._C._SetExcludeDispatchKeyGuard(below_autograd, False),
        torch.enable_grad(),
        torch.autocast(x.device.type, enabled=False),
    ):
        for each in prepared:
            each.requires_grad_()
        outputs = run_layers(x, state, weights)
        scaled = [(each / scale).to(x.dtype) for each in gradients]
        found = torch.autograd.grad(outputs, prepared, scaled)
    return [(each.to(given.dtype) * scale).contiguous() for each, given in zip(found, inputs, strict=True)]


def _prepare(
    x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], is_half: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return detached copies in the dtype of the computation; on a GPU the weights lie in one buffer for cuDNN."""
    dtype = torch.float16 if is_half else x.dtype
    x = x.detach().to(dtype)
    state = [each.detach().to(dtype).contiguous() for each in state]
    weights = [each.detach().to(dtype, copy=True) for each in weights]
    if torch.backends.cudnn.is_acceptable(x):
        mode = get_cudnn_mode(MODES[len(state)])
        with torch.cuda.device_of(x):
            torch._cudnn_rnn_flatten_weight(weights, 4, x.shape[2], mode, state[0].shape[2], 0, 1, True, False)
    return x, state, weights


@_recurrent_layer.register_fake
def _(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], is_half: bool) -> list[Tensor]:
    dtype = torch.float32 if is_half else x.dtype
    shapes = ((*x.shape[:2], state[0].shape[2]), *(each.shape for each in state))
    return [x.new_empty(shape, dtype=dtype) for shape in shapes]


@_recurrent_layer_backward.register_fake
def _(
    gradients: Sequence[Tensor], x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], is_half: bool
) -> list[Tensor]:
    return [each.new_empty(each.shape) for each in (x, *state, *weights)]


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, state, weights, ctx.is_half = inputs
    ctx.num_states = len(state)
    ctx.save_for_backward(x, *state, *weights)


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    state, weights = rest[: ctx.num_states], rest[ctx.num_states :]
    x_grad, *found = _recurrent_layer_backward(gradients, x, state, weights, ctx.is_half)
    return x_grad, found[: ctx.num_states], found[ctx.num_states :], None


_recurrent_layer.register_autograd(_backward, setup_context=_save_inputs)
