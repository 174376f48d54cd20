"""Candidates from elsewhere, met or drawn without a gradient; and the sizes at which the way to compute changes."""

import pytest
import torch
from oracles import info_nce_loss

import cpc.losses.tiles as tiles
from cpc.losses import InfoNCE, info_nce


def vectors(*lengths: int, dim: int = 5, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, dim, generator=generator, dtype=dtype) for length in lengths]


SEQUENCE = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
ALLOWED = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
POSITIVES = torch.tensor([0, 1, 4, 7])


def with_extra(queries: torch.Tensor, candidates: torch.Tensor, extra: torch.Tensor, **options: object) -> InfoNCE:
    return info_nce(
        queries,
        candidates,
        POSITIVES,
        query_sequence=SEQUENCE[POSITIVES],
        candidate_sequence=SEQUENCE,
        allowed=ALLOWED,
        extra=extra,
        **options,
    )


def test_extra_candidates_equal_the_loop_reference() -> None:
    queries, candidates, extra = vectors(4, 8, 6)
    log_q, extra_log_q = torch.linspace(-1, 1, 8).double(), torch.linspace(0, 2, 6).double()
    result = with_extra(queries, candidates, extra, log_q=log_q, extra_log_q=extra_log_q, temperature=0.3)
    scores = queries @ torch.cat([candidates, extra]).T / 0.3 - torch.cat([log_q, extra_log_q])
    sets = [
        [j for j in range(8) if j != p and ALLOWED[SEQUENCE[p], SEQUENCE[j]]] + list(range(8, 14))
        for p in POSITIVES.tolist()
    ]
    assert result.loss.item() == pytest.approx(info_nce_loss(scores, POSITIVES.tolist(), sets), rel=1e-12)
    assert result.num_candidates.tolist() == [1 + len(members) for members in sets]


def test_extra_candidates_are_a_single_rows_only_negatives() -> None:
    queries, candidates, extra = vectors(1, 1, 3)
    assert info_nce(queries, candidates, torch.tensor([0]), extra=extra).num_candidates.tolist() == [4]


@pytest.mark.parametrize("log_q", [None, torch.linspace(-1, 1, 6).double()])
def test_extra_candidates_move_queries_and_stay_where_they_are(log_q: torch.Tensor | None) -> None:
    queries, candidates, extra = (x.requires_grad_() for x in vectors(4, 8, 6))
    result = with_extra(queries, candidates, extra, extra_log_q=log_q)
    result.loss.backward()
    assert extra.grad is None
    assert torch.autograd.gradcheck(
        lambda q, c: with_extra(q, c, extra, extra_log_q=log_q).loss, (queries.detach().requires_grad_(), candidates)
    )


EXTRA_ALLOWED = torch.tensor([[True, False, True], [True, True, True], [False, False, False]])


def test_a_sequence_meets_the_extra_candidates_that_it_is_allowed() -> None:
    queries, candidates, extra = (x.requires_grad_() for x in vectors(4, 8, 3))
    result = with_extra(queries, candidates, extra, extra_allowed=EXTRA_ALLOWED)
    sets = [
        [j for j in range(8) if j != p and ALLOWED[SEQUENCE[p], SEQUENCE[j]]]
        + [8 + e for e in range(3) if EXTRA_ALLOWED[SEQUENCE[p], e]]
        for p in POSITIVES.tolist()
    ]
    scores = queries.detach() @ torch.cat([candidates, extra]).detach().T
    assert result.loss.item() == pytest.approx(info_nce_loss(scores, POSITIVES.tolist(), sets), rel=1e-12)
    assert result.num_candidates.tolist() == [1 + len(members) for members in sets]
    assert torch.autograd.gradcheck(
        lambda q, c: with_extra(q, c, extra, extra_allowed=EXTRA_ALLOWED).loss, (queries, candidates)
    )


@pytest.mark.parametrize("threshold", [100, 0])
def test_negatives_are_drawn_from_extra_candidates_too(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "GATHER_BEYOND", threshold)  # selected from all scores, or gathered
    queries, candidates, extra = (x.requires_grad_() for x in vectors(4, 8, 3))
    negatives = torch.tensor([[6, 10, 10], [8, 3, 9], [0, 9, 2], [2, 8, 5]])
    options = {"negatives": negatives, "extra": extra}
    scores = queries.detach() @ torch.cat([candidates, extra]).detach().T
    expected = info_nce_loss(scores, POSITIVES.tolist(), negatives.tolist())
    assert info_nce(queries, candidates, POSITIVES, **options).loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda q, c: info_nce(q, c, POSITIVES, **options).loss, (queries, candidates))
    drawn = info_nce(
        *(queries, 0 * candidates, POSITIVES),
        num_negatives=50,
        generator=torch.Generator().manual_seed(0),
        extra=1e3 * queries[:1].detach().expand(2, -1),
    )
    assert drawn.num_candidates.tolist() == [51] * 4
    assert drawn.loss_nats[0] > 100  # 2 of 9 are those, and one of them in 50 draws is all but certain


def test_a_temperature_that_learns() -> None:
    queries, candidates = vectors(4, 8)
    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t: info_nce(queries, candidates, POSITIVES, temperature=t).loss, (temperature,)
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_tiles_of_any_size_agree(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss_and_gradients() -> list[torch.Tensor]:
        queries, candidates, extra = (x.requires_grad_() for x in vectors(4, 8, 6))
        loss = with_extra(queries, candidates, extra).loss
        return [loss.detach(), *torch.autograd.grad(loss, (queries, candidates))]

    whole = loss_and_gradients()
    monkeypatch.setattr(tiles, "TILE_ROWS", rows)
    for found, wanted in zip(loss_and_gradients(), whole, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("with_bias", [False, True])
def test_gathered_negatives_equal_selected_ones(with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    negatives = torch.tensor([[6, 6, 2], [6, 3, 3], [0, 1, 2], [2, 6, 5]])
    log_q = torch.linspace(-1, 1, 8).double() if with_bias else None
    outcomes = []
    for threshold in (100, 0):
        monkeypatch.setattr(tiles, "GATHER_BEYOND", threshold)
        monkeypatch.setattr(tiles, "TILE_SCORES", 2**8)  # several tiles
        queries, candidates = (x.requires_grad_() for x in vectors(4, 8))
        result = info_nce(queries, candidates, POSITIVES, negatives=negatives, log_q=log_q)
        gradients = torch.autograd.grad(result.loss, (queries, candidates))
        outcomes.append([result.loss.detach(), result.loss_nats, result.accuracy, *gradients])
    for selected, gathered in zip(*outcomes, strict=True):
        torch.testing.assert_close(gathered, selected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": torch.zeros(3, 4)}, r"extra \(3, 4\) .* does not go with candidates \(8, 5\)"),
        ({"extra": torch.zeros(3, 5), "extra_log_q": torch.zeros(2)}, "extra_log_q has 2 entries for 3"),
        ({"extra_log_q": torch.zeros(2)}, "there are none: give extra too"),
        ({"temperature": torch.ones(2)}, "a number or a tensor of one element"),
        ({"extra_allowed": torch.ones(1, 3, dtype=torch.bool)}, "there are none: give extra too"),
        (
            {"extra": torch.zeros(3, 5), "extra_allowed": torch.ones(2, 3, dtype=torch.bool)},
            r"torch.bool \(2, 3\), needs to be torch.bool \(1, 3\)",
        ),
        (
            {"extra": torch.zeros(3, 5), "negatives": torch.full((4, 1), 11)},
            "8 candidates and 3 extra ones, got values from 11 to 11",
        ),
        (
            {
                "query_sequence": torch.tensor([0, 1, 2, 3]),
                "candidate_sequence": SEQUENCE,
                "allowed": torch.ones(3, 3, dtype=torch.bool),
            },
            r"allowed is torch.bool \(3, 3\), .* at least \(4, 3\)",
        ),
    ],
)
def test_bad_input_is_named(options: dict, message: str) -> None:
    queries, candidates = vectors(4, 8, dtype=torch.float32)
    check = (
        info_nce.__wrapped__ if hasattr(info_nce, "__wrapped__") else info_nce
    )  # annotations would refuse some first
    with pytest.raises(ValueError, match=message):
        check(queries, candidates, POSITIVES, **options)


def test_float64_goes_with_float64_alone() -> None:
    queries, candidates = vectors(4, 8)
    with pytest.raises(ValueError, match=r"queries are torch\.float64, candidates torch\.float32"):
        info_nce(queries, candidates.float(), POSITIVES)
