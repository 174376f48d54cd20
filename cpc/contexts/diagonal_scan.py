"""The recurrence of a diagonal state-space layer, in a form for each place where it runs.

On a CPU with a C compiler diagonal_scan.c steps through time, forward and backward; torch.compile sees one operator.
Elsewhere chunks of the sequence are convolved with the impulse response by FFT. Graphs for export hold a loop over
time. All forms have the same state, and the same results up to rounding.

B batch, T latents, C channels, N modes. The first axis of size 2 of a tensor holds real parts and imaginary parts.
"""

import re
from typing import Any

import torch
from einops import einsum, rearrange
from torch import Tensor
from torch._higher_order_ops.scan import scan

from cpc.data.tensors import check_tensor
from cpc.native.compiled import REAL, CFunction, compiled, source

SOURCE = source("diagonal_scan.c")
# Steps between the states that the C code keeps for its backward pass.
CHUNK = int(re.findall(r"#define CHUNK (\d+)", SOURCE.read_text(encoding="utf-8"))[0])
CONVOLVED = 256  # steps of a chunk that is convolved by FFT
FORWARD = CFunction(
    SOURCE,
    "scan_forward",
    lambda num_sequences, num_latents, dim, num_modes: {
        "inputs": (REAL, (num_sequences, num_latents, dim)),
        "decay": (REAL, (2, num_modes, dim)),
        "weight": (REAL, (2, num_modes, dim)),
        "skip": (REAL, (dim,)),
        "outputs": (REAL, (num_sequences, num_latents, dim)),
        "states": (REAL, (num_sequences, _num_states(num_latents), 2, num_modes, dim)),
    },
)
BACKWARD = CFunction(
    SOURCE,
    "scan_backward",
    lambda num_sequences, num_latents, dim, num_modes: {
        "outputs_grad": (REAL, (num_sequences, num_latents, dim)),
        "inputs": (REAL, (num_sequences, num_latents, dim)),
        "decay": (REAL, (2, num_modes, dim)),
        "weight": (REAL, (2, num_modes, dim)),
        "skip": (REAL, (dim,)),
        "states": (REAL, (num_sequences, _num_states(num_latents), 2, num_modes, dim)),
        "carried": (REAL, (num_sequences, 2, num_modes, dim)),
        "inputs_grad": (REAL, (num_sequences, num_latents, dim)),
        "decay_grad": (REAL, (num_sequences, 2, num_modes, dim)),
        "weight_grad": (REAL, (num_sequences, 2, num_modes, dim)),
        "skip_grad": (REAL, (num_sequences, dim)),
    },
)


def diagonal_scan(inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and the last state of h_t = a h_{t-1} + u_t, y_t = skip u_t + Re(sum_n w_n h_{n,t}).

    Inputs u and outputs y are `[B, T, C]`, decay a (at most 1 in absolute value) and weight w `[2, N, C]`, skip `[C]`,
    and the states h before the first and after the last step `[B, 2, N, C]`.
    """
    if torch.compiler.is_exporting():  # a comparison of sizes would fix them in the graph
        return _loop(inputs, decay, weight, skip, state)
    check_tensor("inputs", inputs, "floats", ("B", "T", "C"))
    check_tensor("decay", decay, "floats", (2, "N", inputs.shape[2]))
    check_tensor("weight", weight, "floats", decay.shape)
    check_tensor("skip", skip, "floats", inputs.shape[2:])
    check_tensor("state", state, "floats", (len(inputs), *decay.shape))
    if inputs.device.type == "cpu" and inputs.dtype in (torch.float32, torch.float64) and _is_compiled():
        outputs, states = _diagonal_scan(inputs, decay, weight, skip, state)
        return outputs, states[:, -1]
    return _convolve(inputs, decay, weight, skip, state)


@torch.compiler.assume_constant_result
def _is_compiled() -> bool:
    return compiled(SOURCE) is not None


def _loop(inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results of `diagonal_scan` by the scan of torch, which becomes one of ONNX."""

    def step(before: tuple[Tensor, Tensor], u: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        real, imaginary = before
        after = decay[0] * real - decay[1] * imaginary + u.unsqueeze(1), decay[0] * imaginary + decay[1] * real
        return after, (weight[0] * after[0] - weight[1] * after[1]).sum(1)

    parts = state[:, 0].contiguous(), state[:, 1].contiguous()
    last, outputs = scan(step, parts, rearrange(inputs, "b t c -> t b c"))
    return skip * inputs + rearrange(outputs, "t b c -> b t c"), torch.stack(last, 1)


def _convolve(inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results of `diagonal_scan`, chunk by chunk: an FFT for the inputs, powers of a for the state."""
    a, w = (torch.complex(*each) for each in (decay, weight))
    h = torch.complex(state[:, 0], state[:, 1])
    num_steps = min(CONVOLVED, inputs.shape[1])
    powers = a[None]  # [T, N, C], a^1 to a^T by doubling, whose rounding errors do not add up
    while len(powers) < num_steps:
        powers = torch.cat([powers, powers * powers[-1]])
    powers = torch.cat([torch.ones_like(a)[None], powers[:num_steps]])
    response = einsum(w, powers[:-1], "n c, t n c -> t c").real
    outputs = []
    for u in inputs.split(CONVOLVED, 1):
        length = u.shape[1]
        spectrum = torch.fft.rfft(u, 2 * length, 1) * torch.fft.rfft(response[:length], 2 * length, 0)
        free = einsum(w * h, powers[1 : length + 1], "b n c, t n c -> b t c").real
        outputs.append(skip * u + torch.fft.irfft(spectrum, 2 * length, 1)[:, :length] + free)
        h = powers[length] * h + einsum(u.to(a.dtype), powers[:length].flip(0), "b t c, t n c -> b n c")
    return torch.cat(outputs, 1), torch.stack([h.real, h.imag], 1)


@torch.library.custom_op("cpc::diagonal_scan", mutates_args=())
def _diagonal_scan(inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs, and the states before each chunk and after the last one, `[B, chunks + 1, 2, N, C]`."""
    inputs = inputs.contiguous()
    outputs, states = torch.empty_like(inputs), _empty_states(inputs, state)
    states[:, 0] = state
    sizes = (*inputs.shape, decay.shape[1])
    arguments = (inputs, decay.contiguous(), weight.contiguous(), skip.contiguous(), outputs, states)
    FORWARD(sizes, (), arguments)
    return outputs, states


@torch.library.custom_op("cpc::diagonal_scan_backward", mutates_args=())
def _diagonal_scan_backward(
    outputs_grad: Tensor, last_grad: Tensor, inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the five inputs of `_diagonal_scan`, given those of outputs and last state."""
    inputs_grad = torch.empty(inputs.shape, dtype=inputs.dtype)
    state_grad = last_grad.clone(memory_format=torch.contiguous_format)
    decay_grad, weight_grad = (torch.zeros_like(state_grad) for _ in range(2))  # for each sequence
    skip_grad = inputs.new_empty(len(inputs), len(skip))
    given = (outputs_grad, inputs, decay, weight, skip, states)
    results = (state_grad, inputs_grad, decay_grad, weight_grad, skip_grad)
    sizes = (*inputs.shape, decay.shape[1])
    BACKWARD(sizes, (), (*(each.contiguous() for each in given), *results))
    return inputs_grad, decay_grad.sum(0), weight_grad.sum(0), skip_grad.sum(0), state_grad


def _empty_states(inputs: Tensor, state: Tensor) -> Tensor:
    return state.new_empty(len(state), _num_states(inputs.shape[1]), *state.shape[1:])


def _num_states(num_latents: int) -> int:
    return (num_latents + CHUNK - 1) // CHUNK + 1


@_diagonal_scan.register_fake
def _(inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return inputs.new_empty(inputs.shape), _empty_states(inputs, state)


@_diagonal_scan_backward.register_fake
def _(
    outputs_grad: Tensor, last_grad: Tensor, inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return tuple(each.new_empty(each.shape) for each in (inputs, decay, weight, skip, last_grad))  # type: ignore[return-value]


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    u, decay, weight, skip, _ = inputs
    ctx.save_for_backward(u, decay, weight, skip, output[1])


def _backward(ctx: Any, outputs_grad: Tensor, states_grad: Tensor) -> tuple[Tensor, ...]:
    return _diagonal_scan_backward(outputs_grad, states_grad[:, -1], *ctx.saved_tensors)


_diagonal_scan.register_autograd(_backward, setup_context=_save_inputs)
