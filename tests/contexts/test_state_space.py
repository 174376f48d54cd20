import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from cpc.contexts import StateSpace
from cpc.contexts import diagonal_scan as diagonal_scan_module
from cpc.contexts.diagonal_scan import CHUNK, CONVOLVED, SOURCE, _convolve, compiled, diagonal_scan
from cpc.contexts.state_space import INITIALISATIONS, StateSpaceLayer

has_compiler = pytest.mark.skipif(compiled(SOURCE) is None, reason="no C compiler")
Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def arguments(num_sequences: int, num_latents: int, dim: int, num_modes: int, dtype: torch.dtype) -> Arguments:
    torch.manual_seed(0)
    size = 0.5 + 0.499 * torch.rand(num_modes, dim)
    angle = 2 * math.pi * torch.rand(num_modes, dim)
    decay = torch.stack([size * angle.cos(), size * angle.sin()])
    shapes = [(num_sequences, num_latents, dim), (2, num_modes, dim), (dim,), (num_sequences, 2, num_modes, dim)]
    inputs, weight, skip, state = (torch.randn(shape) for shape in shapes)
    return tuple(each.to(dtype) for each in (inputs, decay, weight, skip, state))  # type: ignore[return-value]


def by_hand(inputs: Tensor, decay: Tensor, weight: Tensor, skip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence in complex numbers, step by step."""
    a, w, h = torch.complex(*decay), torch.complex(*weight), torch.complex(state[:, 0], state[:, 1])
    outputs = []
    for u in inputs.unbind(1):
        h = a * h + u[:, None]
        outputs.append(skip * u + (w * h).sum(1).real)
    return torch.stack(outputs, 1), torch.stack([h.real, h.imag], 1)


@pytest.mark.parametrize("form", [diagonal_scan, _convolve])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("size", [(3, 1, 5, 1), (2, CHUNK, 8, 4), (1, CHUNK + 1, 16, 7), (2, 600, 21, 6)])
def test_every_form_is_the_recurrence(
    form: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype, tolerance: float, size: tuple[int, int, int, int]
) -> None:
    given = arguments(*size, dtype)
    for found, expected in zip(form(*given), by_hand(*(each.double() for each in given)), strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * scale)


@has_compiler
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("size", [(3, 1, 5, 1), (4, CHUNK + 6, 17, 6), (2, 3 * CHUNK, 33, 9)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_gradients_of_the_c_code_are_those_of_autograd(
    dtype: torch.dtype,
    tolerance: float,
    size: tuple[int, int, int, int],
    num_threads: int,
    set_num_threads: Callable[[int], None],
) -> None:
    set_num_threads(num_threads)
    gradients = []
    for form, precision in ((diagonal_scan, dtype), (by_hand, torch.float64)):
        given = [each.to(precision).requires_grad_() for each in arguments(*size, dtype)]
        outputs, last = form(*given)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=precision).view_as(outputs).sin()
        gradients.append(torch.autograd.grad((weights * outputs).sum() + last.square().sum(), given))
    for found, expected in zip(*gradients, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * scale)


def test_gradients_of_convolutions_cross_chunks() -> None:
    given = [each.requires_grad_() for each in arguments(2, CONVOLVED + 44, 3, 2, torch.float64)]
    found, expected = (
        torch.autograd.grad(outputs[:, -40:].square().sum() + last.square().sum(), given)
        for outputs, last in (_convolve(*given), by_hand(*given))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@has_compiler
def test_gradients_of_one_output() -> None:
    """A caller may use the outputs or the last state, but not both."""
    given = [each.requires_grad_() for each in arguments(2, 70, 5, 3, torch.float64)]
    for index in (0, 1):
        found, expected = (
            torch.autograd.grad(form(*given)[index].square().sum(), given, allow_unused=True)
            for form in (diagonal_scan, by_hand)
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


@has_compiler
def test_a_stream_of_float32_has_every_bit_of_the_whole() -> None:
    inputs, decay, weight, skip, state = arguments(2, 300, 20, 5, torch.float32)
    whole, last = diagonal_scan(inputs, decay, weight, skip, state)
    pieces = []
    for piece in inputs.split([1, 63, 64, 100, 65, 7], 1):
        outputs, state = diagonal_scan(piece, decay, weight, skip, state)
        pieces.append(outputs)
    assert torch.equal(torch.cat(pieces, 1), whole)
    assert torch.equal(state, last)


@has_compiler
def test_without_a_compiler_chunks_are_convolved(monkeypatch: pytest.MonkeyPatch) -> None:
    context = StateSpace(12, num_layers=2, num_modes=4)
    context.connect(3)
    z = torch.randn(2, 300, 3)
    found = []
    for is_compiled in (True, False):
        monkeypatch.setattr(diagonal_scan_module, "_is_compiled", lambda answer=is_compiled: answer)
        found.append(context(z)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@has_compiler
def test_torch_compile_sees_one_operator() -> None:
    given = [each.requires_grad_() for each in arguments(2, 70, 5, 3, torch.float32)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(diagonal_scan_module._diagonal_scan, tuple(given), test_utils=checks)


@pytest.mark.parametrize("initialisation", list(INITIALISATIONS))
def test_zero_order_hold(initialisation: str) -> None:
    """Eq. 5 and table 1 of the paper, in complex numbers."""
    layer = StateSpaceLayer(6, 4, initialisation, 0.01, 0.5, 0.0).double()
    step, damping, frequency = layer.log_step.exp(), layer.log_damping.exp(), layer.frequency
    a = torch.complex(-damping, frequency)
    weight = torch.complex(*layer.weight)
    decay, found = layer.recurrence()
    torch.testing.assert_close(torch.complex(*decay), torch.exp(step * a))
    torch.testing.assert_close(torch.complex(*found), 2 * weight * (torch.exp(step * a) - 1) / a)


def test_frequencies() -> None:
    assert torch.allclose(INITIALISATIONS["lin"](3), math.pi * torch.tensor([0.0, 1.0, 2.0]))
    # S4D-Inv with N = 6: (6 / pi) (6 / (2 n + 1) - 1)
    assert torch.allclose(INITIALISATIONS["inv"](3), 6 / math.pi * torch.tensor([5.0, 1.0, 0.2]))
    size = 8
    hippo = np.zeros((size, size))
    for n in range(size):
        for k in range(size):
            root = math.sqrt((2 * n + 1) * (2 * k + 1))
            hippo[n, k] = -root if n > k else -(n + 1) if n == k else 0
    low_rank = np.sqrt(np.arange(size) + 0.5)
    eigenvalues = np.linalg.eigvals(hippo + np.outer(low_rank, low_rank))
    np.testing.assert_allclose(eigenvalues.real, -0.5, atol=1e-9)
    positive = np.sort(eigenvalues.imag[eigenvalues.imag > 0])
    np.testing.assert_allclose(INITIALISATIONS["legs"](size // 2).numpy(), positive, rtol=1e-5)


def test_memory_at_the_start() -> None:
    """An input is forgotten as exp(-d / 2) per latent, for steps d between the smallest and the largest."""
    context = StateSpace(64, min_step=0.01, max_step=0.2)
    context.connect(64)
    (layer,) = context.layers
    size = torch.complex(*layer.recurrence()[0]).abs()
    size = size.detach()
    assert float(size.min()) >= math.exp(-0.1) - 1e-6
    assert float(size.max()) <= math.exp(-0.005) + 1e-6
    assert float(size.max() - size.min()) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    context = StateSpace(5, num_modes=2)
    context.connect(5)
    context.to(dtype)
    z = torch.randn(2, 6, 5, dtype=dtype)
    z[1, 3, 0] = torch.nan
    found = context(z)[0]
    assert found[1, 3:].isnan().all()
    assert found[0].isfinite().all()
    assert found[1, :3].isfinite().all()


def test_steps_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"min_step`=0\.2 must be at least 0 and at most 0\.1"):
        StateSpace(8, min_step=0.2, max_step=0.1)
