import torch
from einops import repeat
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc.candidates import STRATEGIES, allowed_matrix
from cpc.losses.plan import blocks

B, T = 6, 8
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
SEQUENCE = repeat(torch.arange(B), "b -> (b t)", t=T)


def strategy_blocks(strategy: str) -> list:
    allowed = allowed_matrix(strategy, torch.arange(B), GROUPS)
    rows = (torch.arange(B * T) % T < T - 2).nonzero()[:, 0]
    return blocks(allowed[:, SEQUENCE], allowed, SEQUENCE[rows], SEQUENCE, rows + 2)


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
    for block in blocks(pool, allowed, row_sequence, candidate_sequence, positives):
        rows = torch.arange(len(positives)) if block.rows is None else block.rows
        columns = torch.arange(num_candidates) if block.columns is None else block.columns
        seen[rows] += 1
        assert torch.equal(columns[block.positives[:, 0]], positives[rows])
        assert torch.equal(columns[block.places(negatives)], negatives[rows])
        for i, row in enumerate(rows.tolist()):
            mask = torch.ones(len(columns), dtype=torch.bool) if block.pool is None else block.pool[block.sequence[i]]
            met = set(columns[mask].tolist()) - {positives[row].item()}
            assert met == set(pool[row_sequence[row]].nonzero()[:, 0].tolist()) - {positives[row].item()}
    assert (seen == 1).all()
