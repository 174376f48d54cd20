"""Negative strategies: which sequences' latents are negatives (Table 2 of van den Oord et al. 2018).

B sequences that are predicted, S that lend candidates. Row b of an `allowed` matrix says which sequences lend their
latents to the queries of b.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from cpc.data.tensors import check_tensor

Strategy = Literal["mixed", "same_speaker", "mixed_excluding", "same_speaker_excluding", "sequence_only"]

# From 0 or 1 for a pair of sequences, or from numbers of latents of those that a sequence makes such pairs with: all
# sequences, the same one, those of the same speaker, and what is in both.
_RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "mixed": lambda every, same, speaker, both: every,
    "same_speaker": lambda every, same, speaker, both: speaker,
    "mixed_excluding": lambda every, same, speaker, both: every - same,
    "same_speaker_excluding": lambda every, same, speaker, both: speaker - both,
    "sequence_only": lambda every, same, speaker, both: same,
}
STRATEGIES: tuple[str, ...] = get_args(Strategy)
BANK = "bank"  # not a strategy to train with: stored latents of all other sequences
MOST_DRAW_EXCESS_NATS = 0.1


def allowed_matrix(
    strategy: str,
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    lender_sequence_id: Int[Tensor, " S"] | None = None,
    lender_group_id: Int[Tensor, " S"] | None = None,
) -> Bool[Tensor, "B S"]:
    """Which sequences (columns) give candidates to the queries of which (rows).

    Args:
        strategy: a name in `STRATEGIES`.
        sequence_id: sequences that may overlap share an id: windows of one file, columns of one image.
        group_id: the speaker; needed by the same-speaker strategies, -1 where unknown.
        lender_sequence_id: of the sequences that give candidates; None: the same sequences.
        lender_group_id: their speakers.

    Raises:
        ValueError: on an unknown strategy, or a same-speaker strategy without speakers.
    """
    given = {"sequence_id": sequence_id, "group_id": group_id}
    given |= {"lender_sequence_id": lender_sequence_id, "lender_group_id": lender_group_id}
    for name, each in given.items():
        if each is not None:
            check_tensor(name, each, "integers", ("S" if name.startswith("lender") else "B",))
    if lender_sequence_id is None:
        lender_sequence_id, lender_group_id = sequence_id, group_id
    _check(strategy, group_id, lender_group_id)
    same = speaker = (rearrange(sequence_id, "b -> b 1") == rearrange(lender_sequence_id, "s -> 1 s")).char()
    if group_id is not None and lender_group_id is not None:
        speaker = (rearrange(group_id, "b -> b 1") == rearrange(lender_group_id, "s -> 1 s")).char()
    return _RULES[strategy](torch.ones_like(same), same, speaker, same * speaker).bool()


def num_candidates_of(
    strategy: str,
    num_valid: Int[Tensor, " B"],
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    within: Int[Tensor, " B"] | None = None,
) -> Int[Tensor, " B"]:
    """How many latents each sequence is lent: the sums of the allowed matrix, without the matrix.

    Args:
        strategy: as of `allowed_matrix`, which raises what is raised here, as `group_id` and `sequence_id` are.
        num_valid: how many latents each sequence has to lend.
        sequence_id: of each.
        group_id: of each.
        within: sequences lend to those alone that have the same number here, such as that of a rank; None: to all.
    """
    _check(strategy, group_id)
    part = torch.zeros_like(sequence_id) if within is None else within
    speaker = sequence_id if group_id is None else group_id

    def of_equal(*ids: Tensor) -> Tensor:
        _, place = torch.unique(torch.stack([part, *ids]), dim=1, return_inverse=True)
        return torch.zeros_like(num_valid).index_add(0, place, num_valid)[place]

    return _RULES[strategy](of_equal(), of_equal(sequence_id), of_equal(speaker), of_equal(sequence_id, speaker))


def identities_read(
    strategy: str, sequence_id: Int[Tensor, " B"], group_id: Int[Tensor, " B"] | None
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"] | None]:
    """Those that decide who meets whom: distinct sequences, and no groups, where the strategy does not read them."""
    reads_speakers, reads_sequences = strategy.startswith("same_speaker"), strategy not in ("mixed", "same_speaker")
    sequence_id = sequence_id if reads_sequences else torch.arange(len(sequence_id))
    return sequence_id, group_id if reads_speakers else None


def includes_own_sequence(strategy: str) -> bool:
    """Whether a sequence's own latents are among its candidates."""
    return bool(_RULES[strategy](1, 1, 1, 1))


def _check(strategy: str, *group_ids: Tensor | None) -> None:
    if strategy not in _RULES:
        raise ValueError(f"negatives={strategy!r} is not one of {', '.join(STRATEGIES)}")
    if strategy.startswith("same_speaker") and any(ids is None or bool((ids < 0).any()) for ids in group_ids):
        raise ValueError(
            f"negatives={strategy!r} needs the speaker of every sequence; give the manifest a 'speaker' column or "
            "choose another strategy (model.loss.init_args.negatives)"
        )


def check_num_valid(num_valid: Int[Tensor, " B"], num_latents: int) -> None:
    """Refuse sequences that are said to have more latents than they have: a row's target would be another sequence's.

    Raises:
        ValueError: naming the counts.
    """
    fewest, most = (int(end) for end in num_valid.aminmax())
    if fewest < 0 or most > num_latents:
        raise ValueError(
            f"num_valid={most if most > num_latents else fewest} of {num_latents} latents: it counts latents, from 0 "
            f"to {num_latents}, not samples; give encoder.num_latents(samples)"
        )


def bounds_information(strategy: str) -> bool:
    """Whether `log N - L` with this strategy, or against a bank, bounds I(z_{t+k}; c_t) from below.

    With many independent sequences, or latents that mix fast within a sequence: docs/theory.md says why, and by how
    much the reading errs otherwise (what is constant within a sequence is drawn once per sequence, not per latent).
    """
    return strategy in ("mixed_excluding", BANK)


def reading_of(strategy: str, on_grid: bool = False, draw_excess_nats: float = 0.0) -> str:
    """What a curve of `log N - L` with this strategy is, in words for a legend.

    Args:
        strategy: which latents were the candidates.
        on_grid: latents are patches; rows are not exchangeable then, and those that no positive can lie in give
            themselves away (docs/theory.md).
        draw_excess_nats: what repeated draws may add (`cpc.candidates.draw_excess_nats`); beyond 0.1 nats, which a
            fifth of the pool amounts to, the number is called "not a bound".
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
