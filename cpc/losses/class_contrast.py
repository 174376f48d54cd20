"""Every step's class told among those of a table: the training loss of a language model.

K prediction steps, B sequences, T tokens, D dims of the classes.
"""

from collections.abc import Callable, Sequence

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.strategies import check_num_valid
from cpc.losses.candidate_loss import ClassLoss
from cpc.losses.contrast import Contrast


def class_contrast(
    queries: Float[Tensor, "K B T D"],
    labels: Int[Tensor, "B L"],
    find: Callable[[Tensor, Tensor], ClassLoss],
    *,
    ahead: Sequence[int],
    num_valid: Int[Tensor, " B"] | None = None,
) -> Contrast:
    """Find the class of what follows k steps later with the query W_k c_t, for every step k and every t.

    As `cpc.losses.contrast`, with classes for latents: a row is a t that is valid and whose class k steps later is
    known. log N is that of the candidates met, n for the full softmax, and N - 1 of them drawn for a sampled one.

    Args:
        queries: W_k c_t, steps first.
        labels: the class of what follows each place: `labels[:, t + k - 1]` lies k after t, negative where unknown.
        find: the loss of finding targets `[M]` with queries `[M, D]`; called once for each step that has rows.
        ahead: k of each step.
        num_valid: how many t of each sequence are no padding; None: all.

    Raises:
        ValueError: if there are too few labels for the furthest step, none is known, or `num_valid` counts more places
            than there are.
    """
    num_steps, num_sequences, num_places, _ = queries.shape
    if labels.shape[1] < num_places + max(ahead) - 1:
        raise ValueError(
            f"{num_places} places and {max(ahead)} steps ahead need {num_places + max(ahead) - 1} labels, got "
            f"{labels.shape[1]}"
        )
    if num_valid is not None:
        check_num_valid(num_valid, num_places)
    sequence = repeat(torch.arange(num_sequences, device=queries.device), "b -> (b t)", t=num_places)
    losses: list[Tensor] = []
    dtype = torch.float64 if queries.dtype == torch.float64 else torch.float32
    sums = queries.new_zeros(6, num_steps, num_sequences, dtype=dtype)
    for step, (of_step, k) in enumerate(zip(queries, ahead, strict=True)):
        of_places = labels[:, k - 1 : k - 1 + num_places]
        rows = rearrange(is_row(of_places, num_valid), "b t -> (b t)").nonzero().flatten()
        if len(rows) == 0:
            continue
        met, targets = rearrange(of_step, "b t d -> (b t) d")[rows], rearrange(of_places, "b t -> (b t)")[rows]
        row = find(met, targets)
        losses.append(row.loss)
        counts = row.num_candidates.to(dtype)
        ones, zeros = torch.ones_like(counts), torch.zeros_like(counts)
        per_row = torch.stack([ones, row.loss_nats, counts.log(), counts, row.accuracy, zeros])
        sums[:, step].index_add_(1, sequence[rows], per_row.to(dtype))
    if not losses:
        raise ValueError("no place of the batch has a known class ahead of it: there is nothing to be found")
    return Contrast(torch.stack(losses).mean(), *sums)


def is_row(of_places: Int[Tensor, "B T"], num_valid: Int[Tensor, " B"] | None = None) -> Bool[Tensor, "B T"]:
    """Which places have a class to be found: they are no padding, and the class is known.

    Args:
        of_places: the class to be found from each place, negative where unknown.
        num_valid: how many places of each sequence are no padding; None: all.
    """
    is_known = of_places >= 0
    if num_valid is None:
        return is_known
    return is_known & (torch.arange(of_places.shape[1], device=of_places.device) < rearrange(num_valid, "b -> b 1"))
