"""Who meets whom: in blocks, for candidates of several processes, and apart from all arithmetic."""

import weakref

import pytest
import torch
from einops import repeat
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc.candidates import STRATEGIES, allowed_matrix
from cpc.losses import candidate_sets
from cpc.losses.candidate_sets import Plan, Share, plan
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import blocks
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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_every_row_keeps_its_positive_its_pool_and_its_draws(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_candidates = 12, 20
    allowed = torch.rand(4, 4, generator=generator) < 0.4
    row_sequence = torch.randint(4, (num_rows,), generator=generator)
    candidate_sequence = torch.randint(4, (num_candidates,), generator=generator)
    pool = allowed[:, candidate_sequence] & (torch.rand(num_candidates, generator=generator) < 0.8)
    positives = torch.randint(num_candidates, (num_rows,), generator=generator)
    has_pool = pool[row_sequence].any(1)
    row_sequence, positives = row_sequence[has_pool], positives[has_pool]
    if len(positives) == 0:
        return
    negatives = torch.multinomial(pool[row_sequence].float(), 3, replacement=True, generator=generator)
    seen = torch.zeros(len(positives), dtype=torch.long)
    for block in split_scores(pool, row_sequence, positives):
        rows = torch.arange(len(positives)) if block.rows is None else block.rows
        columns = torch.arange(num_candidates) if block.columns is None else block.columns
        seen[rows] += 1
        assert torch.equal(columns[block.positives[:, 0]], positives[rows])
        assert torch.equal(columns[block.columns_of(negatives)], negatives[rows])
        for i, row in enumerate(rows.tolist()):
            mask = (
                torch.ones(len(columns), dtype=torch.bool)
                if block.candidate_mask is None
                else block.candidate_mask[block.sequence[i]]
            )
            met = set(columns[mask].tolist()) - {positives[row].item()}
            assert met == set(pool[row_sequence[row]].nonzero()[:, 0].tolist()) - {positives[row].item()}
    assert (seen == 1).all()


@pytest.mark.parametrize("steps", [(1, 2, 3), (2, 5)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processes_plan_their_parts_of_the_whole(strategy: str, steps: tuple[int, ...]) -> None:
    """Two processes of three sequences each, with everyone's latents as candidates, have the rows and draws of one."""
    geometry, lengths = Geometry((6,), ("",), steps), torch.tensor([6, 2, 5, 6, 4, 6])
    everyone = Sequences(geometry, lengths, torch.tensor([0, 1, 1, 2, 3, 2]), GROUPS % 2)
    whole, _ = plan(strategy, everyone)
    for rank in range(2):
        share = Share(rank, (3, 3))
        part, _ = plan(strategy, everyone, share)
        mine = whole.sequence // 3 == rank
        assert torch.equal(part.positive_index, whole.positive_index[mine])
        assert torch.equal(part.step, whole.step[mine])
        assert torch.equal(layout_of(part).num_negatives, layout_of(whole).num_negatives[mine])
        assert torch.equal(part.candidate_mask, whole.candidate_mask[3 * rank : 3 * rank + 3])
        assert torch.equal(part.weight, 2 * whole.weight[mine])
        for is_shared in (False, True):
            ours, all_draws = (
                plan(strategy, everyone, each, 5, is_shared)[1].draw(torch.Generator().manual_seed(7))
                for each in (share, None)
            )
            assert torch.equal(ours, all_draws[mine])


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
    with pytest.raises(ValueError, match="needs the speaker of every sequence"):
        planned("same_speaker", [0, 1, 0, 9], [2, 2, 2, -1])
    assert planned("mixed", [0, 0, 0, 0], [-1, 2, 3, 4]) is planned("mixed", [0, 1, 0, 9])


def test_a_plan_on_a_device_keeps_nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def on_device(rows: CandidateSet, device: torch.device) -> CandidateSet:
        kept.append(weakref.ref(rows.candidate_mask))
        return blocks.on_device(rows, device)

    monkeypatch.setattr(candidate_sets, "on_device", on_device)
    sequences = Sequences(Geometry((7,), ("",), (1, 3)), torch.tensor([5, 7]), device=torch.device("meta"))
    rows, _ = plan("mixed_excluding", sequences)
    assert layout_of(rows).num_negatives.is_meta
    assert [each() for each in kept] == [None]


def test_a_plan_made_without_gradients_serves_with_them() -> None:
    """What inference mode makes, a compiled step may not keep for its backward pass."""
    with torch.inference_mode():
        rows, _ = plan("mixed", Sequences(Geometry((6,), ("",), (1, 2, 3)), torch.tensor([5, 6])))
        layout = layout_of(rows)
    tensors = [*vars(rows).values(), *layout, *layout.blocks[0]]
    assert not any(each.is_inference() for each in tensors if isinstance(each, torch.Tensor))
