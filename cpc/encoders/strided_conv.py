"""Strided convolutions on `[B, S, C]` as plain matrix products, without an unfolded copy of the input.

The padded input is cut into blocks of one stride. With a kernel of m strides, output t depends on the blocks t to
t+m-1, so the convolution is the sum of m shifted products of all blocks with a slice of the weights. No operand is
copied. Channels are last, as norms and the contrastive loss need them. A name `x_grad` is the gradient of the loss by
x.

B batch, S input length, T output length, C input channels, D output channels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.encoders.encoder import Samples


def output_length(length: Samples, kernel: int, stride: int, padding: int) -> Samples:
    """Return T of a convolution over `length` inputs; it is zero or negative if there are too few inputs."""
    return (length + 2 * padding - kernel) // stride + 1


def rectify_into_blocks(x: Float[Tensor, "B S C"], kernel: int, stride: int, padding: int) -> Float[Tensor, "B L C"]:
    """Return ReLU(x), padded with zeros as `convolve_blocks` needs it."""
    if not torch.compiler.is_compiling():
        return RectifyIntoBlocks.apply(x, kernel, stride, padding)
    length = _blocks_length(x.shape[1], kernel, stride, padding)
    return F.pad(x.relu(), (0, 0, padding, length - padding - x.shape[1]))


def convolve_blocks(
    blocks: Float[Tensor, "B L C"], weight: Float[Tensor, "D C kernel"], bias: Float[Tensor, " D"] | None, stride: int
) -> Float[Tensor, "B T D"]:
    """Return the convolution, in the dtype of autocast; the stride must divide L.

    Under torch.compile no output buffers are preallocated.
    """
    device = blocks.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else blocks.dtype
    blocks, weight, bias = blocks.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if not torch.compiler.is_compiling():
        return ConvolveBlocks.apply(blocks, weight, bias, stride)
    x = rearrange(blocks, "b (n s) c -> b n (s c)", s=stride)
    slices = _slices(weight, stride).unbind(0)
    num_outputs = x.shape[1] - len(slices) + 1
    y = x[:, :num_outputs] @ slices[0]
    for j, weight_slice in enumerate(slices[1:], 1):
        y = y + x[:, j : j + num_outputs] @ weight_slice
    return y if bias is None else y + bias


def _blocks_length(length: int, kernel: int, stride: int, padding: int) -> int:
    """Return L, a multiple of the stride; inputs at the end may remain unused."""
    return (output_length(length, kernel, stride, padding) - 1 + -(-kernel // stride)) * stride


class RectifyIntoBlocks(torch.autograd.Function):
    """`rectify_into_blocks` in eager mode.

    The ReLU writes directly into the blocks that the convolution reads. This saves a copy, and both gradients share one
    saved tensor.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:  # noqa: D102
        length = _blocks_length(x.shape[1], kernel, stride, padding)
        used = min(x.shape[1], length - padding)
        blocks = x.new_empty(x.shape[0], length, x.shape[2])
        blocks[:, :padding] = 0
        torch.clamp_min(x[:, :used], 0, out=blocks[:, padding : padding + used])
        blocks[:, padding + used :] = 0
        ctx.save_for_backward(blocks)
        ctx.used = slice(padding, padding + used)
        ctx.num_unused = x.shape[1] - used
        return blocks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        (blocks,) = ctx.saved_tensors
        x_grad = torch.ops.aten.threshold_backward(gradient[:, ctx.used], blocks[:, ctx.used], 0)
        return F.pad(x_grad, (0, 0, 0, ctx.num_unused)) if ctx.num_unused else x_grad, None, None, None


class ConvolveBlocks(torch.autograd.Function):
    """`convolve_blocks` in eager mode."""

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:  # noqa: D102
        slices = _slices(weight, stride)  # m slices [stride * C, D]
        x = rearrange(blocks, "b (n s) c -> (b n) (s c)", s=stride)
        num_blocks = blocks.shape[1] // stride
        # One product serves all sequences. The last m - 1 outputs of a sequence also read the next sequence, and are
        # dropped.
        y = x.new_empty(len(x), weight.shape[0])
        num_rows = max(len(x) - len(slices) + 1, 0)
        if bias is None:
            torch.mm(x[:num_rows], slices[0], out=y[:num_rows])
        else:
            torch.addmm(bias, x[:num_rows], slices[0], out=y[:num_rows])
        for j in range(1, len(slices)):
            y[:num_rows].addmm_(x[j : j + num_rows], slices[j])
        ctx.save_for_backward(blocks, slices)
        ctx.stride, ctx.kernel = stride, weight.shape[2]
        return rearrange(y, "(b n) d -> b n d", n=num_blocks)[:, : num_blocks - len(slices) + 1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        blocks, slices = ctx.saved_tensors
        x = rearrange(blocks, "b (n s) c -> (b n) (s c)", s=ctx.stride)
        num_blocks = blocks.shape[1] // ctx.stride
        num_rows, num_outputs = max(len(x) - len(slices) + 1, 0), gradient.shape[1]
        y_grad = x.new_empty(gradient.shape[0], num_blocks, gradient.shape[2])
        y_grad[:, :num_outputs] = gradient
        y_grad[:, num_outputs:] = 0
        y_grad = rearrange(y_grad, "b n d -> (b n) d")[:num_rows]

        blocks_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = torch.empty_like(x)
            torch.mm(y_grad, slices[0].T, out=x_grad[:num_rows])
            x_grad[num_rows:] = 0
            for j in range(1, len(slices)):
                x_grad[j : j + num_rows].addmm_(y_grad, slices[j].T)
            blocks_grad = rearrange(x_grad, "(b n) (s c) -> b (n s) c", n=num_blocks, s=ctx.stride)
        weight_grad = None
        if ctx.needs_input_grad[1]:
            slices_grad = torch.stack([torch.mm(x[j : j + num_rows].T, y_grad) for j in range(len(slices))])
            weight_grad = rearrange(slices_grad, "m (s c) d -> d c (m s)", s=ctx.stride)[:, :, : ctx.kernel]
        return blocks_grad, weight_grad, gradient.sum((0, 1)) if ctx.needs_input_grad[2] else None, None


def _slices(weight: Float[Tensor, "D C kernel"], stride: int) -> Tensor:
    """Return the weights of the m blocks of an output, `[m, stride * C, D]`; the last slice is padded with zeros."""
    kernel = weight.shape[2]
    weight = F.pad(weight, (0, -kernel % stride))
    return rearrange(weight, "d c (m s) -> m (s c) d", s=stride).contiguous()
