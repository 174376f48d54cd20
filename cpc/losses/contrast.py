"""The loss of every prediction step of a batch of sequences: z_{t+k} among latents, or its class among all classes.

K steps, B sequences, T latents, D latent dim.
"""

from collections.abc import Callable, Sequence

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.draws import draw_excess_nats
from cpc.losses.info_nce import loss_of_rows
from cpc.losses.plan import Plan, Sequences, plan
from cpc.losses.result import Contrast, RowLosses, mean_over_steps, summed


def contrast(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    *,
    strategy: str = "mixed",
    num_valid: Int[Tensor, " B"] | None = None,
    sequence_id: Int[Tensor, " B"] | None = None,
    group_id: Int[Tensor, " B"] | None = None,
    num_negatives: int | None = None,
    shared_across_steps: bool = False,
    skip_steps: int = 0,
    generator: torch.Generator | None = None,
    compute: str = "float32",
) -> Contrast:
    """Score z_{t+k} against the row's candidates with the query W_k c_t, for every step k and every t.

    Candidates are all valid latents of the allowed sequences, the same set for every k, plus the positive.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        strategy: whose latents a sequence is compared with, a name in `cpc.candidates.STRATEGIES`.
        num_valid: how many latents of each sequence are signal (the rest is padding, neither target nor candidate);
            None: all.
        sequence_id: sequences that may overlap share an id; None: all distinct.
        group_id: the speaker of each sequence, -1 where unknown.
        num_negatives: drawn per row and step, uniformly with replacement; None: all candidates.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does; where such a draw is z_{t+k}
            itself it is drawn anew for that step, so that each step's draws stay uniform over its negatives.
        skip_steps: the first step is k = skip_steps + 1: the latents between are neither predicted nor left out of the
            candidates.
        generator: source of the draws.
        compute: precision of the products' operands, as in `info_nce`.

    Raises:
        ValueError: if `num_valid` counts more latents than there are, no sequence is longer than the first step, or
            the strategy leaves a row without negatives.
    """
    if latents.shape != queries.shape[1:]:
        raise ValueError(f"queries {tuple(queries.shape)} are [K, *latents], but latents are {tuple(latents.shape)}")
    num_steps, num_sequences, num_latents, _ = queries.shape
    sequences = Sequences.of((num_sequences, num_latents), num_valid, sequence_id, group_id)
    planned = plan(strategy, sequences, num_latents, num_steps, skip_steps)
    return contrast_planned(
        queries,
        latents,
        planned,
        num_negatives=num_negatives,
        shared_across_steps=shared_across_steps,
        generator=generator,
        compute=compute,
    )


def contrast_planned(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "S T D"],
    planned: Plan,
    *,
    num_negatives: int | None = None,
    shared_across_steps: bool = False,
    generator: torch.Generator | None = None,
    compute: str = "float32",
) -> Contrast:
    """`contrast` of a batch that is planned, on the host: for each direction of time the same plan."""
    device = latents.device
    there, excess, negatives = planned.on(device), None, None
    if num_negatives is not None:
        excess = draw_excess_nats(num_negatives, planned.num_negatives).to(device, non_blocking=True)
        negatives = planned.draw(num_negatives, generator, shared_across_steps, device)
    of_rows, of_candidates = rearrange(queries, "k b t d -> (b t k) d"), rearrange(latents, "s t d -> (s t) d")
    row = loss_of_rows(of_rows, of_candidates, there, negatives, compute)
    return summed(row, there.step, there.sequence, *planned.size[:2], excess)


def class_contrast(
    queries: Float[Tensor, "K B T D"],
    labels: Int[Tensor, "B L"],
    find: Callable[[Tensor, Tensor], RowLosses],
    *,
    ahead: Sequence[int],
    num_valid: Int[Tensor, " B"] | None = None,
) -> Contrast:
    """Find the class of what follows k steps later with the query W_k c_t, for every step k and every t.

    As `contrast`, with classes for latents: a row is a t that is valid and whose class k steps later is known. log N is
    that of the candidates met, n for the full softmax, and N - 1 of them drawn for a sampled one.

    Args:
        queries: W_k c_t, steps first.
        labels: the class of what follows each place: `labels[:, t + k - 1]` lies k after t, negative where unknown.
        find: the loss of finding targets `[M]`, which it gets on the host, with queries `[M, D]`; called once for each
            step that has rows.
        ahead: k of each step.
        num_valid: how many t of each sequence are no padding; None: all.

    Raises:
        ValueError: if there are too few labels for the furthest step, none is known, or `num_valid` counts more places
            than there are.
    """
    num_steps, num_sequences, num_places, _ = queries.shape
    num_labels = num_places + max(ahead) - 1
    if labels.shape[1] < num_labels:
        raise ValueError(
            f"{num_places} places and {max(ahead)} steps ahead need {num_labels} labels, got {labels.shape[1]}"
        )
    num_valid = Sequences.of((num_sequences, num_places), num_valid).num_valid
    labels, found, steps, places = labels.cpu(), [], [], []
    for number, (asked, k) in enumerate(zip(queries, ahead, strict=True)):
        of_places = labels[:, k - 1 : k - 1 + num_places]
        rows = is_row(of_places, num_valid).flatten().nonzero()[:, 0]
        if len(rows) == 0:
            continue
        met = rearrange(asked, "b t d -> (b t) d")[rows.to(queries.device, non_blocking=True)]
        found.append(find(met, of_places.flatten()[rows]))
        steps.append(torch.full_like(rows, number))
        places.append(rows)
    if not found:
        raise ValueError("no place of the batch has a known class ahead of it: there is nothing to be found")
    of_rows = (torch.cat(steps), torch.cat(places) // num_places)
    step, sequence = (each.to(queries.device, non_blocking=True) for each in of_rows)
    return summed(mean_over_steps(found), step, sequence, num_steps, num_sequences)


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
