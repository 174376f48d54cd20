"""What a model makes of its held-out batches: the bound."""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cpc.bounds import Bound, BoundTally
from cpc.data.batch import Batch
from cpc.data.drawn import identities
from cpc.data.modality import HeldOutBatches
from cpc.losses import EvalProtocol
from cpc.model import CPC
from cpc.predictors import Output

BYTES_PER_NEGATIVE = 16
OnBatch = Callable[[Batch, Tensor, Tensor], None]
OnMeasure = Callable[[EvalProtocol, Output, Batch], None]


@torch.no_grad()
def measured_tallies(
    model: CPC,
    held_out: HeldOutBatches,
    measures: Iterable[EvalProtocol],
    *,
    forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    on_batch: OnBatch | None = None,
    on_measure: OnMeasure | None = None,
) -> dict[EvalProtocol, BoundTally]:
    """Measure this rank's held-out batches; measures that share batches share their encoding.

    The model is put in eval mode for the duration. Negatives come from generators of their own, the same at each call.

    Args:
        model: what is measured.
        held_out: the batches; contexts are carried on where each goes on with the next.
        measures: strategies, each with the number of negatives drawn.
        forward_context: entered around the model's computation: autocast.
        on_batch: called with each batch of the training strategy, its latents and its contexts.
        on_measure: called with each measure, and what the model makes of each of its batches.

    Raises:
        ValueError: if a strategy leaves a row without negatives.
    """
    tallies = {measure: BoundTally(model.steps) for measure in measures}
    draws = {measure: torch.Generator().manual_seed(held_out.seed) for measure in tallies}
    own = held_out.sampler_for(model.loss_part.training_strategies[0])
    weights = next(model.parameters())
    was_training = model.training
    model.eval()
    for sampler_for in dict.fromkeys(held_out.sampler_for(measure.strategy) for measure in tallies):
        sharing = [measure for measure in tallies if held_out.sampler_for(measure.strategy) == sampler_for]
        state = None
        for on_cpu in held_out.batches(sharing[0].strategy):
            batch = on_cpu.beside(weights)
            with forward_context():
                output = model(batch.x, state)
                state = output.state if held_out.is_continuous else None
                for measure in sharing:
                    tallies[measure].update(model.contrast(output, batch, draws[measure], measure))
                    if on_measure is not None:
                        on_measure(measure, output, batch)
            if on_batch is not None and sampler_for == own:
                on_batch(batch, output.latents, output.contexts)
    model.train(was_training)
    return tallies


def held_out_bound(tally: BoundTally, measure: EvalProtocol, held_out: HeldOutBatches) -> Bound:
    """The bound of a tally: log N - L, or H - L where classes are predicted."""
    bound = tally.compute(measure.strategy, held_out.split)
    entropy = held_out.class_entropy_nats
    return bound if entropy is None else bound.against_entropy(entropy)


def check_memory(model: CPC, held_out: Any, num_negatives: int) -> None:
    """Refuse so many negatives that the draws of a batch alone cannot be held.

    Raises:
        ValueError: naming the option.
    """
    drawn = next(iter(held_out.draws(model.loss_part.training_strategies[0])))
    num_valid, *_ = identities(model.encoder, held_out.windows, drawn)
    num_rows = sum(int((num_valid - step.k).clamp(min=0).sum()) for step in model.steps)
    num_bytes = BYTES_PER_NEGATIVE * num_rows * num_negatives
    if num_bytes > memory_bytes():
        raise ValueError(
            f"`num_negatives`={num_negatives} for each of {num_rows} rows of a batch takes {num_bytes / 1e9:.0f} GB, "
            f"and this machine has {memory_bytes() / 1e9:.0f}: lower it, or `batch_size`"
        )


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
