import json

import pytest
import torch
import torchvision
from refusals import refuses
from torch import Tensor, nn

from cpc.config.description import build, describe
from cpc.encoders import Backbone, PatchEncoder

SMALL = "squeezenet1_1"  # 0.7 million weights, no batch norm


def test_torchvisions_last_stage_without_pooling_and_classifier() -> None:
    backbone = Backbone("resnet18", "layer4").eval()
    assert (backbone.dim, backbone.stride) == (512, 32)
    theirs = torchvision.models.resnet18().eval()
    their_parts = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("fc.")}
    backbone.features.load_state_dict(their_parts)  # strict: nothing else is kept, least of all the classifier
    x = torch.randn(2, 3, 64, 96)
    trunk = nn.Sequential(*list(theirs.children())[:-2])
    torch.testing.assert_close(backbone(x), trunk(x))
    assert backbone(x).shape == (2, 512, 2, 3)


@pytest.mark.parametrize(
    ("name", "layer", "dim", "stride"),
    [(SMALL, "features", 512, 16), ("shufflenet_v2_x0_5", "conv5", 1024, 32), ("resnet18", "layer3", 256, 16)],
)
def test_dim_and_stride_are_what_comes_out(name: str, layer: str, dim: int, stride: int) -> None:
    backbone = Backbone(name, layer)
    features = backbone(torch.randn(2, 3, 96, 96))
    assert features.shape[:2] == (2, dim)
    assert (backbone.dim, backbone.stride) == (dim, stride)
    assert abs(features.shape[2] - 96 / stride) <= 1


def test_batch_norm_is_refused_by_the_name_of_its_layers() -> None:
    refuses(r"batch norm .*bn1, .*layer1.0.bn1.*allow_batch_norm", PatchEncoder, Backbone("resnet18", "layer3"), 64, 32)
    leaks = PatchEncoder(Backbone("resnet18", "layer3", allow_batch_norm=True), 64, 32).trunk
    x = torch.randn(4, 3, 64, 64)
    assert not torch.allclose(leaks(x)[:2], leaks(x[:2]), atol=1e-3)


def test_patches_do_not_see_each_other_and_gradients_reach_every_parameter() -> None:
    backbone = Backbone(SMALL, "features")
    x = torch.randn(4, 3, 64, 64)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    backbone.initialise_from(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    changed = x.clone()
    changed[2] = torch.randn(3, 64, 64)
    others = torch.arange(4) != 2
    assert torch.equal(backbone(x)[others], backbone(changed)[others])
    assert not torch.equal(backbone(x)[2], backbone(changed)[2])
    backbone(x).square().sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def resnet() -> nn.Module:
    block = torchvision.models.resnet.BasicBlock
    return torchvision.models.ResNet(block, [1, 1, 1, 1], norm_layer=lambda dim: nn.GroupNorm(1, dim))


def test_a_module_is_taken_with_its_weights() -> None:
    theirs = resnet().eval()
    third = Backbone(theirs, "layer3").eval()
    assert (third.name, third.dim, third.stride) == ("ResNet", 256, 16)
    x = torch.randn(2, 3, 64, 64)
    part = nn.Sequential(*list(theirs.children())[:-3])
    torch.testing.assert_close(third(x), part(x))
    assert len(list(third.parameters())) == len(list(part.parameters()))
    assert third.features.conv1.weight is theirs.conv1.weight
    assert all(name.startswith("features.") for name in third.state_dict())
    network = nn.Sequential(nn.Conv2d(1, 5, 4, 4), nn.ReLU())  # gives a map by itself
    assert Backbone(network, num_channels=1).features is network
    refuses(r"ResNet does not store its argument 'block' in an attribute", describe, third)


class Branching(nn.Module):
    """A network with data-dependent control flow, which torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3)) if len(x) > 0 else x


class Kept(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(3, dim, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def test_a_module_that_keeps_its_arguments_is_built_again() -> None:
    backbone = Backbone(Kept(6))
    refuses("outside the trusted packages cpc", build, describe(backbone))
    again = build(json.loads(json.dumps(describe(backbone))), trusted_packages=("cpc", "tests", Kept.__module__))
    again.load_state_dict(backbone.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(x), backbone(x))


def test_bad_input_is_named() -> None:
    refuses("no classification network 'resnet19'; one of timm", Backbone, "resnet19")
    words = "layer='layer9' is not a submodule of squeezenet1_1; it has features, classifier"
    refuses(words, Backbone, SMALL, "layer9")
    refuses(r"squeezenet1_1 gives \(1, 1000\).*not a map .*set layer", Backbone, SMALL)
    words = "ResNet cannot encode 224 x 224 pixels with num_channels=1: Invalid channel"
    refuses(words, Backbone, resnet(), num_channels=1)
    refuses("Branching cannot be cut at 'features'", Backbone, Branching(), "features")


def test_networks_of_tokens_and_of_channels_last_are_refused() -> None:
    tokens = torchvision.models.VisionTransformer(224, 32, 1, 2, hidden_dim=8, mlp_dim=8)
    refuses(r"VisionTransformer cannot encode|not a map", Backbone, tokens)
    swin = torchvision.models.SwinTransformer([4, 4], 8, [1, 1], [1, 1], [7, 7])
    assert (Backbone(swin, "permute").dim, Backbone(swin, "permute").stride) == (16, 8)
    refuses(r"gives \(1, 28, 28, 16\).*not a map \[n, D, h, w\]", Backbone, swin, "features")


@pytest.mark.parametrize(("name", "channels", "dim"), [("convnext_atto", 3, 320), ("resnet10t", 1, 512)])
def test_timms_last_map_is_taken_by_name_and_built_again(name: str, channels: int, dim: int) -> None:
    timm = pytest.importorskip("timm")
    backbone = Backbone(f"timm/{name}", num_channels=channels).eval()
    assert (backbone.dim, backbone.stride) == (dim, 32)
    theirs = timm.create_model(name, pretrained=False, in_chans=channels).eval()
    parts = {part: tensor for part, tensor in theirs.state_dict().items() if part in backbone.features.state_dict()}
    backbone.features.load_state_dict(parts)
    x = torch.randn(2, channels, 64, 96)
    last_norm = theirs.head.norm if name.startswith("convnext") else nn.Identity()
    torch.testing.assert_close(backbone(x), last_norm(theirs.forward_features(x)))
    again = build(json.loads(json.dumps(describe(backbone)))).eval()
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(x), backbone(x))


def test_timms_networks_without_a_map_or_of_unknown_names_are_refused() -> None:
    pytest.importorskip("timm")
    refuses("cannot encode", Backbone, "timm/vit_tiny_patch16_224")
    refuses(r"timm has no network 'resnet19'; timm\.list_models", Backbone, "timm/resnet19")
