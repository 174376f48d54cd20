"""Tests of class vectors by id or all at once, with dense gradients or gradients of only the scored classes."""

import pytest
import torch
import torch.nn.functional as F

from cpc.candidates import ClassTable

IDS = torch.tensor([[3, 0], [3, 6]])
MORE_THAN_CLASSES = IDS.repeat(2, 2)


@pytest.mark.parametrize("is_normalised", [False, True])
def test_classes_by_id_are_rows_of_all(is_normalised: bool) -> None:
    table = ClassTable(7, 4, has_bias=True, is_normalised=is_normalised)
    torch.nn.init.normal_(table.bias)
    for ids in (IDS, MORE_THAN_CLASSES):
        torch.testing.assert_close(table.vectors(ids), table.vectors()[ids])
    torch.testing.assert_close(table.biases(IDS), table.biases()[IDS])
    if is_normalised:
        torch.testing.assert_close(table.vectors().norm(dim=1), torch.ones(7))
        torch.testing.assert_close(table.normalised(torch.tensor([3.0, 0.0, 4.0, 0.0])), torch.tensor([0.6, 0, 0.8, 0]))
    else:
        torch.testing.assert_close(table.vectors(), table.weight)


def test_no_bias_unless_asked_for() -> None:
    table = ClassTable(7, 4)
    assert table.biases() is None
    assert table.biases(IDS) is None


@pytest.mark.parametrize("ids", [IDS, MORE_THAN_CLASSES], ids=["few", "many"])
@pytest.mark.parametrize("is_normalised", [False, True])
def test_sparse_gradients_equal_dense_ones(is_normalised: bool, ids: torch.Tensor) -> None:
    gradients = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = ClassTable(7, 4, has_bias=True, is_normalised=is_normalised, has_sparse_gradients=sparse)
        (table.vectors(ids).sin().sum() + (table.biases(ids) + 1).square().sum()).backward()
        assert table.weight.grad.is_sparse == table.bias.grad.is_sparse == sparse
        gradients.append([table.weight.grad, table.bias.grad])
    for dense, sparse in zip(*gradients, strict=True):
        torch.testing.assert_close(sparse.to_dense(), dense)
        assert sparse.coalesce().indices().tolist() == [[0, 3, 6]]


def test_an_embedding_is_tied_by_sharing_the_parameter() -> None:
    embedding = torch.nn.Embedding(7, 4)
    table = ClassTable(7, 4)
    table.weight = embedding.weight
    (table.vectors(IDS).sum() + embedding(torch.tensor([1])).sum()).backward()
    expected = F.one_hot(torch.tensor([3, 0, 3, 6, 1]), 7).sum(0)
    torch.testing.assert_close(embedding.weight.grad, expected[:, None].expand(7, 4).float())
