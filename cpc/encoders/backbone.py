"""Trunks from torchvision, timm, or a custom network, cut at a layer.

n patches, C colour channels, P pixels, D features, h w rows and columns of features.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, checked

_SIZES = (224, 448)  # sides of two images, from which dimension and stride of a network are measured


class Backbone(nn.Module):
    """A classification network up to one of its convolutional layers.

    Many of these networks halve their input five times and need patches of 64 pixels or more. Most contain batch norm,
    which leaks information between the patches of a batch: `PatchEncoder` rejects it unless `allow_batch_norm` is set.
    The networks alexnet, vgg*, squeezenet* and convnext_* of torchvision have no batch norm.

    Args:
        network: name of a classification network of torchvision, or `timm/NAME` for a network of timm without its
            classifier, both with random weights; or a module, used with its weights. To save a model with a module, the
            module must keep its arguments as attributes (see `cpc.config.description`); to load it, list its package in
            `trusted_packages`.
        layer: name of the submodule whose output is used: `layer3` of a resnet, `features` of a vgg, squeezenet or
            convnext; None: the output of the network.
        num_channels: C, the input channels of the network; 3 for torchvision.
        allow_batch_norm: whether the network may contain batch norm.

    Attributes:
        dim: D.
        stride: distance of neighbouring features in pixels.
        receptive_field: None (unknown): some of these networks depend on their whole input.

    Raises:
        ValueError: if the name or layer is unknown, the network cannot be cut or does not accept such pixels, or the
            output is not a map `[n, D, h, w]`, for example the tokens of a vision Transformer.
    """

    receptive_field: int | None = None
    network: str | nn.Module

    @checked
    def __init__(
        self,
        network: str | nn.Module,
        layer: str | None = None,
        num_channels: Count = 3,
        allow_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        # nn.Module would register the network and count its parameters twice, here and in `features`.
        object.__setattr__(self, "network", network)
        self.layer = layer
        self.num_channels = num_channels
        self.allow_batch_norm = allow_batch_norm
        self.name = network if isinstance(network, str) else type(network).__name__
        whole = _create(network, num_channels) if isinstance(network, str) else network
        self.features = whole if layer is None else _cut(whole, layer, self.name)
        self.dim, self.stride = self._measure()

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D h w"]:
        """Encode patches, or images of any size that the network accepts, with standardised pixels."""
        return _feature_map(self.features(x))

    def initialise_from(self, x: Float[Tensor, "n C P Q"]) -> None:
        """Do nothing: the network keeps the initialisation of its library."""

    def _measure(self) -> tuple[int, int]:
        """Return D and the stride, from runs that compute only shapes."""
        features = copy.deepcopy(self.features).to("meta").eval()
        small, large = _SIZES
        shape, larger = (self._shape(features, size) for size in _SIZES)
        if len(shape) != 4 or larger[1] != shape[1] or larger[2] <= shape[2]:
            raise ValueError(f"{self.name} gives {shape} for {small} pixels, not a map [n, D, h, w]: set layer")
        return shape[1], round((large - small) / (larger[2] - shape[2]))

    def _shape(self, features: nn.Module, size: int) -> tuple[int, ...]:
        try:
            return tuple(_feature_map(features(torch.empty(1, self.num_channels, size, size, device="meta"))).shape)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"{self.name} cannot encode {size} x {size} pixels with num_channels={self.num_channels}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error


def _create(name: str, num_channels: int) -> nn.Module:
    library, _, timm_name = name.rpartition("/")
    if library == "timm":
        return _timm(timm_name, num_channels)
    from torchvision import models

    if name not in models.list_models(module=models):
        raise ValueError(f"torchvision has no classification network {name!r}; one of timm is timm/NAME")
    return models.get_model(name, weights=None)


def _timm(name: str, num_channels: int) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ValueError(f"network 'timm/{name}' needs timm: `pip install timm`") from error
    if not timm.is_model(name):
        raise ValueError(f"timm has no network {name!r}; timm.list_models() lists them")
    return timm.create_model(name, pretrained=False, num_classes=0, global_pool="", in_chans=num_channels)


def _cut(network: nn.Module, layer: str, name: str) -> nn.Module:
    from torch.fx.proxy import TraceError
    from torchvision.models.feature_extraction import create_feature_extractor

    try:
        return create_feature_extractor(network, {layer: "map"}, suppress_diff_warning=True)
    except (TraceError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be cut at {layer!r} ({error}): give the submodule as `network`") from error
    except ValueError as error:
        parts = ", ".join(path for path, _ in network.named_children())
        raise ValueError(f"layer={layer!r} is not a submodule of {name}; it has {parts} and theirs") from error


def _feature_map(output: Tensor | dict[str, Tensor]) -> Tensor:
    return output["map"] if isinstance(output, dict) else output
