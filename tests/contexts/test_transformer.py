import pytest
import torch
from oracles import transformer_layer
from refusals import refuses

from cpc.contexts import CausalTransformer
from cpc.contexts.transformer import TransformerLayer, attend, rotate


@pytest.mark.parametrize("window", [None, 1, 4])
def test_layer_against_loops(window: int | None) -> None:
    layer = TransformerLayer(12, num_heads=3, feedforward_dim=7, window=window).double()
    x = torch.randn(2, 10, 12, dtype=torch.float64)
    expected = torch.stack([transformer_layer(layer, each, window) for each in x])
    torch.testing.assert_close(layer(x)[0], expected)


def test_rotation_leaves_distances_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)
    products = [float((rotate(query, 7 + shift) * rotate(key, 3 + shift)).sum()) for shift in (0, 1, 50, 3000)]
    assert products == pytest.approx([products[0]] * 4, abs=1e-9)
    assert float((rotate(query, 8) * rotate(key, 3)).sum()) != pytest.approx(products[0], abs=1e-3)


@pytest.mark.parametrize("window", [1, 5, 300])
def test_long_sequences_in_blocks_equal_one_banded_mask(window: int) -> None:
    queries = torch.randn(1, 2, 700, 4, dtype=torch.float64)
    keys, values = torch.randn(2, 1, 2, 790, 4, dtype=torch.float64)
    query_place, key_place = torch.arange(90, 790)[:, None], torch.arange(790)
    mask = (key_place <= query_place) & (key_place >= query_place - window)
    scores = (queries @ keys.mT / 2).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(attend(queries, keys, values, window, 0.0), scores.softmax(-1) @ values)


def test_state_is_bounded_by_the_window_alone() -> None:
    bounded = CausalTransformer(8, num_layers=2, num_heads=2, feedforward_dim=16, window=5)
    growing = CausalTransformer(8, num_layers=2, num_heads=2, feedforward_dim=16)
    for context, num_kept in ((bounded, 5), (growing, 43)):
        context.connect(8)
        _, state = context(torch.randn(3, 3, 8))
        assert [each.shape for each in state] == [(3, 2, 3, 4)] * 4
        _, state = context(torch.randn(3, 40, 8), state)
        assert [each.shape for each in state] == [(3, 2, num_kept, 4)] * 4
    _, state = bounded(torch.randn(3, 500, 8))
    assert all(each.untyped_storage().nbytes() == each.numel() * 4 for each in state), "no view of all 500"


def test_a_stream_stays_exact_however_long() -> None:
    context = CausalTransformer(8, num_layers=1, num_heads=2, feedforward_dim=16, window=4)
    context.connect(8)
    z = torch.randn(1, 9, 8)
    start_output = context(z)[0][:, -1]
    _, state = context(torch.randn(1, 50_000, 8))
    far_out, _ = context(z, state)
    torch.testing.assert_close(far_out[:, -1], start_output, rtol=0, atol=1e-5)


def test_heads_of_an_odd_width_are_refused() -> None:
    refuses("dim=12 is not a multiple of 2 . num_heads, with num_heads=4", CausalTransformer, 12, num_heads=4)
