import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from cpc.encoders.convolution import Norm
from cpc.encoders.resnet import ResNetTrunk

NORMS: tuple[Norm, ...] = ("affine", "layer", "none")
DIMS = {18: 256, 34: 256, 50: 1024, 101: 1024, 161: 4096}


def trunk(depth: int = 18, norm: Norm = "affine", **options: object) -> ResNetTrunk:
    torch.manual_seed(0)
    return ResNetTrunk(depth, norm, **{"stem": "small", "width": 4} | options)


@pytest.mark.parametrize(("depth", "dim"), DIMS.items())
def test_three_stages_at_full_width(depth: int, dim: int) -> None:
    with torch.device("meta"):
        model = ResNetTrunk(depth, "layer")
        assert model(torch.empty(7, 3, 64, 64)).shape == (7, dim, 4, 4)
        if depth == 50:
            assert model(torch.empty(1, 3, 256, 160)).shape == (1, dim, 16, 10)
    assert (model.dim, model.stride) == (dim, 16)


def num_conv_weights(module: nn.Module) -> int:
    return sum(each.weight.numel() for each in module.modules() if isinstance(each, nn.Conv2d))


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_as_many_weights_as_torchvisions(depth: int) -> None:
    with torch.device("meta"):
        theirs = torchvision.models.get_model(f"resnet{depth}", weights=None)
        ours = ResNetTrunk(depth, "layer")
    parts = [theirs.conv1, theirs.layer1, theirs.layer2, theirs.layer3]
    assert num_conv_weights(ours) == sum(num_conv_weights(part) for part in parts)


def test_as_many_weights_as_the_papers_wide_stage_has() -> None:
    """Third stage of CPC v2: 46 blocks, 4096 features, bottlenecks of 512; the rest is ResNet-101's."""
    with torch.device("meta"):
        wide = ResNetTrunk(161, "layer")
        theirs = torchvision.models.resnet101()
    rest = sum(num_conv_weights(part) for part in (theirs.conv1, theirs.layer1, theirs.layer2))
    blocks = 46 * (512 * 512 * 9 + 512 * 4096) + (512 + 45 * 4096) * 512
    assert num_conv_weights(wide) == rest + blocks + 512 * 4096
    assert sum(p.numel() for p in ResNetTrunk(18, "none", width=4).parameters()) == num_conv_weights(
        ResNetTrunk(18, width=4)
    ) + 4 * (1 + 4 + 2 * 4 + 4 * 4)  # a bias for each convolution but the shortcuts
    assert len(wide.blocks) * 3 + 2 == 161


def normalise(x: Tensor, norm: nn.Module, name: Norm) -> Tensor:
    if name == "none":
        return x
    if name == "affine":
        return x * norm.scale[:, None, None] + norm.bias[:, None, None]
    mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
    weight, bias = norm.layer_norm.weight, norm.layer_norm.bias
    return (x - mean) / (variance + 1e-5).sqrt() * weight[:, None, None] + bias[:, None, None]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("depth", "stem"), [(18, "small"), (50, "imagenet")])
def test_equals_a_loop_over_pre_activated_blocks(depth: int, stem: str, norm: Norm) -> None:
    """Norm, ReLU, convolution, in this order; a shortcut is the input itself or a projection of the activated input."""
    model = trunk(depth, norm, stem=stem).double()
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    model.initialise_from(x)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)

    first = model.first
    if stem == "small":
        hidden = F.conv2d(x, first.weight, first.bias, 1, 1)
    else:
        hidden = F.max_pool2d(F.conv2d(x, first.weight, first.bias, 2, 3), 3, 2, 1)
    starts = {18: (2, 4), 50: (3, 7)}[depth]  # the blocks with stride 2
    num_blocks = {18: 6, 50: 13}[depth]
    strided_conv = {18: 0, 50: 1}[depth]
    for index, block in enumerate(model.blocks):
        stride = 2 if index in starts else 1
        activated = normalise(hidden, block.norms[0], norm).relu()
        shortcut = hidden if block.shortcut is None else F.conv2d(activated, block.shortcut.weight, None, stride)
        branch = activated
        for i, conv in enumerate(block.convs):
            if i > 0:
                branch = normalise(branch, block.norms[i], norm).relu()
            padding = conv.weight.shape[2] // 2
            branch = F.conv2d(branch, conv.weight, conv.bias, stride if i == strided_conv else 1, padding)
        hidden = shortcut + branch * (1 if norm == "layer" else num_blocks**-0.5)
        projects = index in starts or (depth == 50 and index == 0)
        assert (block.shortcut is not None) == projects
    assert len(model.blocks) == num_blocks
    torch.testing.assert_close(model(x), normalise(hidden, model.closing_norm, norm).relu())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("depth", [18, 161])
def test_signal_and_gradient_keep_their_scale(depth: int, norm: Norm) -> None:
    model = trunk(depth, norm, width=8)
    streams = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, x, y: streams.append(y.square().mean().item()))
    x = torch.randn(8, 3, 16, 16)
    model.initialise_from(x)
    streams.clear()
    features = model(x).mean((2, 3))
    features.backward(torch.randn_like(features))
    growth = len(streams) if norm == "layer" else 8
    assert max(streams) < growth * min(streams)
    relative = [(block.convs[0].weight.grad.norm() / block.convs[0].weight.norm()).item() for block in model.blocks]
    assert max(relative) < 100 * min(relative)


def test_data_initialisation_standardises_what_enters_every_relu() -> None:
    model = trunk(50, "affine")
    x = 0.1 * torch.randn(64, 3, 16, 16) + 0.7
    model.initialise_from(x)
    seen = []
    norms = [*[norm for block in model.blocks for norm in block.norms], model.closing_norm]
    for norm in norms:
        norm.register_forward_hook(lambda norm, x, y: seen.append(y))
    model(x)
    assert len(seen) == 13 * 3 + 1
    for y in seen:
        torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(y.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(y.std((0, 2, 3)), torch.ones(y.shape[1]), atol=1e-3, rtol=0)


def test_data_initialisation_leaves_other_norms_alone() -> None:
    for norm in ("layer", "none"):
        model = trunk(norm=norm)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.initialise_from(torch.randn(4, 3, 16, 16))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_receptive_field_of_the_imagenet_stem() -> None:
    """By hand, for ResNet-50: 11 pixels at the pool, 3x3 convolutions 4, 8 and 16 pixels apart."""
    with torch.device("meta"):
        assert ResNetTrunk(50, "layer").receptive_field == 11 + 3 * 2 * 4 + (2 * 4 + 3 * 2 * 8) + (2 * 8 + 5 * 2 * 16)
