"""The bound of a model against a bank, which has far more candidates than a batch.

B observations, L latents of each, D latent dim.
"""

from typing import Any

import torch
from einops import rearrange

from cpc.bounds import BoundTally
from cpc.candidates import LatentBank
from cpc.config.argument_rules import Range
from cpc.contexts.grid import is_signal
from cpc.data.map_style import MapStyleCorpus
from cpc.data.modality import HeldOutBatches
from cpc.data.tensors import moved
from cpc.losses import ContrastiveOutput, bank_loss
from cpc.losses.contrastive import flat_queries, predicted
from cpc.losses.output import RowLosses, sum_by_step
from cpc.losses.sequences import Sequences, rows_mask, rows_of
from cpc.model import CPC
from cpc.predictors import Output

_HELD_OUT = "mixed_excluding"  # batches of this strategy are uniform, like the batches that fill the bank


@torch.no_grad()
def bank_of_split(model: CPC, corpus: Any, split: str, num_latents: int, batch_size: int, seed: int) -> LatentBank:
    """Encode windows of a split, at most once each, until the bank holds `num_latents`.

    The corpus must also be the source of the held-out batches, since sequence ids of rows and bank are compared.
    """
    Range(1).check("`bank_latents`", num_latents)
    if not isinstance(corpus, MapStyleCorpus):
        raise ValueError(f"bank={split!r}: a {type(corpus).__name__} cannot draw windows to fill a bank")
    windows, weights = corpus.windows(split), next(model.parameters())
    size = corpus.held_out_batch_size(windows, batch_size, 1)
    stream = corpus.batches(windows, "uniform", size, seed)
    latents, sequences, num_stored = [], [], 0
    for index in range(max(1, stream.num_slots // size)):
        batch = windows.__getitems__(stream.batch(index)).beside(weights)
        z = model.targets(batch.x)
        kept = is_signal(z, *model.lengths(batch))
        latents.append(z[kept].float().cpu())
        sequences.append(batch.sequence_id.repeat_interleave(kept.flatten(1).sum(1).cpu()))
        num_stored += len(latents[-1])
        if num_stored >= num_latents:
            break
    bank, bank_sequences = torch.cat(latents)[:num_latents], torch.cat(sequences)[:num_latents]
    return LatentBank(bank, bank_sequences)


@torch.no_grad()
def bank_tally(model: CPC, held_out: HeldOutBatches, bank: LatentBank) -> BoundTally:
    """Return the tally of this rank's held-out rows. The candidates of a row are the bank without its own sequence.

    The standard error of the bound is over batches. It covers only the choice of rows, since all rows use the same
    bank.
    """
    tally, weights = BoundTally(model.steps), next(model.parameters())
    for on_cpu in held_out.batches(_HELD_OUT):
        batch = on_cpu.beside(weights)
        output = model(batch.x)
        tally.update(bank_contrast(output, model.sequences(output, batch), bank))
    return tally


def bank_contrast(output: Output, sequences: Sequences, bank: LatentBank) -> ContrastiveOutput:
    """Return the sums of `cpc.losses.Contrastive` with all latents of a bank as candidates, without gradients.

    The loss is the mean over rows.
    """
    geometry, positives = sequences.geometry, rearrange(predicted(output), "b ... d -> (b ...) d")
    has_row = rows_mask(sequences.is_valid, geometry)
    query, step, sequence, target = moved(rows_of(has_row, geometry), positives.device)
    none = torch.zeros(0, device=positives.device)
    found = RowLosses(none.sum(), none, none.long(), none)
    if len(query) > 0:
        ids = sequences.ids.to(positives.device)[sequence]
        found = bank_loss(flat_queries(output)[query], positives[target], bank, sequence_id=ids)
    return sum_by_step(found, step, sequence, geometry.num_steps, len(sequences.num_latents))
