"""Trunks from torchvision, timm, or any network of your own, cut at a layer.

n patches, C colour channels, P pixels, D features, h w their rows and columns.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

_SIZES = (224, 448)  # sides of the images by which a network's features are measured


class Backbone(nn.Module):
    """A classification network up to one of its convolutional layers.

    Many of these networks halve their input five times and want patches of 64 pixels or more. Most hold batch norm,
    through which the patches of a batch see each other: `PatchEncoder` refuses it unless it is allowed by name.
    torchvision's alexnet, vgg*, squeezenet* and convnext_* have none.

    Args:
        network: name of one of torchvision's classification networks, or `timm/NAME` for one of timm's without its
            classifier, made with random weights; or a module, taken with the weights that it has. A model can be saved
            with a module that keeps its arguments as attributes (see `cpc.config.description`), and loaded with
            its package among `trusted_packages`.
        layer: name of the submodule whose output is taken: `layer3` of a resnet, `features` of a vgg, squeezenet or
            convnext; None takes what the network returns.
        num_channels: C that the network takes; 3 for torchvision's.
        allow_batch_norm: take the network with its batch norms.

    Attributes:
        dim: D.
        stride: pixels from a feature to the next.
        receptive_field: None, not known: some of these networks look at their whole input.

    Raises:
        ValueError: on an unknown name or layer, a network that cannot be cut or does not take such pixels, or an output
            that is not a map `[n, D, h, w]`, such as the tokens of a vision Transformer.
    """

    receptive_field: int | None = None
    network: str | nn.Module

    def __init__(
        self,
        network: str | nn.Module,
        layer: str | None = None,
        num_channels: int = 3,
        allow_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        if num_channels < 1:
            raise ValueError(f"num_channels={num_channels} must be at least 1")
        # Past nn.Module, which would count the parameters twice, here and among the features.
        object.__setattr__(self, "network", network)
        self.layer = layer
        self.num_channels = num_channels
        self.allow_batch_norm = allow_batch_norm
        self.name = network if isinstance(network, str) else type(network).__name__
        whole = _named(network, num_channels) if isinstance(network, str) else network
        self.features = whole if layer is None else _cut(whole, layer, self.name)
        self.dim, self.stride = self._measure()

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D h w"]:
        """Encode patches, or images of any size that the network takes, whose pixels are standardised."""
        return _map_of(self.features(x))

    def initialise_from(self, x: Float[Tensor, "n C P Q"]) -> None:
        """Keep the initialisation of the network's library."""

    def _measure(self) -> tuple[int, int]:
        """D and the stride, by runs that compute shapes alone."""
        features = copy.deepcopy(self.features).to("meta").eval()
        small, large = _SIZES
        found, larger = (self._shape(features, size) for size in _SIZES)
        if len(found) != 4 or larger[1] != found[1] or larger[2] <= found[2]:
            raise ValueError(
                f"{self.name} gives {found} for an image of {small} pixels, which is not a map [n, D, h, w] that grows "
                "with the image: choose a convolutional network, or set layer to the last one that gives a map"
            )
        return found[1], round((large - small) / (larger[2] - found[2]))

    def _shape(self, features: nn.Module, size: int) -> tuple[int, ...]:
        try:
            return tuple(_map_of(features(torch.empty(1, self.num_channels, size, size, device="meta"))).shape)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"{self.name} does not encode pixels of num_channels={self.num_channels}, {size} a side: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error


def _named(name: str, num_channels: int) -> nn.Module:
    library, _, of_timm = name.rpartition("/")
    if library == "timm":
        return _timm(of_timm, num_channels)
    from torchvision import models

    if name not in models.list_models(module=models):
        raise ValueError(
            f"torchvision has no classification network {name!r}; torchvision.models.list_models() lists them, and "
            "timm's are called timm/NAME"
        )
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
        raise ValueError(
            f"{name} cannot be cut at {layer!r}, since torch.fx cannot follow it ({error}): hand in the part wanted"
        ) from error
    except ValueError as error:
        parts = ", ".join(path for path, _ in network.named_children())
        raise ValueError(f"layer={layer!r} is not a part of {name}, which has {parts} and their parts") from error


def _map_of(output: Tensor | dict[str, Tensor]) -> Tensor:
    return output["map"] if isinstance(output, dict) else output
