"""A batch encoded in chunks, with one loss for the whole batch. Memory holds the activations of one chunk."""

from itertools import repeat

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cpc.data.batch import Batch
from cpc.losses.output import ContrastiveOutput
from cpc.model import CPC
from cpc.predictors import Output


def contrast_in_chunks(
    model: CPC, batch: Batch, num_chunks: int, generator: torch.Generator | None = None
) -> tuple[Output, ContrastiveOutput]:
    """Return the output and the loss of a batch, with the values of `model(batch.x)` and `model.contrast`.

    Latents, contexts and queries of all sequences are kept. All other activations are computed again, chunk by chunk,
    in the backward pass, for a third more arithmetic (gradient caching, Gao et al. 2021, arXiv:2101.06983). Random
    numbers of the forward pass, such as those of dropout, are the same both times.
    """

    def predict(x: Tensor, target: Tensor | None) -> Output:
        output = model(x)
        return output._replace(targets=output.targets if target is None else model.targets(target), state=None)

    targets = repeat(None) if batch.target is None else batch.target.chunk(num_chunks)
    chunks = [
        checkpoint(predict, x, target, use_reentrant=False)
        for x, target in zip(batch.x.chunk(num_chunks), targets, strict=False)
    ]
    output = chunks[0]._replace(
        latents=torch.cat([each.latents for each in chunks]),
        contexts=torch.cat([each.contexts for each in chunks]),
        queries={name: torch.cat([each.queries[name] for each in chunks], 1) for name in chunks[0].queries},
        targets=None if chunks[0].targets is None else torch.cat([each.targets for each in chunks]),
    )
    del chunks  # so that memory does not hold the queries twice
    return output, model.contrast(output, batch._replace(target=None), generator)
