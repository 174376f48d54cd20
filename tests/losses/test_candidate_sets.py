"""Who meets whom: in blocks, for candidates of several processes, and apart from all arithmetic."""

import torch
from einops import repeat
from refusals import refuses

from cpc.candidates import STRATEGIES, allowed_matrix
from cpc.losses.candidate_sets import Plan, plan
from cpc.losses.engine.blocks import Block, layout_of, split_scores
from cpc.losses.sequences import Geometry, Sequences

B, T = 6, 8
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
SEQUENCE = repeat(torch.arange(B), "b -> (b t)", t=T)


def strategy_blocks(strategy: str) -> tuple[Block, ...]:
    allowed = allowed_matrix(strategy, torch.arange(B), GROUPS)
    rows = (torch.arange(B * T) % T < T - 2).nonzero()[:, 0]
    return split_scores(allowed[:, SEQUENCE], SEQUENCE[rows], rows + 2)


def test_shut_out_sequences_are_not_scored() -> None:
    """sequence_only scores a sixth of the matrix, a speaker's rows half of it; the others need nearly all."""
    sizes = {
        strategy: [
            (len(b.positives), B * T if b.columns is None else len(b.columns)) for b in strategy_blocks(strategy)
        ]
        for strategy in STRATEGIES
    }
    whole = [(B * (T - 2), B * T)]
    assert sizes["mixed"] == sizes["mixed_excluding"] == whole
    assert sizes["same_speaker"] == sizes["same_speaker_excluding"] == [(3 * (T - 2), 3 * T)] * 2
    assert sizes["sequence_only"] == [(T - 2, T)] * B


def test_batches_alike_share_a_plan() -> None:
    """Plans depend on which identities are equal, and on unknown speakers, not on what they are called."""

    def planned(strategy: str, sequence_id: list[int], group_id: list[int] | None = None) -> Plan:
        num_latents = torch.tensor([5, 6, 6, 4, 5][: len(sequence_id)])
        groups = None if group_id is None else torch.tensor(group_id)
        return plan(
            strategy, Sequences(Geometry((6,), ("",), (1, 2, 3)), num_latents, torch.tensor(sequence_id), groups)
        )

    one = planned("mixed_excluding", [7, -3, 7, -4], [2, 2, 5, -1])
    assert planned("mixed_excluding", [0, 1, 0, 9], [8, 4, 0, -1]) is one  # it reads no speakers
    assert planned("mixed_excluding", [0, 1, 2, 9]) is not one
    one = planned("same_speaker_excluding", [7, -3, 7, -4], [2, 2, 2, 2])
    assert planned("same_speaker_excluding", [0, 1, 0, 9], [8, 8, 8, 8]) is one
    for ids in ([0, 1, 2, 9], [8, 8, 8, 8]), ([0, 1, 0, 9, 3], [8, 8, 8, 3, 3]):
        assert planned("same_speaker_excluding", *ids) is not one
    refuses("needs the speaker of every sequence", planned, "same_speaker", [0, 1, 0, 9], [2, 2, 2, -1])
    assert planned("mixed", [0, 0, 0, 0], [-1, 2, 3, 4]) is planned("mixed", [0, 1, 0, 9])


def test_a_plan_made_without_gradients_serves_with_them() -> None:
    """What inference mode makes, a compiled step may not keep for its backward pass."""
    with torch.inference_mode():
        rows, _ = plan("mixed", Sequences(Geometry((6,), ("",), (1, 2, 3)), torch.tensor([5, 6])))
        layout = layout_of(rows)
    tensors = [*vars(rows).values(), *layout, *layout.blocks[0]]
    assert not any(each.is_inference() for each in tensors if isinstance(each, torch.Tensor))
