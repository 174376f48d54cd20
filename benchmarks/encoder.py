"""The encoder's layers and the recurrent context beside torch's own, forward and backward.

python -m benchmarks.encoder [--dim D] [--repetitions N]

CPC_audio's size: 8 windows of 20480 samples. torch's are nn.Conv1d on [B, D, T] with ReLU, nn.LayerNorm between two
transpositions, and nn.GRU; ours are `cpc.encoders.AudioEncoder` and `cpc.contexts.GRU`. One process, calls alternate.
Our layers rectify their input, so a single layer of ours counts the ReLU of the one before; whole encoders are like for
like. At the end `cpc.contexts.StateSpace` stands beside our GRU, on sequences of 4096 latents.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from benchmarks.machine import machine_state
from cpc.contexts import GRU, Context, StateSpace
from cpc.encoders import AudioEncoder
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor

BATCH_SIZE, WINDOW_SAMPLES, NUM_LATENTS, LONG = 8, 20480, 128, 4096


def forward_and_backward(function: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    gradient = torch.randn_like(function())

    def run() -> None:
        torch.autograd.grad(function(), inputs, gradient)

    return run


def alternating_medians(one: Callable[[], None], other: Callable[[], None], repetitions: int) -> tuple[float, float]:
    """Medians of both, called in turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(repetitions + 2):
        for function, times in zip((one, other), seconds, strict=True):
            start = time.perf_counter()
            function()
            if turn >= 2:  # warm
                times.append(time.perf_counter() - start)
    return sorted(seconds[0])[repetitions // 2], sorted(seconds[1])[repetitions // 2]


def whole(dim: int, dtype: torch.dtype, norm: str) -> tuple[Callable[[], None], Callable[[], None], float]:
    """All five layers: (torch's, ours, operations of both passes)."""
    encoder = AudioEncoder(dim, norm=norm).to(dtype)  # type: ignore[arg-type]
    modules: list[nn.Module] = []
    num_operations, length = 0.0, WINDOW_SAMPLES
    for i, (kernel, stride, padding) in enumerate(zip(encoder.kernels, encoder.strides, encoder.paddings, strict=True)):
        modules.append(nn.Conv1d(dim if i else 1, dim, kernel, stride, padding))
        if norm == "layer":
            modules += [Transpose(), nn.LayerNorm(dim), Transpose()]
        modules.append(nn.ReLU())
        length //= stride
        num_operations += (3 if i else 2) * 2.0 * BATCH_SIZE * length * dim * (dim if i else 1) * kernel
    network = nn.Sequential(*modules).to(dtype)
    x = torch.randn(BATCH_SIZE, WINDOW_SAMPLES, dtype=dtype)
    return (
        forward_and_backward(lambda: network(rearrange(x, "b s -> b 1 s")), list(network.parameters())),
        forward_and_backward(lambda: encoder(x), list(encoder.parameters())),
        num_operations,
    )


class Transpose(nn.Module):
    """Channels to the end, and back."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap the last two axes."""
        return rearrange(x, "b c t -> b t c")


def layers(dim: int, dtype: torch.dtype) -> dict[str, tuple[Callable[[], None], Callable[[], None], float]]:
    """Name -> (torch's, ours, operations of both passes)."""
    encoder = AudioEncoder(dim, norm="none").to(dtype)
    found = {}
    x = torch.randn(BATCH_SIZE, 1, WINDOW_SAMPLES, dtype=dtype)
    for i, layer in enumerate(encoder.layers):
        kernel, stride, padding = encoder.kernels[i], encoder.strides[i], encoder.paddings[i]
        conv = nn.Conv1d(x.shape[1], dim, kernel, stride, padding).to(dtype)
        theirs = x.clone().requires_grad_(i > 0)
        frames = rearrange(F.pad(x, (padding, padding)), "b 1 s -> b s").unfold(1, kernel, stride) if i == 0 else None
        ours = rearrange(x, "b c s -> b s c").contiguous().requires_grad_() if frames is None else frames
        found[f"conv{i}"] = (
            forward_and_backward(
                lambda conv=conv, x=theirs: F.relu(conv(x)), [*conv.parameters(), *([theirs] if i > 0 else [])]
            ),
            forward_and_backward(
                lambda layer=layer, x=ours: layer(x),
                [layer.weight, layer.bias, *([ours] if i > 0 else [])],  # type: ignore[list-item]
            ),
            (3 if i > 0 else 2) * 2.0 * BATCH_SIZE * (x.shape[2] // stride) * dim * x.shape[1] * kernel,
        )
        x = torch.randn(BATCH_SIZE, dim, x.shape[2] // stride, dtype=dtype)
    return found


def recurrence(dim: int, context_dim: int) -> tuple[Callable[[], None], Callable[[], None], float]:
    context = GRU(context_dim)
    context.connect(dim)
    z = torch.randn(BATCH_SIZE, NUM_LATENTS, dim, requires_grad=True)
    theirs = nn.GRU(dim, context_dim, batch_first=True)
    return (
        forward_and_backward(lambda: theirs(z)[0], [z, *theirs.parameters()]),
        forward_and_backward(lambda: context(z)[0], [z, *context.parameters()]),
        3 * 2.0 * BATCH_SIZE * NUM_LATENTS * 3 * context_dim * (dim + context_dim),
    )


def long_sequences(dim: int, **others: Context) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Name -> (our GRU, the other context), both of the same width, on sequences of `LONG` latents."""
    z = torch.randn(BATCH_SIZE, LONG, dim, requires_grad=True)
    passes = {}
    for name, context in {"gru": GRU(dim), **others}.items():
        context.connect(dim)
        parameters = [z, *context.parameters()]
        passes[name] = forward_and_backward(lambda context=context: context(z)[0], parameters)
    return {name: (passes["gru"], passes[name]) for name in others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=21)
    options = parser.parse_args()
    prepare_processor()
    state = machine_state(keep_freed_memory())
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    figures = {}
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        parts = layers(options.dim, dtype)
        parts |= {f"all, {norm}": whole(options.dim, dtype, norm) for norm in ("none", "layer")}
        if dtype == torch.float32:
            parts |= {f"gru{width}": recurrence(options.dim, width) for width in (256, 512)}
        for part, (theirs, ours, num_operations) in parts.items():
            before, after = alternating_medians(theirs, ours, options.repetitions)
            percent = 100 * num_operations / after / 1e9 / state["gemm_peak_gflops"]
            print(
                f"{name:8} {part:11} torch {before * 1e3:7.1f} ms  ours {after * 1e3:7.1f} ms  {before / after:5.2f}x  "
                f"{percent:5.1f} % of the float32 GEMM peak",
                flush=True,
            )
            figures[f"ratio_{part.replace(', ', '_')}_{name}"] = round(before / after, 3)
    contexts = {f"state{modes}": StateSpace(options.dim, num_modes=modes) for modes in (4, 16, 32)}
    for name, pair in long_sequences(options.dim, **contexts).items():
        gru, other = alternating_medians(*pair, options.repetitions // 3)
        print(
            f"float32  T = {LONG}: GRU {gru * 1e3:7.1f} ms  {name} {other * 1e3:7.1f} ms  {gru / other:5.2f}x",
            flush=True,
        )
        figures[f"ratio_gru_to_{name}_{LONG}"] = round(gru / other, 3)
    print(json.dumps(figures | {"machine": state}))


if __name__ == "__main__":
    main()
