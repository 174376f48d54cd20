"""Tokens as vectors, of their own or of the class table."""

import copy

import pytest
import torch
from refusals import refuses

from cpc.candidates.class_table import ClassTable
from cpc.encoders import TokenEncoder


def test_a_token_is_a_row_of_its_embedding() -> None:
    encoder = TokenEncoder(num_tokens=7, dim=4)
    x = torch.tensor([[0, 3, 3], [6, 1, 0]])
    assert torch.equal(encoder(x), encoder.embedding.weight[x])
    assert encoder.num_latents(5) == 5


def test_a_tied_encoder_embeds_with_the_table_and_holds_nothing() -> None:
    table, encoder = ClassTable(num_classes=7, dim=4), TokenEncoder(num_tokens=7, dim=4, is_tied=True)
    encoder.connect_classes(table)
    x = torch.tensor([[0, 3, 3]])
    encoder(x).sum().backward()
    assert torch.equal(encoder(x), table.weight[x])
    assert table.weight.grad.sum(1).tolist() == [4, 0, 0, 8, 0, 0, 0]
    assert not list(encoder.parameters())
    assert not encoder.state_dict()
    both = copy.deepcopy(torch.nn.ModuleList([encoder, table]))
    assert both[0]._table[0] is both[1]  # a copied model is tied to its own copy


def test_dropout_drops_channels_in_training_alone() -> None:
    encoder = TokenEncoder(num_tokens=3, dim=1000, dropout=0.4)
    x = torch.zeros(1, 1, dtype=torch.long)
    assert 300 < int((encoder(x) == 0).sum()) < 500
    assert int((encoder.eval()(x) == 0).sum()) == 0


def test_refusals() -> None:
    refuses("no class table", TokenEncoder(num_tokens=3, dim=2, is_tied=True), torch.zeros(1, 1, dtype=torch.long))
    refuses(r"class table is .* shape \[3, ", TokenEncoder(num_tokens=3, dim=2).connect_classes, ClassTable(4, 2))
    with pytest.raises(ValueError, match=r"the class table is .* of the shape \[\d+, 2\]"):
        TokenEncoder(num_tokens=3, dim=2, is_tied=True).connect_classes(ClassTable(3, 5))


@pytest.mark.parametrize("token", [-1, 9])
def test_ids_that_are_no_token_are_named(token: int) -> None:
    refuses(rf"from {min(token, 3)} to {max(token, 3)}, but the 9", TokenEncoder(9, 4), torch.tensor([[3, token]]))
