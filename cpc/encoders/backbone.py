"""Trunks from torchvision, timm and elsewhere, cut before pooling and classifier.

n patches, C colour channels, P pixels, D features, h w their rows and columns.
"""

import copy
import difflib
import importlib
import importlib.util
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_SIZES = (224, 448)  # sides of the images by which a network's features are measured
_MAX_NAMED = 4


class Backbone(nn.Module):
    """The convolutional part of a classification network.

    Most of these networks hold batch norm, through which the patches of a batch see each other: the contrastive task
    can then be solved through the leak ("We did not use Batch-Norm", section 3.2 of van den Oord et al. 2018; CPC v2,
    arXiv:1905.09272, saw it harm). It is refused unless allowed by name. torchvision's alexnet, vgg*, squeezenet*,
    convnext_* and swin_* have none. Their paddings are their own; many halve their input five times and want patches
    of 64 pixels or more.

    Args:
        network: `torchvision:resnet18` or any name of `torchvision.models.list_models`, or `timm:NAME` (timm is not
            among cpc's dependencies: `pip install timm`), made with random weights. Or a module, taken with the weights
            that it has; a model can be saved with one that keeps its arguments as attributes (see
            `cpc.checkpoint.describe`), and loaded with its package among `trusted_packages`.
        allow_batch_norm: take the network with its batch norms.
        num_channels: C of the pixels; other than 3, a named network's first convolution is made anew (timm does it
            itself).
        layer: name of the submodule whose output is taken, for example `layer3`; None takes the last features that are
            still a map, before pooling and classifier.

    Attributes:
        dim: D.
        stride: pixels from a feature to the next.
        receptive_field: None, not known: some of these networks look at their whole input.

    Raises:
        ValueError: on an unknown source, name or layer, timm that is not installed, batch norm that is not allowed, a
            module that does not take such pixels or cannot be cut, or an output that is no map `[n, D, h, w]`, such as
            the tokens of a vision Transformer.
    """

    receptive_field: int | None = None
    network: str | nn.Module

    def __init__(
        self,
        network: str | nn.Module,
        allow_batch_norm: bool = False,
        num_channels: int = 3,
        layer: str | None = None,
    ) -> None:
        super().__init__()
        if num_channels < 1:
            raise ValueError(f"num_channels={num_channels} must be at least 1")
        # Past nn.Module, which would count the parameters twice, here and among the features.
        object.__setattr__(self, "network", network)
        self.name = network if isinstance(network, str) else type(network).__name__
        self.allow_batch_norm = allow_batch_norm
        self.num_channels = num_channels
        self.layer = layer

        whole = _named(network, num_channels) if isinstance(network, str) else network
        _check_batch_norm(whole, self.name, allow_batch_norm)
        if layer is None and not _gives_map(whole, self.name, num_channels):
            layer = _last_map(whole, self.name, num_channels)
        self.features = whole if layer is None else _cut(whole, layer, self.name)
        self.dim, self.stride = self._measure()

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D h w"]:
        """Encode patches, or images of any size that the network takes, whose pixels are standardised.

        Raises:
            ValueError: if `x` has other channels than the network.
        """
        if x.shape[1] != self.num_channels:
            raise ValueError(
                f"pixels of {x.shape[1]} channels were given to a trunk of num_channels={self.num_channels}"
            )
        return _map_of(self.features(x))

    def initialise_from(self, x: Float[Tensor, "n C P Q"]) -> None:
        """Nothing: the network keeps the initialisation of its library."""

    def _measure(self) -> tuple[int, int]:
        """D and the stride, by runs that compute shapes alone."""
        features = copy.deepcopy(self.features).to("meta").eval()
        small, large = _SIZES
        shape = _map_of(features(_blank(self.num_channels, small))).shape
        if len(shape) == 4:
            larger = _map_of(features(_blank(self.num_channels, large))).shape
            if larger[1] == shape[1] and larger[2] > shape[2]:
                return shape[1], round((large - small) / (larger[2] - shape[2]))
        raise ValueError(
            f"{self.name} gives {tuple(shape)} for an image of {small} pixels, which is no map [n, D, h, w] that grows "
            "with the image: choose a convolutional network, or another layer"
        )


def _named(network: str, num_channels: int) -> nn.Module:
    source, _, name = network.partition(":")
    if source not in _SOURCES:
        raise ValueError(f"network={network!r} begins with none of {', '.join(f'{each}:' for each in _SOURCES)}")
    return _SOURCES[source](name, num_channels)


def _torchvision(name: str, num_channels: int) -> nn.Module:
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        raise ValueError(f"torchvision has no classification network {name!r}{_similar(name, names)}")
    # These two have classifiers on the side, and warn unless told how to initialise themselves.
    options = {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    network = models.get_model(name, weights=None, **options)
    return network if num_channels == 3 else _with_channels(network, num_channels)


def _timm(name: str, num_channels: int) -> nn.Module:
    if importlib.util.find_spec("timm") is None:
        raise ValueError(f"network='timm:{name}' needs the package timm, which is not installed: pip install timm")
    timm = importlib.import_module("timm")
    if not timm.is_model(name):
        raise ValueError(f"timm has no network {name!r}{_similar(name, timm.list_models())}")
    return timm.create_model(name, pretrained=False, in_chans=num_channels, num_classes=0, global_pool="")


_SOURCES = {"torchvision": _torchvision, "timm": _timm}


def _check_batch_norm(network: nn.Module, name: str, is_allowed: bool) -> None:
    norms = nn.modules.batchnorm._BatchNorm  # what all of them are: synchronised, lazy, timm's own
    found = [each for each, module in network.named_modules() if isinstance(module, norms)]
    if found and not is_allowed:
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        raise ValueError(
            f"{name} holds batch norm ({', '.join(found[:_MAX_NAMED])}{more}): patches of a batch would see each other "
            "through its statistics and could solve the contrastive task by that leak. Choose a network without "
            "(ResNetTrunk, torchvision:convnext_tiny, torchvision:vgg11), or pass allow_batch_norm=True"
        )


def _with_channels(network: nn.Module, num_channels: int) -> nn.Module:
    """The network with a first convolution for other pixels, as freshly initialised as the rest."""
    path, old = next((path, each) for path, each in network.named_modules() if isinstance(each, nn.Conv2d))
    parent, _, child = path.rpartition(".")
    new = nn.Conv2d(
        num_channels,
        old.out_channels,
        old.kernel_size,  # type: ignore[arg-type]
        old.stride,  # type: ignore[arg-type]
        old.padding,  # type: ignore[arg-type]
        bias=old.bias is not None,
    )
    setattr(network.get_submodule(parent), child, new)
    return network


def _gives_map(network: nn.Module, name: str, num_channels: int) -> bool:
    """Whether the features come out as they are, without pooling and classifier."""
    try:
        output = copy.deepcopy(network).to("meta").eval()(_blank(num_channels, _SIZES[0]))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"{name} does not encode pixels of num_channels={num_channels}, {_SIZES[0]} a side: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] > 1


def _last_map(network: nn.Module, name: str, num_channels: int) -> str:
    """The last child whose output is a map wider than one feature and not pooled to a fixed size."""
    shapes: dict[str, tuple[int, ...]] = {}
    copied = copy.deepcopy(network).to("meta").eval()
    children = dict(copied.named_children())
    for path, child in children.items():

        def keep(module: nn.Module, inputs: Any, output: Any, path: str = path) -> None:
            shapes[path] = tuple(output.shape) if isinstance(output, Tensor) else ()

        child.register_forward_hook(keep)
    copied(_blank(num_channels, _SIZES[0]))
    maps = [
        path
        for path, shape in shapes.items()
        if len(shape) == 4 and shape[2] > 1 and not isinstance(children[path], nn.AdaptiveAvgPool2d)
    ]
    after = list(children)[list(children).index(maps[-1]) + 1 :] if maps else list(children)
    hidden = [path for path in after if isinstance(children[path], nn.ModuleList) or len(shapes.get(path, ())) == 3]
    if hidden or not maps:
        raise ValueError(
            f"{name} does not end in a map of features ({', '.join(hidden)}): choose a convolutional network, or name "
            f"a layer of it; its parts are {', '.join(children)}"
        )
    return maps[-1]


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
        raise ValueError(f"layer={layer!r} is no part of {name}, which has {parts} and their parts") from error


def _map_of(output: Tensor | dict[str, Tensor]) -> Tensor:
    return output["map"] if isinstance(output, dict) else output


def _blank(num_channels: int, size: int) -> Tensor:
    return torch.empty(1, num_channels, size, size, device="meta")


def _similar(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names)
    return f"; did you mean {' or '.join(close)}?" if close else ""
