"""Strided convolutions on `[B, S, C]` as plain matrix products, without an unfolded copy of the input.

Cut the padded input into blocks of one stride. A kernel of m strides makes output t from the blocks t to t+m-1, so the
convolution is m products of all blocks with a slice of the weights each, shifted against each other and added up:
every operand lies in memory as it is. Channels stay last, where norms and the contrastive loss want them.

B batch, S input length, T output length, C input channels, D output channels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.encoders.waveforms import Count


def output_length(length: Count, kernel: int, stride: int, padding: int) -> Count:
    """T of a convolution over `length` inputs; not positive if there are too few."""
    return (length + 2 * padding - kernel) // stride + 1


def rectify_into_blocks(x: Float[Tensor, "B S C"], kernel: int, stride: int, padding: int) -> Float[Tensor, "B L C"]:
    """ReLU(x) with the zeros around it that `convolve_blocks` needs."""
    if not torch.compiler.is_compiling():
        return RectifyIntoBlocks.apply(x, kernel, stride, padding)
    length = _length_of_blocks(x.shape[1], kernel, stride, padding)
    return F.pad(x.relu(), (0, 0, padding, length - padding - x.shape[1]))


def convolve_blocks(
    blocks: Float[Tensor, "B L C"], weight: Float[Tensor, "D C kernel"], bias: Float[Tensor, " D"] | None, stride: int
) -> Float[Tensor, "B T D"]:
    """The convolution; the stride divides L. Compilers are shown the same products, without a place to write to."""
    if not torch.compiler.is_compiling():
        return ConvolveBlocks.apply(blocks, weight, bias, stride)
    x = rearrange(blocks, "b (n s) c -> b n (s c)", s=stride)
    slices = _slices(weight, stride).unbind(0)
    num_outputs = x.shape[1] - len(slices) + 1
    y = x[:, :num_outputs] @ slices[0]
    for j, each in enumerate(slices[1:], 1):
        y = y + x[:, j : j + num_outputs] @ each
    return y if bias is None else y + bias


def _length_of_blocks(length: int, kernel: int, stride: int, padding: int) -> int:
    """L, of whole strides, which may leave inputs at the end unread."""
    return (output_length(length, kernel, stride, padding) - 1 + -(-kernel // stride)) * stride


class RectifyIntoBlocks(torch.autograd.Function):
    """`rectify_into_blocks` where it runs at once.

    The ReLU writes where the convolution reads: no copy, and one tensor to keep for both gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:  # noqa: D102
        length = _length_of_blocks(x.shape[1], kernel, stride, padding)
        used = min(x.shape[1], length - padding)
        blocks = x.new_empty(x.shape[0], length, x.shape[2])
        blocks[:, :padding] = 0
        torch.clamp_min(x[:, :used], 0, out=blocks[:, padding : padding + used])
        blocks[:, padding + used :] = 0
        ctx.save_for_backward(blocks)
        ctx.place = slice(padding, padding + used)
        ctx.num_unused = x.shape[1] - used
        return blocks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        (blocks,) = ctx.saved_tensors
        by_x = torch.ops.aten.threshold_backward(gradient[:, ctx.place], blocks[:, ctx.place], 0)
        return F.pad(by_x, (0, 0, 0, ctx.num_unused)) if ctx.num_unused else by_x, None, None, None


class ConvolveBlocks(torch.autograd.Function):
    """`convolve_blocks` where it runs at once."""

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:  # noqa: D102
        slices = _slices(weight, stride)  # m of [stride * C, D]
        x = rearrange(blocks, "b (n s) c -> (b n) (s c)", s=stride)
        num_blocks = blocks.shape[1] // stride
        # All sequences in one product: the last m - 1 outputs of each reach into the next one and are left out.
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
        by_y = x.new_empty(gradient.shape[0], num_blocks, gradient.shape[2])
        by_y[:, :num_outputs] = gradient
        by_y[:, num_outputs:] = 0
        by_y = rearrange(by_y, "b n d -> (b n) d")[:num_rows]

        by_blocks = None
        if ctx.needs_input_grad[0]:
            by_x = torch.empty_like(x)
            torch.mm(by_y, slices[0].T, out=by_x[:num_rows])
            by_x[num_rows:] = 0
            for j in range(1, len(slices)):
                by_x[j : j + num_rows].addmm_(by_y, slices[j].T)
            by_blocks = rearrange(by_x, "(b n) (s c) -> b (n s) c", n=num_blocks, s=ctx.stride)
        by_weight = None
        if ctx.needs_input_grad[1]:
            by_slices = torch.stack([torch.mm(x[j : j + num_rows].T, by_y) for j in range(len(slices))])
            by_weight = rearrange(by_slices, "m (s c) d -> d c (m s)", s=ctx.stride)[:, :, : ctx.kernel]
        return by_blocks, by_weight, gradient.sum((0, 1)) if ctx.needs_input_grad[2] else None, None


def _slices(weight: Float[Tensor, "D C kernel"], stride: int) -> Tensor:
    """`[m, stride * C, D]`: the weights of each of the m blocks of an output; zeros fill up the last."""
    kernel = weight.shape[2]
    weight = F.pad(weight, (0, -kernel % stride))
    return rearrange(weight, "d c (m s) -> m (s c) d", s=stride).contiguous()
