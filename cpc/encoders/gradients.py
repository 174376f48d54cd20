"""A trunk on histograms of oriented gradients: two layers map the histograms of a patch to a latent.

n patches, C colour channels, P Q sides of a patch in pixels, O orientations, h w cells of a patch, F features, D latent
dim.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, checked
from cpc.encoders.convolution import check_side, std_and_mean

_LEAST_CONTRAST = 0.05  # added to the contrast of standardised pixels, so that the division amplifies no noise


class GradientTrunk(nn.Module):
    """A two-layer network on standardised histograms of gradients and colours of the cells of a patch.

    The features follow Dalal and Triggs 2005. The gradient of a pixel is the largest gradient among its channels. The
    gradient is distributed over the two nearest orientations and the four nearest cells. The histogram of a cell is
    divided by the contrast of the cells around it. Unlike in the paper, gradients are signed, and cells outside the
    patch are not used. Also, the square root is taken, so that a few strong edges do not dominate. Further features are
    the brightness of each cell, the differences of its colour channels and the logarithm of its contrast. The features
    are fixed, except that `initialise_from` measures the mean and deviation of every feature once.

    Augmentation puts a frame of one colour around patches, and its edge would count as a gradient. So training requires
    `augmentation: none` or `light`.

    Args:
        dim: D, the width of the latents.
        hidden_dim: width of the hidden layer.
        num_channels: C of the pixels.
        num_orientations: O, orientations of the whole circle.
        num_cells: cells along a side; their size grows with the patch.

    Attributes:
        stride: 1: patches may have any side from `num_cells + 2` pixels.
        receptive_field: None: a latent depends on the whole input.
        takes_frames: whether patches may have a frame of one colour.
    """

    stride = 1
    receptive_field: int | None = None
    takes_frames = False

    @checked
    def __init__(
        self,
        dim: Count = 256,
        hidden_dim: Count = 512,
        num_channels: Count = 3,
        num_orientations: Count = 16,
        num_cells: Count = 4,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.hidden_dim = hidden_dim
        self.num_channels = num_channels
        self.num_orientations = num_orientations
        self.num_cells = num_cells
        num_features = (num_orientations + num_channels + 1) * num_cells**2
        self.layers = nn.Sequential(nn.Linear(num_features, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, dim))
        self.feature_mean = nn.Buffer(torch.zeros(num_features))
        self.feature_std = nn.Buffer(torch.ones(num_features))

    def forward(self, x: Float[Tensor, "n C P Q"]) -> Float[Tensor, "n D 1 1"]:
        """Encode patches of standardised pixels, at least `num_cells + 2` a side."""
        latents = self.layers((self._features(x) - self.feature_mean) / self.feature_std)
        return rearrange(latents, "n d -> n d 1 1")

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "n C P Q"]) -> None:
        """Set the mean and deviation of every feature from these patches."""
        std, mean = std_and_mean(self._features(x), (0,))
        self.feature_mean.copy_(mean)
        self.feature_std.copy_(std.clamp(min=1e-3))

    def _features(self, x: Tensor) -> Float[Tensor, "n F"]:
        check_side(x, self.num_cells + 2)
        histograms = cell_means(orientation_maps(x, self.num_orientations), self.num_cells)
        energy = reduce(histograms.square(), "n o h w -> n 1 h w", "sum")
        contrast = F.avg_pool2d(energy, 3, 1, 1, count_include_pad=False).sqrt() + _LEAST_CONTRAST
        colours = cell_means(x[:, :, 1:-1, 1:-1], self.num_cells)
        brightness = reduce(colours, "n c h w -> n 1 h w", "mean")
        features = torch.cat([(histograms / contrast).sqrt(), contrast.log(), brightness, colours.diff(dim=1)], 1)
        return features.flatten(1)


def orientation_maps(x: Float[Tensor, "n C P Q"], num_orientations: int) -> Float[Tensor, "n O p q"]:
    """Return gradient sizes per orientation, without border pixels. Each size is split between two orientations."""
    down = (x[:, :, 2:, 1:-1] - x[:, :, :-2, 1:-1]) / 2
    right = (x[:, :, 1:-1, 2:] - x[:, :, 1:-1, :-2]) / 2
    size, channel = (down.square() + right.square()).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, channel), right.gather(1, channel))
    position = angle * (num_orientations / (2 * math.pi))
    below = position.floor()
    orientation, share_above = below.long() % num_orientations, position - below
    maps = x.new_zeros(len(x), num_orientations, *size.shape[2:])
    maps.scatter_(1, orientation, (1 - share_above) * size.sqrt())
    return maps.scatter_add_(1, (orientation + 1) % num_orientations, share_above * size.sqrt())


def cell_means(x: Float[Tensor, "n O p q"], num_cells: int) -> Float[Tensor, "n O h w"]:
    """Return weighted means of each cell; weights fall linearly from its centre to the centres of its neighbours."""
    row_weights, column_weights = (_cell_weights(size, num_cells).to(x) for size in x.shape[2:])
    return row_weights @ x @ column_weights.T


def _cell_weights(size: int, num_cells: int) -> Float[Tensor, "h p"]:
    """Return the weight of each pixel in each cell along a side; the weights of a cell sum to 1."""
    centres = (torch.arange(num_cells) + 0.5) * (size / num_cells)
    pixels = torch.arange(size) + 0.5
    distance = (pixels - rearrange(centres, "h -> h 1")).abs() * (num_cells / size)
    weights = (1 - distance).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)
