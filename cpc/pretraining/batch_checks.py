"""Checks before the first step: every row of a batch has negatives, and a batch fits in memory."""

from typing import Any

import torch

from cpc.candidates.strategies import check_rows
from cpc.data.map_style import MapStyleModality, identities
from cpc.data.modality import Training
from cpc.data.streams.stream import naming
from cpc.evaluation.held_out import BYTES_PER_NEGATIVE, memory_bytes
from cpc.model import CPC

NUM_CHECKED_BATCHES = 1000  # the check of so many batches takes a quarter of a second


def check_batches(
    modality: Any, model: CPC, training: Training, held_out: Any, strategies: tuple[str, ...], device: torch.device
) -> None:
    """Check, without decoding data, that a step fits in memory and that every row of the batches has negatives.

    `strategies` are those of the held-out bound.
    """
    _check_memory(modality, model, training, device)
    _check_training_rows(modality, model, training)
    _check_held_out_rows(model, held_out, strategies)


def _check_training_rows(modality: MapStyleModality, model: CPC, training: Training) -> None:
    """Check the training batches of one pass (at most `NUM_CHECKED_BATCHES`) for the training strategies."""
    encoder, batches, strategies = model.encoder, training.batches, model.loss_part.training_strategies
    batch_indices = batches.of_all_ranks if model.loss_part.uses_all_ranks else batches.batch
    for index in range(min(NUM_CHECKED_BATCHES, -(-batches.draws_per_pass // len(batch_indices(0))))):
        batch_ids = identities(encoder, training.dataset, batch_indices(index))
        for strategy in strategies:
            with naming(modality.train_split):
                check_rows(strategy, *batch_ids, nearest=model.steps[0].k)


def _check_held_out_rows(model: CPC, held_out: Any, strategies: tuple[str, ...]) -> None:
    """Check all held-out batches now, so that no strategy fails at the first evaluation."""
    batch_indices = held_out.draws_of_all_ranks if model.loss_part.uses_all_ranks else held_out.draws
    for strategy in strategies:
        try:
            for indices in batch_indices(strategy):
                batch_ids = identities(model.encoder, held_out.windows, indices)
                with naming(held_out.split):
                    check_rows(strategy, *batch_ids, nearest=model.steps[0].k)
        except ValueError as error:
            if strategy in model.loss_part.training_strategies:
                raise
            raise ValueError(
                f"the held-out bound is also measured with {strategy!r} of model.extra_strategies: {error}; or leave "
                "it out of model.extra_strategies ([] for no extra strategies)"
            ) from error


def _check_memory(modality: MapStyleModality, model: CPC, training: Training, device: torch.device) -> None:
    """Check that the largest tensors of a step fit in memory. With its layers a step takes several times as much."""
    num_sequences, num_latents = model.context.sequences(training.dataset.num_latents)
    num_negatives = model.loss_part.num_negatives
    num_valid, *_ = identities(model.encoder, training.dataset, training.batches.batch(0))
    mean_length = num_valid.sum().item() / len(num_valid) / num_sequences
    distances = [step.k for step in model.steps if step.direction == model.steps[0].direction]
    num_rows = num_sequences * sum(max(0.0, mean_length - k) for k in distances)  # at least, by Jensen
    num_queries = num_sequences * num_latents * model.predictor.num_steps
    per_observation = {
        modality.unit: 4 * training.dataset.num_values,
        "queries": 4 * num_queries * model.encoder.dim,
        "the table of candidates": modality.batch_size * num_sequences**2 * num_latents,
        f"negatives of `loss.num_negatives`={num_negatives}": BYTES_PER_NEGATIVE * num_rows * (num_negatives or 0),
    }
    gigabytes = {name: modality.batch_size * size / 1e9 for name, size in per_observation.items() if size}
    is_cpu = device.type == "cpu"
    total_bytes = memory_bytes() if is_cpu else torch.cuda.get_device_properties(device).total_memory
    if sum(gigabytes.values()) > total_bytes / 1e9:
        parts = ", ".join(f"{name} {size:.1f}" for name, size in gigabytes.items())
        raise ValueError(
            f"a step on `batch_size`={modality.batch_size} {modality.unit} of {training.dataset.num_values} values "
            f"needs at least {sum(gigabytes.values()):.0f} GB ({parts}), but this {'machine' if is_cpu else 'device'} "
            f"has {total_bytes / 1e9:.0f}: lower `batch_size`, `{modality.size_option}` or "
            "`loss.num_negatives`"
        )
