"""What is asked of batches whose latents are contrasted, before the first step: negatives for every row, and room."""

from typing import Any

import torch

from cpc.data.drawn import Drawn, identities
from cpc.data.modality import Training
from cpc.data.streams.stream import naming
from cpc.evaluation.held_out import BYTES_PER_NEGATIVE, memory_bytes
from cpc.losses.candidate_sets import check_rows
from cpc.model import CPC

NUM_CHECKED_BATCHES = 1000  # a quarter of a second


def check_batches(
    modality: Drawn, model: CPC, training: Training, held_out: Any, measured: tuple[str, ...], device: torch.device
) -> None:
    """Refuse a step that cannot fit into memory, and batches that leave a row without negatives; nothing is decoded.

    Args:
        modality: the data and their options.
        model: to train.
        training: the stream of batches.
        held_out: the held-out ones.
        measured: strategies of the held-out bound.
        device: where steps are computed.

    Raises:
        ValueError: naming the option.
    """
    for part in training.parts or (training,):
        _check_memory(modality, model, part, device)
        _check_training_rows(modality, model, part)
    _check_measured_rows(model, held_out, measured)


def _check_training_rows(modality: Drawn, model: CPC, training: Training) -> None:
    """Training batches must serve the strategies of training alone; those after the first are checked in their turn."""
    encoder, batches, trained = model.encoder, training.batches, model.loss_part.training_strategies
    drawn_at = batches.of_all_ranks if model.loss_part.meets_all_ranks else batches.batch
    for index in range(min(NUM_CHECKED_BATCHES, -(-batches.draws_per_pass // len(drawn_at(0))))):
        of_batch = identities(encoder, training.dataset, drawn_at(index))
        for strategy in trained:
            with naming(modality.train_split):
                check_rows(strategy, *of_batch, skip_steps=model.loss_part.skip_steps)


def _check_measured_rows(model: CPC, held_out: Any, measured: tuple[str, ...]) -> None:
    """A strategy that leaves rows without negatives fails now, not at the first held-out evaluation."""
    draws = held_out.draws_of_all_ranks if model.loss_part.meets_all_ranks else held_out.draws
    for strategy in measured:
        try:
            for drawn in draws(strategy):
                of_batch = identities(model.encoder, held_out.windows, drawn)
                with naming(held_out.split):
                    check_rows(strategy, *of_batch, skip_steps=model.loss_part.skip_steps)
        except ValueError as error:
            if strategy in model.loss_part.training_strategies:
                raise
            raise ValueError(
                f"the held-out bound is measured with {strategy!r} too, of model.extra_strategies: {error}; or "
                "leave it out of model.extra_strategies ([]: none)"
            ) from error


def _check_memory(modality: Drawn, model: CPC, training: Training, device: torch.device) -> None:
    """Count what is certain to be held at once; a step takes several times as much, with its layers."""
    num_sequences, num_latents = model.context.sequences(training.dataset.num_latents)
    num_negatives = model.loss_part.num_negatives
    num_valid, *_ = identities(model.encoder, training.dataset, training.batches.batch(0))
    mean_length = num_valid.sum().item() / len(num_valid) / num_sequences
    distances = [step.k for step in model.steps if step.direction == model.steps[0].direction]
    num_rows = num_sequences * sum(max(0.0, mean_length - k) for k in distances)  # no more than there are (Jensen)
    num_queries = num_sequences * num_latents * model.predictor.num_steps
    per_observation = {
        modality.unit: 4 * training.dataset.num_values,
        "queries": 4 * num_queries * model.encoder.dim,
        "the table of who meets whom": modality.batch_size * num_sequences**2 * num_latents,
        f"draws of model.loss.init_args.num_negatives={num_negatives}": BYTES_PER_NEGATIVE
        * num_rows
        * (num_negatives or 0),
    }
    gigabytes = {what: modality.batch_size * size / 1e9 for what, size in per_observation.items() if size}
    on_cpu = device.type == "cpu"
    there = memory_bytes() if on_cpu else torch.cuda.get_device_properties(device).total_memory
    if sum(gigabytes.values()) > there / 1e9:
        parts = ", ".join(f"{what} {size:.1f}" for what, size in gigabytes.items())
        raise ValueError(
            f"a step on data.batch_size={modality.batch_size} {modality.unit} of {training.dataset.num_values} values "
            f"needs at least {sum(gigabytes.values()):.0f} GB ({parts}), and this {'machine' if on_cpu else 'device'} "
            f"has {there / 1e9:.0f}: lower data.batch_size, data.{modality.size_option} or "
            "model.loss.init_args.num_negatives"
        )
