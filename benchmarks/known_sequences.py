"""A CPC model on sequences of known information, read by every estimator: vector AR(1) with a = 0.8.

python -m benchmarks.known_sequences [--steps 600] [--batches 20] [--dim 4] [--num_negatives 16] [--seed 0]
"""

import argparse
import json
from typing import Any

import torch

from cpc.bounds import VectorAR1
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import VectorEncoder
from cpc.evaluation.estimates import SCORE_ESTIMATORS, HeldOutEstimates
from cpc.losses import Contrastive, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear

COEFFICIENT = 0.8
NUM_STEPS, BATCH_SIZE, NUM_LATENTS = 4, 32, 32
MEASURE = EvalProtocol("mixed_excluding", None)


def trained(process: VectorAR1, loss: Contrastive, num_train_steps: int, seed: int) -> CPC:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = CPC(VectorEncoder(process.dim, dim=32), GRU(64), Bilinear(NUM_STEPS), loss)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_train_steps)
    for _ in range(num_train_steps):
        optimiser.zero_grad()
        model.loss(process.sample(BATCH_SIZE, NUM_LATENTS, generator)).loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def estimate(model: CPC, process: VectorAR1, num_batches: int, seed: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1000 * seed + 1)
    found = HeldOutEstimates(model, SCORE_ESTIMATORS, {MEASURE: torch.Generator().manual_seed(2)})
    for _ in range(num_batches):
        x = process.sample(BATCH_SIZE, NUM_LATENTS, generator)
        found(MEASURE, model(x), Batch.of(x))
    return [found.record(MEASURE, name, "test") for name in SCORE_ESTIMATORS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--batches", type=int, default=20, help="that are read")
    parser.add_argument("--dim", type=int, default=4, help="of the process; the information is proportional to it")
    parser.add_argument("--num_negatives", type=int, help="drawn in training; all candidates if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the model and the samples")
    options = parser.parse_args()
    process = VectorAR1(COEFFICIENT, options.dim)
    loss = Contrastive("mixed_excluding", options.num_negatives)
    model = trained(process, loss, options.steps, options.seed)
    records = estimate(model, process, options.batches, options.seed)
    truths = [process.mutual_information_nats(k) for k in range(1, NUM_STEPS + 1)]
    print(f"{'nats':>14} " + " ".join(f"{f'k = {k}':>18}" for k in range(1, NUM_STEPS + 1)))
    print(f"{'truth':>14} " + " ".join(f"{truth:>18.3f}" for truth in truths))
    for record in records:
        pairs = zip(record["estimate_nats"], record["standard_error_nats"], strict=True)
        print(f"{record['estimator']:>14} " + " ".join(f"{f'{nats:.3f} +- {error:.3f}':>18}" for nats, error in pairs))
    estimates = {record["estimator"]: record["estimate_nats"] for record in records}
    print(json.dumps({"truth_nats": truths, "estimates_nats": estimates}))


if __name__ == "__main__":
    main()
