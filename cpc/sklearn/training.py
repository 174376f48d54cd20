"""Training of a model on windows in memory, without files and without Lightning."""

from copy import deepcopy
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from cpc.data.modality import Training
from cpc.model import CPC

_CHECK_EVERY = 50  # steps between two looks at the losses; the host waits for a GPU to see them
_WARMUP_SHARE = 0.1
_LARGEST_GRADIENT = 1.0


def train(
    model: CPC, training: Training, *, max_steps: int, learning_rate: float, seed: int, verbose: bool
) -> list[float]:
    """Train a model by AdamW with a warm-up and a linear decay; return the loss of each step in nats.

    The statistics and the initialisation of the model are set; it is left in eval mode. `learning_rate` is the largest
    rate, after a tenth of the steps; `seed` that of sampled negatives. A loss that is not finite is a
    FloatingPointError.
    """
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(weights, learning_rate)
    warmup_steps = max(1, round(_WARMUP_SHARE * max_steps))
    generator, losses = torch.Generator().manual_seed(seed), torch.zeros(max_steps, device=weights[0].device)
    model.train()
    for step in tqdm(range(max_steps), desc="pretrain", disable=not verbose):
        optimiser.param_groups[0]["lr"] = learning_rate * min(
            (step + 1) / warmup_steps, (max_steps - step) / max(1, max_steps - warmup_steps)
        )
        batch = training.dataset.__getitems__(training.batches.batch(step)).beside(weights[0])
        loss = model.loss(batch, generator).loss
        losses[step] = loss.detach()
        if (step % _CHECK_EVERY == 0 or step == max_steps - 1) and not losses.isfinite().all():
            broken = int((~losses.isfinite()).nonzero()[0])
            raise FloatingPointError(f"the loss is {losses[broken]} at step {broken}: lower {learning_rate=}")
        optimiser.zero_grad()
        loss.backward()
        clip_grad_norm_(weights, _LARGEST_GRADIENT)
        optimiser.step()
    model.eval()
    return losses.tolist()


def models_on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an estimator with copies of its models on the CPU: any machine can read its pickle."""
    return {name: deepcopy(value).cpu() if isinstance(value, CPC) else value for name, value in state.items()}
