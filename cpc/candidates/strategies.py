"""Negative strategies: which sequences supply the negatives (Table 2 of van den Oord et al. 2018).

B sequences with queries, S sequences with candidates. Entry (b, s) of an `allowed` matrix is True if the latents of
sequence s are candidates of the queries of sequence b.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from cpc.config.argument_rules import Choices
from cpc.data.tensors import check_tensor

Strategy = Literal["mixed", "same_speaker", "mixed_excluding", "same_speaker_excluding", "sequence_only"]

# Each rule takes four indicators (0 or 1) of a pair of sequences: any pair, same sequence, same speaker, both the same.
# Rules are linear. So they also accept four counts of latents for a sequence: the sum over all sequences that form a
# pair of each kind with it.
_RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "mixed": lambda every, same, speaker, both: every,
    "same_speaker": lambda every, same, speaker, both: speaker,
    "mixed_excluding": lambda every, same, speaker, both: every - same,
    "same_speaker_excluding": lambda every, same, speaker, both: speaker - both,
    "sequence_only": lambda every, same, speaker, both: same,
}
STRATEGIES: tuple[str, ...] = get_args(Strategy)
BANK = "bank"  # stored latents of all other sequences; only for evaluation
MOST_DRAW_EXCESS_NATS = 0.1


def allowed_matrix(
    strategy: str,
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    candidate_sequence_id: Int[Tensor, " S"] | None = None,
    candidate_group_id: Int[Tensor, " S"] | None = None,
) -> Bool[Tensor, "B S"]:
    """Return the matrix of sequences (columns) that supply candidates to the queries of a sequence (rows).

    Args:
        strategy: a name in `STRATEGIES`.
        sequence_id: one id per sequence; sequences that may overlap share an id (windows of one file, columns of one
            image).
        group_id: the speaker of each sequence, -1 if unknown; the same-speaker strategies need it.
        candidate_sequence_id: ids of the sequences that supply candidates; None: `sequence_id`.
        candidate_group_id: the speakers of these sequences.

    Raises:
        ValueError: if the strategy is unknown, or is a same-speaker strategy and a speaker is unknown.
    """
    arguments = {"sequence_id": sequence_id, "group_id": group_id}
    arguments |= {"candidate_sequence_id": candidate_sequence_id, "candidate_group_id": candidate_group_id}
    for name, ids in arguments.items():
        if ids is not None:
            check_tensor(name, ids, "integers", ("S" if name.startswith("candidate") else "B",))
    if candidate_sequence_id is None:
        candidate_sequence_id, candidate_group_id = sequence_id, group_id
    _check(strategy, group_id, candidate_group_id)
    same = speaker = (rearrange(sequence_id, "b -> b 1") == rearrange(candidate_sequence_id, "s -> 1 s")).char()
    if group_id is not None and candidate_group_id is not None:
        speaker = (rearrange(group_id, "b -> b 1") == rearrange(candidate_group_id, "s -> 1 s")).char()
    return _RULES[strategy](torch.ones_like(same), same, speaker, same * speaker).bool()


def num_candidates_of(
    strategy: str,
    num_latents: Int[Tensor, " B"],
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    within: Int[Tensor, " B"] | None = None,
) -> Int[Tensor, " B"]:
    """Return the number of candidate latents of each sequence: the product of `allowed_matrix` and `num_latents`.

    The matrix is never built. `within` has one number per sequence, such as its rank: a sequence supplies candidates
    only to sequences with the same number. None: every sequence supplies candidates to all.
    """
    _check(strategy, group_id)
    block = torch.zeros_like(sequence_id) if within is None else within
    speaker = sequence_id if group_id is None else group_id

    def num_latents_of_equal(*ids: Tensor) -> Tensor:
        _, index = torch.unique(torch.stack([block, *ids]), dim=1, return_inverse=True)
        return torch.zeros_like(num_latents).index_add(0, index, num_latents)[index]

    pairs = ((), (sequence_id,), (speaker,), (sequence_id, speaker))
    return _RULES[strategy](*(num_latents_of_equal(*ids) for ids in pairs))


def identities_read(
    strategy: str, sequence_id: Int[Tensor, " B"], group_id: Int[Tensor, " B"] | None
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"] | None]:
    """Return sequence and group ids for a strategy. Ids that it ignores are replaced, by distinct ids or by None."""
    reads_speakers, reads_sequences = strategy.startswith("same_speaker"), strategy not in ("mixed", "same_speaker")
    sequence_id = sequence_id if reads_sequences else torch.arange(len(sequence_id))
    return sequence_id, group_id if reads_speakers else None


def includes_own_sequence(strategy: str) -> bool:
    """Return whether the latents of a sequence are among the candidates of its own queries."""
    return bool(_RULES[strategy](1, 1, 1, 1))


def _check(strategy: str, *group_ids: Tensor | None) -> None:
    Choices(STRATEGIES).check("negatives", strategy)
    if strategy.startswith("same_speaker") and any(ids is None or bool((ids < 0).any()) for ids in group_ids):
        raise ValueError(f"negatives={strategy!r} needs the speaker of every sequence (a column of the manifest)")


def check_num_latents(num_latents: Int[Tensor, " B"], most: int) -> None:
    """Raise ValueError if an entry is negative or exceeds `most`, since targets would lie in another sequence."""
    if len(num_latents) == 0:  # a rank without sequences
        return
    lowest, highest = (int(end) for end in num_latents.aminmax())
    if lowest < 0 or highest > most:
        given = highest if highest > most else lowest
        raise ValueError(f"num_latents={given} must count latents, from 0 to {most}, not samples")


def check_length(longest: int, nearest: int) -> None:
    """Raise ValueError if the longest sequence, or column of a grid, has no latent `nearest` ahead of another."""
    if longest <= nearest:
        needs = f"a prediction {nearest} ahead (the first of `predictor.steps`) needs at least {nearest + 1}"
        raise ValueError(f"the longest sequence has {longest} latents, but {needs}")


def check_rows(
    strategy: str,
    num_latents: Int[Tensor, " B"],
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    nearest: int = 1,
) -> None:
    """Raise ValueError if a batch has no rows, or a row no negatives; only lengths and identities are read."""
    check_length(int(num_latents.max()), nearest)
    is_own = int(includes_own_sequence(strategy))
    num_negatives = num_candidates_of(strategy, num_latents, sequence_id, group_id) - is_own
    has_no_negatives = (num_negatives < 1) & (num_latents > nearest)
    if bool(has_no_negatives.any()):
        num = f"{int(has_no_negatives.sum())} of {len(num_latents)} sequences of a batch without a negative"
        raise ValueError(f"negatives={strategy!r} leaves {num}: raise `batch_size`, or set `sampler`=same_speaker")


def bounds_information(strategy: str) -> bool:
    """Return whether `log N - L` with this strategy, or against a bank, is a lower bound on I(z_{t+k}; c_t).

    The bound needs many independent sequences, or latents that mix fast within a sequence. Otherwise the estimate is
    biased, because a property that is constant within a sequence is sampled once per sequence, not once per latent;
    docs/theory.md derives the size of the bias.
    """
    return strategy in ("mixed_excluding", BANK)


def interpretation(strategy: str, on_grid: bool = False, draw_excess_nats: float = 0.0) -> str:
    """Return the legend of a curve of `log N - L` with this strategy: what it measures, and whether it is a bound.

    Args:
        strategy: a name in `STRATEGIES`, or `BANK`.
        on_grid: whether latents are patches of an image. Rows of patches are not exchangeable: a critic can rule out
            rows that cannot hold a positive (docs/theory.md).
        draw_excess_nats: most nats that repeated negatives add (`cpc.candidates.draw_excess_nats`). Above 0.1
            nats, reached when about a fifth of the pool is drawn, the legend says "not a bound".
    """
    if bounds_information(strategy):
        if draw_excess_nats > MOST_DRAW_EXCESS_NATS:
            return "drawn negatives repeat, not a bound on I(z; c)"
        excesses = ["log(H / (H - k))"] * on_grid + [str(MOST_DRAW_EXCESS_NATS)] * (draw_excess_nats > 0)
        plus = f" plus up to {' + '.join(excesses)}" if excesses else ""
        return f"lower bound on I(z; c){plus}, " + (
            "for H rows" if on_grid else "if latents mix fast within a sequence"
        )
    if strategy == "same_speaker_excluding":
        return "information given the speaker, not a bound on I(z; c)"
    return "in-sequence candidates, not a bound on I(z; c)"
