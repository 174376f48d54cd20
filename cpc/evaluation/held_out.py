"""The bound of a model on held-out batches."""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cpc.bounds import Bound, BoundTally
from cpc.data.batch import Batch
from cpc.data.map_style import identities
from cpc.data.modality import HeldOutBatches
from cpc.encoders.encoder import check_scale
from cpc.losses import EvalProtocol
from cpc.model import CPC
from cpc.predictors import Output

BYTES_PER_NEGATIVE = 16
OnBatch = Callable[[Batch, Tensor, Tensor], None]
OnProtocol = Callable[[EvalProtocol, Output, Batch], None]


@torch.no_grad()
def held_out_bounds(
    model: CPC,
    held_out: HeldOutBatches,
    protocols: Iterable[EvalProtocol],
    *,
    forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    gather: Callable[[BoundTally], BoundTally] | None = None,
    on_batch: OnBatch | None = None,
    on_protocol: OnProtocol | None = None,
) -> dict[EvalProtocol, Bound]:
    """Return the bound of each protocol on the held-out batches: log N - L, or H - L for a model that predicts classes.

    Protocols that share batches also share their encoding. During the measurement the model is in eval mode. Every call
    makes new generators with the same seeds, so every call samples the same negatives. If the batches are continuous,
    each starts with the context state of the previous batch.

    Args:
        model: the model.
        held_out: the batches of this rank.
        protocols: strategies, each with the number of negatives sampled.
        forward_context: context manager around the model's computation, such as autocast.
        gather: returns the tally of all ranks from that of this rank; None: there is one rank.
        on_batch: called with each batch of the training strategy, its latents and its contexts.
        on_protocol: called with each protocol, and the model's output for each of its batches.

    Raises:
        ValueError: if a strategy leaves a row without negatives.
    """
    tallies = {protocol: BoundTally(model.steps) for protocol in protocols}
    generators = {protocol: torch.Generator().manual_seed(held_out.seed) for protocol in tallies}
    training_sampler = held_out.sampler_for(model.loss_part.training_strategies[0])
    weights = next(model.parameters())
    was_training = model.training
    model.eval()
    for sampler in dict.fromkeys(held_out.sampler_for(protocol.strategy) for protocol in tallies):
        sharing = [protocol for protocol in tallies if held_out.sampler_for(protocol.strategy) == sampler]
        state = None
        for host_batch in held_out.batches(sharing[0].strategy):
            batch = host_batch.beside(weights)
            check_scale(model.encoder, batch.x)
            with forward_context():
                output = model(batch.x, state)
                state = output.state if held_out.is_continuous else None
                for protocol in sharing:
                    tallies[protocol].update(model.contrast(output, batch, generators[protocol], protocol))
                    if on_protocol is not None:
                        on_protocol(protocol, output, batch)
            if on_batch is not None and sampler == training_sampler:
                on_batch(batch, output.latents, output.contexts)
    model.train(was_training)
    entropy = held_out.class_entropy_nats
    bounds = {}
    for protocol, tally in tallies.items():
        bound = (tally if gather is None else gather(tally)).compute(protocol.strategy, held_out.split)
        bounds[protocol] = bound if entropy is None else bound.against_entropy(entropy)
    return bounds


def check_memory(model: CPC, held_out: Any, num_negatives: int) -> None:
    """Raise ValueError if the sampled negatives of a batch do not fit in memory."""
    indices = next(iter(held_out.draws(model.loss_part.training_strategies[0])))
    num_valid, *_ = identities(model.encoder, held_out.windows, indices)
    num_rows = sum(int((num_valid - step.k).clamp(min=0).sum()) for step in model.steps)
    num_bytes = BYTES_PER_NEGATIVE * num_rows * num_negatives
    if num_bytes > memory_bytes():
        gigabytes = f"{num_bytes / 1e9:.0f} GB, but this machine has {memory_bytes() / 1e9:.0f}"
        raise ValueError(f"`num_negatives`={num_negatives} for each of {num_rows} rows of a batch takes {gigabytes}")


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
