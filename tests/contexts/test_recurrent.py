from collections.abc import Callable

import pytest
import torch
from refusals import refuses
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

from cpc.contexts import GRU, LSTM
from cpc.contexts import gru_layer as gru_layer_module
from cpc.contexts.gru_layer import SOURCE, compiled
from cpc.contexts.recurrence import run_in_float16, run_layers


def library(context: GRU | LSTM) -> torch.nn.RNNBase:
    """torch's own layers with the parameters of a context."""
    cls = torch.nn.GRU if isinstance(context, GRU) else torch.nn.LSTM
    layers = cls(context.input_dim, context.dim, context.num_layers, batch_first=True)
    layers.to(next(context.parameters()).dtype).load_state_dict(context.layers.state_dict())
    return layers


has_compiler = pytest.mark.skipif(compiled(SOURCE) is None, reason="no C compiler")


def test_bad_arguments() -> None:
    refuses(r"dropout=0\.1 acts between layers", GRU, 8, dropout=0.1)


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
    contexts, (after,) = context(z, (state,))
    theirs = library(context)
    expected, hidden = theirs(z, state.transpose(0, 1).contiguous())
    torch.testing.assert_close(contexts, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(after, hidden.transpose(0, 1), atol=tolerance, rtol=tolerance)
    weights = torch.randn_like(contexts)
    for found, wanted in zip(
        torch.autograd.grad((contexts * weights).sum() + after.sum(), [z, state, *context.parameters()]),
        torch.autograd.grad((expected * weights).sum() + hidden.sum(), [z, state, *theirs.parameters()]),
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
    found, expected = context(z)[0], library(context)(z)[0]
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


@pytest.mark.usefixtures("unchecked_types")
def test_torch_compile_sees_one_operator_for_each_layer() -> None:
    context = LSTM(6, num_layers=2)
    context.connect(3)
    context.double()
    z = torch.randn(2, 100, 3, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(2, 2, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    theirs = library(context)
    expected, last = theirs(z, tuple(each.transpose(0, 1).contiguous() for each in state))
    graphs = CompileCounterWithBackend("aot_eager")
    contexts, after = torch.compile(context.forward, fullgraph=True, backend=graphs)(z, state)
    operators = [str(node.target) for graph in graphs.graphs for node in graph.graph.nodes]
    assert operators.count("cpc.recurrent_layer.default") == 2
    assert len(operators) < 50
    torch.testing.assert_close(contexts, expected)
    torch.testing.assert_close([each.transpose(0, 1) for each in after], list(last))
    found, wanted = (
        torch.autograd.grad(c.square().sum() + sum(each.sin().sum() for each in end), [z, *state, *layers.parameters()])
        for c, end, layers in ((contexts, after, context), (expected, last, theirs))
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("num_states", [1, 2])
def test_the_operator_on_a_gpu(num_states: int) -> None:
    """On tensors without values, in the precision of autocast."""
    with FakeTensorMode():
        width = (4 if num_states == 2 else 3) * 6
        x, *state = (
            torch.empty(4, 100, 3, device="cuda", dtype=torch.bfloat16),
            *[torch.empty(1, 4, 6, device="cuda")] * num_states,
        )
        weights = [torch.empty(width, *rest, device="cuda") for rest in ((3,), (6,), (), ())]
        outputs = torch.ops.cpc.recurrent_layer(x, state, weights, True)
        gradients = torch.ops.cpc.recurrent_layer_backward(outputs, x, state, weights, True)
    found = [(each.shape, each.dtype, each.device.type) for each in outputs]
    assert found == [((4, 100, 6), torch.float32, "cuda"), *[((1, 4, 6), torch.float32, "cuda")] * num_states]
    inputs = [x, *state, *weights]
    assert [(each.shape, each.dtype) for each in gradients] == [(each.shape, each.dtype) for each in inputs]


@pytest.mark.parametrize("num_states", [1, 2])
@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_gradients_survive_float16(num_states: int, size: float) -> None:
    """cuDNN computes in float16 under every autocast; numbers below 3e-8 are zero there, and above 65,504 infinite."""
    width = (4 if num_states == 2 else 3) * 6
    shapes = [(8, 30, 5), *[(1, 8, 6)] * num_states, (width, 5), (width, 6), (width,), (width,)]
    inputs, gradient = [torch.randn(shape) / 2 for shape in shapes], size * torch.randn(8, 30, 6)

    def layers(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return run_layers(x, rest[:num_states], rest[num_states:])

    def in_float16(*inputs: Tensor) -> tuple[Tensor, ...]:
        return run_in_float16(lambda *each: layers(*(one.half() for one in each)), *inputs)

    def as_operator(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.ops.cpc.recurrent_layer(x, rest[:num_states], rest[num_states:], True))

    def gradients(layers: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype) -> list[Tensor]:
        given = [each.to(dtype).requires_grad_() for each in inputs]
        contexts, *_ = layers(*given)
        return [each.double() for each in torch.autograd.grad(contexts, given, gradient.to(contexts.dtype))]

    exact = gradients(layers, torch.float64)
    for form in (in_float16, as_operator):
        for found, expected in zip(gradients(form, torch.float32), exact, strict=True):
            assert (found - expected).norm() < 4e-3 * expected.norm()
