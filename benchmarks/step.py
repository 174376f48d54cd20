"""One training step at CPC_audio's size: 256 latents, GRU 256, 12 bilinear steps, 8 windows of 20480 samples.

python -m benchmarks.step [--repetitions N]
"""

import argparse
import json

import torch

from benchmarks.machine import machine_state, median_seconds
from cpc.allocator import keep_freed_memory
from cpc.contexts import GRU
from cpc.encoders import AudioEncoder
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.processor import prepare_processor

BATCH_SIZE, WINDOW_SAMPLES, DIM, NUM_STEPS = 8, 20480, 256, 12
VARIANTS = {
    # name: (norm, negatives per row or None for all 1023, bf16: autocast, and operands of the loss)
    "layer norm, 128 negatives": ("layer", 128, False),
    "affine, 128 negatives": ("affine", 128, False),
    "affine, all candidates": ("affine", None, False),
    "affine, all candidates, bf16": ("affine", None, True),
}


def seconds_per_step(norm: str, num_negatives: int | None, bf16: bool, repetitions: int) -> float:
    torch.manual_seed(0)
    compute = "bf16" if bf16 else "float32"
    parts = AudioEncoder(DIM, norm=norm), GRU(DIM), Bilinear(NUM_STEPS)
    model = CPC(*parts, num_negatives=num_negatives, compute=compute)
    x = torch.randn(BATCH_SIZE, WINDOW_SAMPLES)
    model.initialise_from(x)
    optimiser = torch.optim.Adam(model.parameters(), 2e-4)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model.loss(x, generator=generator).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return median_seconds(step, repetitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9)
    repetitions = parser.parse_args().repetitions
    prepare_processor()
    state = machine_state(keep_freed_memory())
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    figures = {}
    for name, (norm, num_negatives, bf16) in VARIANTS.items():
        figures[name] = seconds_per_step(norm, num_negatives, bf16, repetitions)
        print(f"{name:40} {figures[name]:8.3f} s  {BATCH_SIZE / figures[name]:6.1f} windows/s", flush=True)
    headline = figures["layer norm, 128 negatives"]
    print(json.dumps({"seconds_per_step": round(headline, 4), "variants": figures, "machine": state}))


if __name__ == "__main__":
    main()
