"""The promises of the context protocol, kept by every context."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import Tensor

from cpc.contexts import GRU, LSTM, CausalTransformer, Context, Identity, StateSpace

INPUT_DIM = 5
BUILD: dict[str, Callable[[], Context]] = {
    "gru": lambda: GRU(8),
    "gru, 2 layers": lambda: GRU(8, num_layers=2, dropout=0.3),
    "lstm": lambda: LSTM(8),
    "lstm, 3 layers": lambda: LSTM(8, num_layers=3, dropout=0.3),
    "transformer": lambda: CausalTransformer(8, num_layers=2, num_heads=2, feedforward_dim=16, dropout=0.3),
    "transformer, window 3": lambda: CausalTransformer(8, num_layers=2, num_heads=2, feedforward_dim=16, window=3),
    "state space": lambda: StateSpace(8, num_modes=5),
    "state space, 2 layers": lambda: StateSpace(8, num_layers=2, num_modes=3, dropout=0.3),
    "transformer, window 1": lambda: CausalTransformer(8, num_layers=1, num_heads=4, feedforward_dim=16, window=1),
}


@pytest.fixture(params=BUILD)
def context(request: pytest.FixtureRequest) -> Context:
    """Connected, float64, eval mode."""
    built = BUILD[request.param]()
    built.connect(INPUT_DIM)
    return built.double().eval()


def latents(num_sequences: int = 3, num_latents: int = 12) -> Tensor:
    return torch.randn(num_sequences, num_latents, INPUT_DIM, dtype=torch.float64)


def encode_in_chunks(context: Context, z: Tensor, sizes: list[int]) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    assert sum(sizes) == z.shape[1]
    state, pieces = None, []
    for piece in z.split(sizes, 1):
        contexts, state = context(piece, state)
        pieces.append(contexts)
    return torch.cat(pieces, 1), state


@pytest.mark.parametrize("is_training", [False, True])
def test_causal_by_autograd(context: Context, is_training: bool) -> None:
    context.train(is_training)
    z = latents(2, 9).requires_grad_()
    contexts, _ = context(z)
    weights = torch.randn_like(contexts)  # a plain sum would vanish behind a layer norm
    for t in range(9):
        (gradient,) = torch.autograd.grad((contexts * weights)[1, t].sum(), z, retain_graph=True)
        assert gradient[1, t].any(), "c_t must see z_t"
        assert not gradient[1, t + 1 :].any(), "c_t must not see what comes after z_t"
        assert not gradient[0].any(), "c_t must not see another sequence"


@pytest.mark.parametrize(
    "sizes",
    [[1] * 25, [3] * 8 + [1], [7, 7, 7, 4], [0, 5, 0, 0, 20], [25, 0], [2, 11, 1, 6, 4, 1]],
    ids=lambda sizes: "-".join(map(str, sizes[:5])),
)
def test_chunks_with_state_equal_the_whole(context: Context, sizes: list[int]) -> None:
    z = latents(2, 25)
    whole, state = context(z)
    chunk_contexts, chunk_state = encode_in_chunks(context, z, sizes)
    torch.testing.assert_close(chunk_contexts, whole, rtol=0, atol=1e-10)
    assert [each.shape for each in state] == [each.shape for each in chunk_state]
    for each, chunk_each in zip(state, chunk_state, strict=True):
        torch.testing.assert_close(chunk_each, each, rtol=0, atol=1e-10)


def test_gradients_cross_chunks(context: Context) -> None:
    z = latents(2, 12)
    gradients = []
    for sizes in ([12], [4, 1, 7]):
        whole = z.clone().requires_grad_()
        contexts, _ = encode_in_chunks(context, whole, sizes)
        contexts.square().cumsum(1).sin().sum().backward()
        gradients.append(whole.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-9)


def test_nothing_is_remembered_but_in_the_state(context: Context) -> None:
    z, other = latents(), 10 * latents(5, 30)
    first, state = context(z)
    kept = [each.clone() for each in state]
    context(other)
    again, _ = context(z)
    assert torch.equal(again, first)
    onwards, _ = context(z, state)
    context(other[:3], state)
    assert all(torch.equal(each, keep) for each, keep in zip(state, kept, strict=True)), "a state is never written to"
    assert torch.equal(context(z, state)[0], onwards)


def test_state_goes_sequences_first(context: Context) -> None:
    z = latents(4)
    _, state = context(z[:, :6])
    both, _ = context(z[:, 6:], state)
    picked, _ = context(z[[3, 1], 6:], tuple(each[[3, 1]] for each in state))
    torch.testing.assert_close(picked, both[[3, 1]])


def test_gradient_reaches_every_parameter(context: Context) -> None:
    contexts, _ = context(latents())
    (contexts * torch.randn_like(contexts)).sum().backward()
    unreached = [name for name, each in context.named_parameters() if each.grad is None or not each.grad.any()]
    assert not unreached


@pytest.mark.parametrize("num_latents", [0, 1, 2, 3, 700])
def test_any_length(context: Context, num_latents: int) -> None:
    contexts, _ = context(latents(2, num_latents))
    assert contexts.shape == (2, num_latents, context.dim)
    assert contexts.isfinite().all()
    assert context(latents(0, num_latents))[0].shape == (0, num_latents, context.dim)


@pytest.mark.parametrize("name", ["gru, 2 layers", "lstm, 3 layers", "transformer", "state space, 2 layers"])
def test_dropout_acts_in_training_alone(name: str) -> None:
    context, z = BUILD[name](), torch.randn(2, 5, INPUT_DIM)
    context.connect(INPUT_DIM)
    assert not torch.equal(context(z)[0], context(z)[0])
    context.eval()
    assert torch.equal(context(z)[0], context(z)[0])


def test_autocast_to_bfloat16_trains_and_streams(context: Context) -> None:
    context.float()
    z = latents(2, 10).float()
    whole, _ = context(z)
    with torch.autocast("cpu", torch.bfloat16):
        chunk_contexts, state = encode_in_chunks(context, z.bfloat16(), [4, 6])
    if isinstance(context, StateSpace):
        assert state[0].dtype == torch.float32, "a long recurrence needs its precision"
    torch.testing.assert_close(chunk_contexts.float(), whole, rtol=0, atol=0.1)
    chunk_contexts.float().square().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in context.parameters())


def test_connecting_twice_and_wrong_input(context: Context) -> None:
    before = [each.clone() for each in context.parameters()]
    context.connect(INPUT_DIM)
    assert all(torch.equal(x, y) for x, y in zip(before, context.parameters(), strict=True))
    refuses("=6 must be 5", context.connect, 6)
    refuses(r"of the shape \[B, T, 5\]", context, torch.zeros(2, 3, 7))
    refuses("input_dim", GRU(4).connect, 0)
    for build in BUILD.values():
        refuses("connect", build(), latents())


@pytest.mark.usefixtures("unchecked_types")  # as users run: the type checker would speak first
def test_a_state_of_something_else_is_refused(context: Context) -> None:
    z = latents(2, 4)
    _, state = context(z)
    wrong: list[Any] = [(), [*state], state[0], (*state, state[0]), state[:-1], "state", (None,) * len(state)]
    wrong += [tuple(each[:1] for each in state), tuple(torch.cat([each, each]) for each in state)]
    for i, tensor in enumerate(state):
        others = [None, tensor.long(), tensor.to(torch.complex64), tensor.to("meta"), tensor[None], tensor[0]]
        for axis, size in enumerate(tensor.shape):
            others += [torch.cat([tensor, tensor], axis), tensor.narrow(axis, 0, size - 1)]
        wrong += [(*state[:i], other, *state[i + 1 :]) for other in others]
    if len(state) > 2 and context.window is not None:
        wrong.append(tuple(torch.cat([each, each], 2) for each in state))  # longer than the window
    for build in BUILD.values():
        other = build()
        other.connect(INPUT_DIM)
        is_alike = type(other) is type(context) and other.num_layers == context.num_layers
        if not is_alike or context.state_shapes[0][-1] != other.state_shapes[0][-1]:
            wrong.append(other.double().eval()(z)[1])
    for each in wrong:
        for num_latents in (4, 0):
            refuses(f"the state is .* this {type(context).__name__} takes", context, z[:, :num_latents], each)


def test_a_state_is_widened_but_not_rounded(context: Context) -> None:
    z = latents(2, 4)
    _, state = context(z)
    rounded = tuple(each.bfloat16() for each in state)
    assert torch.equal(context(z, rounded)[0], context(z, tuple(each.double() for each in rounded))[0])
    context.float()
    refuses(r"float64 .* takes \(torch.float32 ", context, z.float(), state)


def test_identity_remembers_nothing() -> None:
    context, z = Identity(), latents()
    context.connect(INPUT_DIM)
    contexts, state = context(z)
    assert context.dim == INPUT_DIM
    assert torch.equal(contexts, z)
    assert torch.equal(context(z[:, 5:], state)[0], z[:, 5:])
    refuses("for 2 sequences this Identity takes", context, z[:2], state)
    refuses("must be 5", context.connect, 4)
