import importlib.util
import json

import pytest
import torch
import torchvision
from torch import Tensor, nn

from cpc.checkpoint import build, describe
from cpc.encoders.backbone import Backbone

SMALL = "torchvision:squeezenet1_1"  # 0.7 million weights, no batch norm


def test_torchvisions_last_stage_without_pooling_and_classifier() -> None:
    backbone = Backbone("torchvision:resnet18", allow_batch_norm=True).eval()
    assert (backbone.dim, backbone.stride) == (512, 32)
    theirs = torchvision.models.resnet18().eval()
    their_parts = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("fc.")}
    backbone.features.load_state_dict(their_parts)  # strict: nothing else is kept, least of all the classifier
    x = torch.randn(2, 3, 64, 96)
    trunk = nn.Sequential(*list(theirs.children())[:-2])
    torch.testing.assert_close(backbone(x), trunk(x))
    assert backbone(x).shape == (2, 512, 2, 3)


@pytest.mark.parametrize(
    ("name", "dim", "stride"),
    [(SMALL, 512, 16), ("torchvision:shufflenet_v2_x0_5", 1024, 32), ("torchvision:regnet_y_400mf", 440, 32)],
)
def test_dim_and_stride_are_what_comes_out(name: str, dim: int, stride: int) -> None:
    backbone = Backbone(name, allow_batch_norm=True)
    features = backbone(torch.randn(2, 3, 96, 96))
    assert features.shape[:2] == (2, dim)
    assert (backbone.dim, backbone.stride) == (dim, stride)
    assert abs(features.shape[2] - 96 / stride) <= 1


def test_a_layer_by_name_and_other_channels() -> None:
    backbone = Backbone("torchvision:resnet18", allow_batch_norm=True, num_channels=1, layer="layer3")
    assert (backbone.dim, backbone.stride) == (256, 16)
    assert backbone(torch.randn(2, 1, 64, 64)).shape == (2, 256, 4, 4)
    kept = {name for name, _ in backbone.features.named_parameters()}
    assert not [name for name in kept if "layer4" in name or "fc" in name]
    assert {"conv1.weight", "layer3.1.bn2.bias"} <= kept
    assert "conv1.bias" not in kept


def test_batch_norm_is_refused_by_the_name_of_its_layers() -> None:
    with pytest.raises(ValueError, match=r"bn1, layer1.0.bn1.* and 16 more.*allow_batch_norm=True"):
        Backbone("torchvision:resnet18")
    leaks = Backbone("torchvision:resnet18", allow_batch_norm=True)
    x = torch.randn(4, 3, 64, 64)
    assert not torch.allclose(leaks(x)[:2], leaks(x[:2]), atol=1e-3)


def test_patches_do_not_see_each_other_and_gradients_reach_every_parameter() -> None:
    backbone = Backbone(SMALL)
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


def test_built_again_from_its_description() -> None:
    backbone = Backbone(SMALL, num_channels=1, layer="features.9")
    again = build(json.loads(json.dumps(describe(backbone))))
    again.load_state_dict(backbone.state_dict())
    x = torch.randn(2, 1, 64, 64)
    assert torch.equal(again(x), backbone(x))
    assert (again.dim, again.stride) == (384, 16)


def resnet(**options: object) -> nn.Module:
    """torchvision's, small, without batch norm."""
    norm = {"norm_layer": lambda dim: nn.GroupNorm(1, dim), **options}
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], **norm)


def test_a_module_is_taken_with_its_weights() -> None:
    theirs = resnet().eval()
    whole, third = Backbone(theirs).eval(), Backbone(theirs, layer="layer3").eval()
    assert (whole.name, whole.dim, whole.stride) == ("ResNet", 512, 32)
    assert (third.dim, third.stride) == (256, 16)
    x = torch.randn(2, 3, 64, 64)
    children = list(theirs.children())
    torch.testing.assert_close(whole(x), nn.Sequential(*children[:-2])(x))
    torch.testing.assert_close(third(x), nn.Sequential(*children[:-3])(x))
    assert len(list(third.parameters())) == len(list(nn.Sequential(*children[:-3]).parameters()))
    assert third.features.conv1.weight is theirs.conv1.weight
    assert all(name.startswith("features.") for name in third.state_dict())
    network = nn.Sequential(nn.Conv2d(1, 5, 4, 4), nn.ReLU())  # gives a map by itself
    assert Backbone(network, num_channels=1).features is network
    with pytest.raises(ValueError, match=r"ResNet keeps no attribute 'block' of its argument"):
        describe(whole)


def test_a_module_is_refused_as_a_name_is() -> None:
    with pytest.raises(ValueError, match=r"ResNet holds batch norm \(bn1, .*allow_batch_norm=True"):
        Backbone(resnet(norm_layer=nn.BatchNorm2d))
    assert Backbone(resnet(norm_layer=nn.BatchNorm2d), allow_batch_norm=True).dim == 512
    with pytest.raises(
        ValueError, match=r"ResNet does not encode pixels of num_channels=1, 224 a side: Invalid channel"
    ):
        Backbone(resnet(), num_channels=1)
    with pytest.raises(ValueError, match="layer='layer9' is no part of ResNet"):
        Backbone(resnet(), layer="layer9")
    with pytest.raises(ValueError, match=r"Branching cannot be cut at 'features', since torch.fx cannot follow it"):
        Backbone(Branching())


class Branching(nn.Module):
    """What comes out depends on what comes in, as torch.fx cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3)) if len(x) > 0 else x


class Kept(nn.Module):
    """A module of a user's own, which keeps its arguments."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(3, dim, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def test_a_module_that_keeps_its_arguments_is_built_again() -> None:
    backbone = Backbone(Kept(6))
    with pytest.raises(ValueError, match="outside the trusted packages cpc"):
        build(describe(backbone))
    again = build(json.loads(json.dumps(describe(backbone))), trusted_packages=("cpc", "tests", Kept.__module__))
    again.load_state_dict(backbone.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(x), backbone(x))


def test_timm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "timm" else find(name))
    with pytest.raises(ValueError, match=r"timm:convnext_atto.*not installed: pip install timm"):
        Backbone("timm:convnext_atto")


def test_timms_networks() -> None:
    pytest.importorskip("timm", reason="timm is not among cpc's dependencies")
    backbone = Backbone("timm:convnext_atto", num_channels=1)
    assert backbone(torch.randn(2, 1, 64, 64)).shape == (2, backbone.dim, 64 // backbone.stride, 64 // backbone.stride)
    with pytest.raises(ValueError, match=r"no map \[n, D, h, w\]|does not end in a map"):
        Backbone("timm:vit_tiny_patch16_224")


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"network='resnet18' begins with none of torchvision:, timm:"):
        Backbone("resnet18")
    with pytest.raises(ValueError, match="'resnet19'; did you mean resnet18"):
        Backbone("torchvision:resnet19")
    with pytest.raises(ValueError, match="num_channels=0"):
        Backbone(SMALL, num_channels=0)
    with pytest.raises(ValueError, match=r"layer='layer9' is no part of .* which has features, classifier"):
        Backbone(SMALL, layer="layer9")
    with pytest.raises(ValueError, match=r"gives \(1, 1000\).*no map"):
        Backbone(SMALL, layer="flatten")
    with pytest.raises(ValueError, match=r"pixels of 3 channels.* num_channels=1"):
        Backbone(SMALL, num_channels=1)(torch.randn(2, 3, 64, 64))


def pretend(monkeypatch: pytest.MonkeyPatch, network: nn.Module) -> None:
    """Whatever torchvision is asked for, it gives this."""
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, weights: network)


def test_networks_of_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, torchvision.models.VisionTransformer(224, 32, 1, 2, hidden_dim=8, mlp_dim=8))
    with pytest.raises(ValueError, match=r"vit_b_32 does not end in a map of features \(encoder\)"):
        Backbone("torchvision:vit_b_32")


def test_channels_come_before_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swin's stages have channels last; the permutation behind them is what is taken."""
    pretend(monkeypatch, torchvision.models.SwinTransformer([4, 4], 8, [1, 1], [1, 1], [7, 7]))
    backbone = Backbone("torchvision:swin_t")
    assert (backbone.dim, backbone.stride) == (16, 8)
    assert backbone(torch.randn(1, 3, 64, 64)).shape == (1, 16, 8, 8)
    with pytest.raises(ValueError, match=r"gives \(1, 28, 28, 16\).*no map \[n, D, h, w\]"):
        Backbone("torchvision:swin_t", layer="features")


class PooledToSevenBySeven(nn.Module):
    """As VGG and AlexNet are made: the pool gives a map, always of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 4, 4)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Linear(5 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def test_a_pool_to_a_fixed_size_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, PooledToSevenBySeven())
    backbone = Backbone("torchvision:vgg11")
    assert (backbone.dim, backbone.stride) == (5, 4)
    assert backbone(torch.randn(1, 3, 64, 64)).shape == (1, 5, 16, 16)
