"""The bound of a model against a bank: far more candidates than a batch has, scored one and all.

K steps, B observations, S sequences, T latents, D latent dim.
"""

from typing import Any

import torch
from einops import rearrange

from cpc.bounds import BoundTally
from cpc.candidates import LatentBank
from cpc.contexts.grid import is_signal
from cpc.data.drawn import DrawnCorpus
from cpc.data.modality import HeldOutBatches
from cpc.losses import ContrastiveOutput, bank_loss
from cpc.losses.candidate_sets import rows_of
from cpc.losses.contrastive import Predictions, predictions
from cpc.losses.output import concatenate_directions
from cpc.model import CPC

_HELD_OUT = "mixed_excluding"  # uniform batches, as the bank's own


@torch.no_grad()
def bank_of_split(model: CPC, corpus: Any, split: str, num_latents: int, batch_size: int, seed: int) -> LatentBank:
    """Encode windows of a split, one pass at most, until the bank holds so many latents.

    Args:
        model: the encoder, in eval mode.
        corpus: of the held-out batches too: rows are known by its sequence ids.
        split: the part of the data.
        num_latents: of the bank, at most.
        batch_size: windows encoded at a time.
        seed: of the windows drawn.

    Raises:
        ValueError: if no latent is asked for, or the corpus has no windows to draw.
    """
    if num_latents < 1:
        raise ValueError(f"`bank_latents`={num_latents} must be at least 1")
    if not isinstance(corpus, DrawnCorpus):
        raise ValueError(
            f"bank={split!r}: a bank is filled with windows drawn from a split, and {type(corpus).__name__} draws none "
            "(it is no cpc.data.drawn.DrawnCorpus): leave --bank out"
        )
    windows, weights = corpus.windows(split), next(model.parameters())
    size = corpus.held_out_batch_size(windows, batch_size, 1)
    stream = corpus.batches(windows, "uniform", size, 1, seed)
    latents, sequences, num_stored = [], [], 0
    for index in range(max(1, stream.num_slots // size)):
        batch = windows.__getitems__(stream.batch(index)).beside(weights)
        z = model.targets(batch.x)
        kept = is_signal(z, model.in_latents(batch).num_valid)
        latents.append(z[kept].float().cpu())
        sequences.append(batch.sequence_id.cpu().repeat_interleave(kept.flatten(1).sum(1).cpu()))
        num_stored += len(latents[-1])
        if num_stored >= num_latents:
            break
    bank, of_bank = torch.cat(latents)[:num_latents], torch.cat(sequences)[:num_latents]
    return LatentBank(bank, of_bank, {"split": split})


@torch.no_grad()
def bank_tally(model: CPC, held_out: HeldOutBatches, bank: LatentBank) -> BoundTally:
    """Contrast this rank's held-out rows with the whole bank, less what it holds of a row's own sequence.

    The standard error of the bound is over batches, and holds the rows' chance alone: all meet the same bank.

    Raises:
        ValueError: if the bank holds nothing but a row's own sequence.
    """
    tally, weights = BoundTally(model.steps), next(model.parameters())
    for on_cpu in held_out.batches(_HELD_OUT):
        batch = on_cpu.beside(weights)
        output = model(batch.x)
        of_directions = [
            bank_contrast(each, bank, model.loss_part.skip_steps)
            for each in predictions(output, model.in_latents(batch)).values()
        ]
        tally.update(concatenate_directions(of_directions, len(batch.x)))
    return tally


def bank_contrast(predicted: Predictions, bank: LatentBank, skip_steps: int = 0) -> ContrastiveOutput:
    """`cpc.losses.contrast` with a bank instead of the batch: no gradients, and no draws."""
    queries, latents, sequences = predicted
    num_steps, num_sequences, num_latents, _ = queries.shape
    query, step, sequence, target = rows_of(sequences.num_valid, num_latents, num_steps, skip_steps)
    flat, targets = rearrange(queries, "k s t d -> (s t k) d"), rearrange(latents, "s t d -> (s t) d")
    sums = torch.zeros(6, num_steps, num_sequences, device=latents.device)
    losses = []
    for place in step.unique().tolist():
        rows = step == place
        of_row = sequence[rows]
        ids = sequences.sequence_id[of_row].to(latents.device)
        found = bank_loss(flat[query[rows]], targets[target[rows]], bank, sequence_id=ids)
        counts = found.num_candidates.float()
        ones, zeros = torch.ones_like(counts), torch.zeros_like(counts)
        row_queries = torch.stack([ones, found.loss_nats.float(), counts.log(), counts, found.accuracy, zeros])
        sums[:, place].index_add_(1, of_row.to(latents.device), row_queries.to(sums))
        losses.append(found.loss)
    return ContrastiveOutput(torch.stack(losses).mean() if losses else sums.new_zeros(()), *sums)
