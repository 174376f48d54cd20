"""The held-out bound of a model: same batches, same draws, every time."""

from collections.abc import Iterable

import torch
from torch import Tensor

from cpc.bounds import Bound, BoundTally
from cpc.data.batch import Batch
from cpc.losses import Contrast
from cpc.model import CPC

EVALUATION_SEED = 20180710


@torch.no_grad()
def contrast_by_strategy(
    model: CPC, batch: Batch, strategies: Iterable[str], generators: dict[str, torch.Generator]
) -> tuple[dict[str, Contrast], Tensor, Tensor]:
    """Encode a batch once and contrast it with every strategy; also gives its latents and contexts."""
    latents, contexts, _ = model(batch.x)
    contrasts = {
        strategy: model.contrast(
            latents,
            contexts,
            num_valid=model.encoder.num_latents(batch.num_valid),
            sequence_id=batch.sequence_id,
            group_id=batch.group_id,
            strategy=strategy,
            generator=generators[strategy],
        )
        for strategy in strategies
    }
    return contrasts, latents, contexts


def fixed_generators(strategies: Iterable[str], seed: int = EVALUATION_SEED) -> dict[str, torch.Generator]:
    """Generators that repeat the same draws at every evaluation, one per strategy."""
    return {strategy: torch.Generator().manual_seed(seed) for strategy in strategies}


def held_out_bound(
    model: CPC, batches: Iterable[Batch], strategies: Iterable[str], split: str, seed: int = EVALUATION_SEED
) -> dict[str, Bound]:
    """Measure the bound with each strategy over the same batches.

    The model is put in eval mode for the duration. Draws come from generators of their own, seeded anew by each call.

    Raises:
        ValueError: if there is no batch, or a strategy leaves a row without negatives.
    """
    strategies = tuple(strategies)
    device = next(model.parameters()).device
    generators = fixed_generators(strategies, seed)
    tallies = {strategy: BoundTally() for strategy in strategies}
    was_training = model.training
    model.eval()
    for batch in batches:
        contrasts, _, _ = contrast_by_strategy(model, Batch(*(t.to(device) for t in batch)), strategies, generators)
        for strategy, result in contrasts.items():
            tallies[strategy].update(result)
    model.train(was_training)
    return {strategy: tally.compute(strategy, split) for strategy, tally in tallies.items()}
