from collections.abc import Callable

import pytest
import torch

from cpc.contexts import GRU, LSTM
from cpc.contexts import gru_layer as gru_layer_module
from cpc.contexts.gru_layer import SOURCE, compiled, gru_layer

has_compiler = pytest.mark.skipif(compiled(SOURCE) is None, reason="no C compiler")


def test_gru_is_the_library_cell_stepped_by_hand() -> None:
    context = GRU(6, num_layers=2)
    context.connect(3)
    z = torch.randn(2, 5, 3)
    cells = [torch.nn.GRUCell(3, 6), torch.nn.GRUCell(6, 6)]
    for i, cell in enumerate(cells):
        cell.load_state_dict({name: context.layers.state_dict()[f"{name}_l{i}"] for name in cell.state_dict()})
    hidden = [torch.zeros(2, 6), torch.zeros(2, 6)]
    contexts, state = context(z)
    for t in range(5):
        hidden[0] = cells[0](z[:, t], hidden[0])
        hidden[1] = cells[1](hidden[0], hidden[1])
        torch.testing.assert_close(contexts[:, t], hidden[1])
    torch.testing.assert_close(state[0], torch.stack(hidden, 1))


def test_lstm_state_holds_hidden_and_cell() -> None:
    context = LSTM(6, num_layers=2)
    context.connect(3)
    contexts, state = context(torch.randn(4, 5, 3))
    assert [each.shape for each in state] == [(4, 2, 6), (4, 2, 6)]
    assert torch.equal(state[0][:, -1], contexts[:, -1])


def test_dropout_acts_between_layers_in_training_alone() -> None:
    context = GRU(6, num_layers=2, dropout=0.5)
    context.connect(3)
    z = torch.randn(2, 5, 3)
    assert not torch.equal(context(z)[0], context(z)[0])
    context.eval()
    assert torch.equal(context(z)[0], context(z)[0])


@pytest.mark.parametrize("network", [GRU, LSTM])
def test_bad_arguments(network: type[GRU] | type[LSTM]) -> None:
    with pytest.raises(ValueError, match="num_layers=0"):
        network(8, num_layers=0)
    with pytest.raises(ValueError, match=r"dropout=0\.1 acts between layers"):
        network(8, dropout=0.1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
@pytest.mark.parametrize(("num_sequences", "dim"), [(4, 5), (1, 16), (7, 70), (9, 128)])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_gru_layers_by_hand_have_the_gradients_of_the_library(
    dtype: torch.dtype,
    tolerance: float,
    num_sequences: int,
    dim: int,
    num_threads: int,
    set_num_threads: Callable[[int], None],
) -> None:
    set_num_threads(num_threads)
    torch.manual_seed(0)
    context = GRU(dim, num_layers=2)
    context.connect(3)
    context.to(dtype)
    z = (3 * torch.randn(num_sequences, 9, 3, dtype=dtype)).requires_grad_()  # gates that saturate, too
    state = torch.randn(num_sequences, 2, dim, dtype=dtype, requires_grad=True)
    parameters = [z, state, *context.parameters()]
    contexts, (after,) = context(z, (state,))
    expected, hidden = context.layers(z, state.transpose(0, 1).contiguous())
    torch.testing.assert_close(contexts, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(after, hidden.transpose(0, 1), atol=tolerance, rtol=tolerance)
    weights = torch.randn_like(contexts)
    for found, wanted in zip(
        torch.autograd.grad((contexts * weights).sum() + after.sum(), parameters),
        torch.autograd.grad((expected * weights).sum() + hidden.sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, atol=tolerance * float(wanted.abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    """A run that diverges must show it."""
    context = GRU(20)
    context.connect(3)
    context.to(dtype)
    z = torch.randn(2, 6, 3, dtype=dtype)
    z[1, 3, 0] = torch.nan
    z[0, 2] = torch.tensor([torch.inf, -3e38, 1.0])
    found, expected = context(z)[0], context.layers(z)[0]
    assert torch.equal(found.isnan(), expected.isnan())
    assert found[1, 3:].isnan().all()
    torch.testing.assert_close(found, expected, equal_nan=True)


@has_compiler
def test_without_a_compiler_the_library_runs_the_gru(monkeypatch: pytest.MonkeyPatch) -> None:
    context = GRU(5, num_layers=2)
    context.connect(3)
    z = torch.randn(4, 9, 3)
    found = []
    for is_compiled in (True, False):
        monkeypatch.setattr(gru_layer_module, "_is_compiled", lambda answer=is_compiled: answer)
        found.append(context(z))
    torch.testing.assert_close(*found)


@has_compiler
def test_a_gru_layer_by_finite_differences() -> None:
    torch.manual_seed(0)
    shapes = [(2, 3, 2), (2, 2), (6, 2), (6, 2), (6,), (6,)]
    arguments = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(gru_layer, arguments)
