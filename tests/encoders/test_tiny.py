import pytest
import torch
from refusals import refuses
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cpc.encoders.convolution import Norm
from cpc.encoders.tiny import TinyTrunk

NORMS: tuple[Norm, ...] = ("affine", "layer", "none")


def trunk(norm: Norm = "affine", **options: object) -> TinyTrunk:
    torch.manual_seed(0)
    return TinyTrunk(**{"dim": 8, "strides": (4, 1, 2, 1), "widths": (4, 4, 6, 6), "norm": norm} | options)


@pytest.mark.parametrize(("rows", "columns", "h", "w"), [(8, 8, 1, 1), (16, 16, 2, 2), (32, 24, 4, 3), (23, 17, 2, 2)])
def test_a_feature_every_stride_pixels(rows: int, columns: int, h: int, w: int) -> None:
    model = trunk()
    assert model.stride == 8
    assert model(torch.randn(3, 3, rows, columns)).shape == (3, 8, h, w)


def modules(model: TinyTrunk) -> list[nn.Module]:
    """The trunk as modules of the library, in float64: the oracle."""
    layers: list[nn.Module] = []
    for layer in model.layers:
        dim, in_dim, kernel, _ = layer.weight.shape
        conv = nn.Conv2d(in_dim, dim, kernel, layer.stride, padding=0 if kernel == layer.stride else 1)
        after: nn.Module = nn.Identity()
        conv.weight.data, conv.bias.data = layer.weight.data, layer.bias.data
        if model.norm == "affine":
            conv.weight.data = layer.scale.data[:, None, None, None] * conv.weight.data
        elif model.norm == "layer":
            after = ChannelsOfEachPosition()
        layers += [conv, after, nn.ReLU()]
    return [layer.double() for layer in layers]


class ChannelsOfEachPosition(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
        return (x - mean) / (variance + 1e-5).sqrt()


@pytest.mark.parametrize("norm", NORMS)
def test_equals_the_plain_network_of_modules(norm: Norm) -> None:
    model = trunk(norm)
    x = 0.1 * torch.randn(64, 3, 16, 24) + 0.7
    model.initialise_from(x)
    hidden = x.double()
    for module in modules(model):
        if norm == "affine" and isinstance(module, nn.ReLU):  # as initialised
            std, mean = torch.std_mean(hidden, (0, 2, 3))
            torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
            torch.testing.assert_close(std, torch.ones_like(std), atol=1e-3, rtol=0)
        hidden = module(hidden)
    torch.testing.assert_close(model(x), hidden.float(), atol=1e-5, rtol=1e-4)


def test_the_default_is_cheap() -> None:
    for size, limit in ((16, 1.82e6), (64, 29e6)):
        counter = FlopCounterMode(display=False)
        with counter, torch.device("meta"):
            TinyTrunk()(torch.empty(1, 3, size, size))
        assert 0.9 * limit < counter.get_total_flops() <= limit


@pytest.mark.parametrize("norm", NORMS)
def test_bfloat16_under_autocast(norm: Norm) -> None:
    model = trunk(norm)
    x = torch.randn(4, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(x)
    exact = model(x)
    assert ((rounded.float() - exact).norm() / exact.norm()).item() < 0.03


def test_bad_input_is_named() -> None:
    refuses("need one entry per layer", TinyTrunk, strides=(4, 2))
    refuses("a side needs at least 8", trunk(), torch.randn(2, 3, 7, 16))
