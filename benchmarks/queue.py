"""What a queue of past latents teaches, and what its number is worth: Gaussian pairs of known information.

python -m benchmarks.queue [--sizes N ...] [--steps S]

x and y have 20 dimensions and 6 nats of information; both encoders are small networks, trained by InfoNCE with batches
of 64 (Adam, 1e-3) and a queue beside them. After training, fresh pairs are read against banks of the trained encoder.
"""

import argparse
import json
import math

import torch
from torch import Tensor, nn

from cpc.candidates import LatentBank, LatentQueue
from cpc.losses import bank_loss, info_nce

DIM, LATENT_DIM, INFORMATION_NATS, BATCH_SIZE, LEARNING_RATE = 20, 32, 6.0, 64, 1e-3
CORRELATION = math.sqrt(-math.expm1(-2 * INFORMATION_NATS / DIM))


def pairs(num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, noise = torch.randn(2, num, DIM, generator=generator)
    return x, CORRELATION * x + math.sqrt(1 - CORRELATION**2) * noise


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, LATENT_DIM))


def measure(size: int, num_steps: int) -> dict[str, float]:
    """The mean training number of the last 200 steps, and log N - L of the trained encoders against fresh latents."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    of_x, of_y = network(), network()
    optimiser = torch.optim.Adam([*of_x.parameters(), *of_y.parameters()], LEARNING_RATE)
    queue = LatentQueue(size, LATENT_DIM) if size else None
    readings = []
    for step in range(num_steps):
        x, y = pairs(BATCH_SIZE, generator)
        z = of_y(y)
        extra = queue.past().latents if queue is not None and queue.num_stored else None
        found = info_nce(of_x(x), z, torch.arange(BATCH_SIZE), extra=extra)
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        if queue is not None:
            queue.push(z, step * BATCH_SIZE + torch.arange(BATCH_SIZE))
        if step >= num_steps - 200:
            readings.append(float((found.num_candidates.log() - found.loss_nats).mean()))
    with torch.no_grad():
        x, y = pairs(4000, generator)
        queries, positives = of_x(x), of_y(y)
        fresh = {
            f"fresh_{num}": bank_loss(queries, positives, LatentBank(of_y(pairs(num, generator)[1]))).mi_nats
            for num in (BATCH_SIZE + size - 1, 50_000)
        }
    same_n, many = fresh.values()
    return {"trained": sum(readings) / len(readings), "fresh_same_n": same_n, "fresh_50000": many}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    figures = {}
    print(f"{'queue':>6} {'oldest':>7} {'training reads':>15} {'fresh, same N':>14} {'fresh, N = 50001':>17}")
    for size in options.sizes:
        found = measure(size, options.steps)
        figures[size] = {name: round(value, 3) for name, value in found.items()}
        print(
            f"{size:>6} {math.ceil(size / BATCH_SIZE):>7} {found['trained']:>15.3f} {found['fresh_same_n']:>14.3f} "
            f"{found['fresh_50000']:>17.3f}",
            flush=True,
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
