"""Time of a training step at CPC_audio's size and of only its loss, compared with the style of public code.

python -m benchmarks.step [--rounds N]

256 latents, GRU of 256, 12 bilinear steps, 8 windows of 20480 samples, layer norm, 128 negatives a row, Adam, float32.
The reference (benchmarks/reference.py) computes the same loss on the same parameters with the same negatives, gathered
and concatenated step by step. Every variant runs in a process of its own, in turns; figures are medians over rounds.
`as_started`: the reference under glibc's default allocator, ours as `cpc` starts it; `pinned`: both under an allocator
that keeps freed memory; `prepared`: the reference also with the processor's settings that `cpc` chooses (on AMD,
float32 products through oneDNN instead of MKL). More variants of ours follow: what a user may choose instead.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.machine import gemm_peak_gflops, machine_state, median_seconds, peak_extra_mib
from benchmarks.processes import Variant, alternate
from benchmarks.reference import draw_per_step, gather_style_contrast, gather_style_loss
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder
from cpc.losses import Contrastive, contrast
from cpc.model import CPC
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.predictors import Bilinear
from cpc.pretraining.chunks import contrast_in_chunks

BATCH_SIZE, WINDOW_SAMPLES, DIM, NUM_STEPS, NUM_NEGATIVES, NUM_LATENTS = 8, 20480, 256, 12, 128, 128
NUM_OPERATIONS = 46.6e9  # of a step that scores no more than the 128 negatives: shared multiplications and additions
CHOICES = {
    # name: (norm, negatives per row or None for all 1023, bf16: autocast, and operands of the loss, chunks)
    "affine": ("affine", NUM_NEGATIVES, False, 1),
    "affine, all candidates": ("affine", None, False, 1),
    "affine, all candidates, bf16": ("affine", None, True, 1),
    "affine, 8 chunks": ("affine", NUM_NEGATIVES, False, 8),
}


def build(norm: str, num_negatives: int | None, bf16: bool = False) -> tuple[CPC, torch.Tensor]:
    torch.manual_seed(0)
    loss = Contrastive(num_negatives=num_negatives, compute="bf16" if bf16 else "float32")
    model = CPC(AudioEncoder(DIM, norm=norm), GRU(DIM), Bilinear(NUM_STEPS), loss)  # type: ignore[arg-type]
    x = torch.randn(BATCH_SIZE, WINDOW_SAMPLES)
    model.initialise_from(x)
    return model, x


def gathered(model: CPC, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    negatives = draw_per_step(NUM_STEPS, BATCH_SIZE, NUM_LATENTS, NUM_NEGATIVES, generator)
    return gather_style_loss(model, x, negatives)


def loss_alone(style: str) -> Callable[[], Any]:
    """Predictors and loss, forward and backward, on latents and contexts at hand."""
    model, x = build("layer", NUM_NEGATIVES)
    with torch.no_grad():
        latents, contexts, *_ = model(x)
    latents, contexts = latents.clone().requires_grad_(), contexts.clone().requires_grad_()
    parameters = [latents, contexts, *model.predictor.parameters()]
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        if style == "gather":
            negatives = draw_per_step(NUM_STEPS, BATCH_SIZE, NUM_LATENTS, NUM_NEGATIVES, generator)
            loss = gather_style_contrast(contexts, latents, model.predictor.weights, negatives)
        else:
            queries = model.predictor(contexts)
            loss = contrast(queries, latents, num_negatives=NUM_NEGATIVES, generator=generator).loss
        torch.autograd.grad(loss, parameters)

    return step


def whole_step(style: str, norm: str, num_negatives: int | None, bf16: bool, num_chunks: int) -> Callable[[], Any]:
    model, x = build(norm, num_negatives, bf16)
    # As training chooses: Lightning clips no gradients of fused optimisers in mixed precision.
    optimiser = torch.optim.Adam(model.parameters(), 2e-4, fused=style != "gather" and not bf16)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            if style == "gather":
                loss = gathered(model, x, generator)
            elif num_chunks > 1:
                loss = contrast_in_chunks(model, Batch.of(x), num_chunks, generator)[1].loss
            else:
                loss = model.loss(x, generator=generator).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def gradient_errors() -> dict[str, float]:
    """The largest relative difference between gradients, over the parameters, from the reference style in float64.

    In float64 both styles agree to rounding: they are the same mathematics. In float32 either differs from float64 by a
    thousandth, because among millions of units a few lie within rounding of the ReLU's corner.
    """

    def gradients(style: str, dtype: torch.dtype) -> list[torch.Tensor]:
        model, x = build("layer", NUM_NEGATIVES)
        model, x, generator = model.to(dtype), x.to(dtype), torch.Generator().manual_seed(0)
        loss = gathered(model, x, generator) if style == "gather" else model.loss(x, generator=generator).loss
        return [gradient.double() for gradient in torch.autograd.grad(loss, list(model.parameters()))]

    exact = gradients("gather", torch.float64)

    def error(style: str, dtype: torch.dtype) -> float:
        pairs = zip(gradients(style, dtype), exact, strict=True)
        return max(float((found - wanted).norm() / wanted.norm()) for found, wanted in pairs)

    return {
        "gradient_error": error("ours", torch.float64),
        "gradient_error_float32": error("ours", torch.float32),
        "gradient_error_float32_of_gather": error("gather", torch.float32),
    }


def measure(style: str, part: str, choice: str | None) -> dict[str, float]:
    if style != "gather":
        keep_freed_memory()
        prepare_processor()
    style = style.removesuffix("-prepared")
    if part == "loss":
        step = loss_alone(style)
    else:
        step = whole_step(style, *(CHOICES[choice] if choice else ("layer", NUM_NEGATIVES, False, 1)))
    extra_mib = peak_extra_mib(step)
    seconds = median_seconds(step, 3 if style == "gather" else 9, num_warmups=1)
    return {"seconds": seconds, "extra_mib": extra_mib, "gemm_peak_gflops": gemm_peak_gflops()}


def variant(style: str, part: str, pinned: bool = False, choice: str | None = None) -> Variant:
    arguments = ("--style", style, "--part", part, *(("--choice", choice) if choice else ()))
    return Variant("benchmarks.step", arguments, pinned)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--style", choices=("gather", "gather-prepared", "ours"), help="measure only this variant, in this process"
    )
    parser.add_argument("--part", choices=("step", "loss"), default="step")
    parser.add_argument("--choice", choices=CHOICES)
    options = parser.parse_args()
    if options.style:
        print(json.dumps(measure(options.style, options.part, options.choice)))
        return
    variants = {
        f"{style} {part}{', pinned' if pinned else ''}": variant(style, part, pinned)
        for part in ("step", "loss")
        for style in ("gather", "ours")
        for pinned in (False, True)
    }
    variants |= {f"gather-prepared {part}": variant("gather-prepared", part) for part in ("step", "loss")}
    variants |= {f"ours step, {choice}": variant("ours", "step", choice=choice) for choice in CHOICES}
    found = alternate(variants, options.rounds)
    prepare_processor()
    state = machine_state(keep_freed_memory())
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    for name, result in found.items():
        print(
            f"{name:42} {result['seconds']:8.3f} s  {BATCH_SIZE / result['seconds']:6.1f} windows/s  "
            f"{result['extra_mib']:6.0f} MiB extra  GEMM peak {result['gemm_peak_gflops']:.0f} GFLOP/s"
        )

    def ratio(part: str, suffix: str, field: str = "seconds") -> float:
        return found[f"gather {part}{suffix}"][field] / found[f"ours {part}{suffix}"][field]

    ours = found["ours step"]
    figures = {
        "seconds_per_step": ours["seconds"],
        "ratio_as_started": ratio("step", ""),
        "ratio_pinned": ratio("step", ", pinned"),
        "ratio_prepared": found["gather-prepared step"]["seconds"] / ours["seconds"],
        "loss_ratio_as_started": ratio("loss", ""),
        "loss_ratio_pinned": ratio("loss", ", pinned"),
        "loss_ratio_prepared": found["gather-prepared loss"]["seconds"] / found["ours loss"]["seconds"],
        "loss_extra_mib": found["ours loss"]["extra_mib"],
        "loss_memory_ratio": ratio("loss", "", "extra_mib"),
        "percent_of_floor": 100 * NUM_OPERATIONS / (ours["gemm_peak_gflops"] * 1e9) / ours["seconds"],
    } | gradient_errors()
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()} | {"machine": state}))


if __name__ == "__main__":
    main()
