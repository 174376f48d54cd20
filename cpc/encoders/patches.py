"""The encoder g_enc for images: the same network encodes every patch of a grid, one latent per patch.

B images, C channels, S image side, P patch side, H rows and W columns of patches, D latent dim.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cpc.config.argument_rules import Count, Range, checked
from cpc.data.tensors import check_tensor
from cpc.encoders.encoder import Encoder, check_statistics
from cpc.encoders.patch_grid import PatchGrid


class PatchEncoder(Encoder):
    """An encoder of a grid of patches; a latent is the spatial mean of the features of a trunk.

    This is the encoder of section 3.2 of van den Oord et al. 2018. Patches are encoded separately, so a latent depends
    only on the pixels of its patch. With `fully_convolutional` the trunk instead runs once over the whole image, and
    the features inside each patch are averaged. This computes the overlap of patches only once. But a latent then
    depends on pixels beyond its patch, up to the receptive field of the trunk; separate patches are padded with zeros
    there. Contexts then contain pixels of more rows below, so set the `skip_steps` of the loss to `overlapping_rows`.

    Args:
        trunk: network from pixels `[n, C, P, P]` to features `[n, D, h, w]`; see `cpc.encoders.TinyTrunk` and
            `ResNetTrunk`.
        patch_size: P.
        stride: distance of neighbouring patches in pixels.
        fully_convolutional: run the trunk over whole images; patch size and stride must be multiples of its stride.
        crop_size: side of a central square of each patch; the mean colour replaces the pixels around the square, as
            augmentation does in training. None: the whole patch. `cpc pretrain` sets this option. If patches are passed
            instead of images, this option does not change them.

    Attributes:
        overlapping_rows: the number of following rows whose latents share pixels with the latents of a row.

    Raises:
        ValueError: if there are pixels between patches; if patches are too small for the trunk (one patch is encoded to
            check); if the trunk has batch norm without `allow_batch_norm`; with `fully_convolutional`, if the receptive
            field of the trunk is unlimited or unknown, the grid does not fit its stride, or `crop_size` is set.
    """

    modality = "image"
    latents = "grids"
    geometry_names: ClassVar[tuple[str, ...]] = ("patch_size", "stride", "num_channels")
    variable_axes: ClassVar[dict[int, str]] = {0: "batch", 2: "height", 3: "width"}

    # Any, because the attribute types of nn.Module hide the protocol of trunks (dim, stride, initialise_from, ...).
    trunk: Any

    @checked
    def __init__(
        self,
        trunk: nn.Module,
        patch_size: Count = 16,
        stride: Count = 8,
        fully_convolutional: bool = False,
        crop_size: int | None = None,
    ) -> None:
        super().__init__()
        batch_norms = [name for name, module in trunk.named_modules() if isinstance(module, _BatchNorm)]
        if batch_norms and not getattr(trunk, "allow_batch_norm", False):
            raise ValueError(f"the trunk has batch norm ({', '.join(batch_norms[:3])}); see allow_batch_norm")
        self.trunk = trunk
        self.patch_size = patch_size
        self.stride = stride
        self.fully_convolutional = fully_convolutional
        self.crop_size = crop_size
        self.grid = PatchGrid(patch_size, stride)
        if crop_size is not None:
            Range(1, patch_size).check("`crop_size`", crop_size)
        if fully_convolutional and (
            crop_size
            or self.trunk.receptive_field is None
            or patch_size % self.trunk.stride
            or stride % self.trunk.stride
        ):
            legal = f"multiples of {self.trunk.stride}, crop_size None, and the trunk have a limited receptive_field"
            raise ValueError(f"{patch_size=} and {stride=} must be {legal}, with `fully_convolutional`")
        _try_patch(trunk, patch_size)
        # Number of pixels beyond each side of its patch on which a latent depends, if the trunk runs over whole images.
        margin = (self.trunk.receptive_field - self.trunk.stride + 1) // 2 if fully_convolutional else 0
        self.overlapping_rows = -(-(patch_size + 2 * margin) // stride) - 1
        self.dim: int = self.trunk.dim
        self.num_channels: int = self.trunk.num_channels
        self.pixel_mean = nn.Buffer(torch.zeros(self.num_channels))
        self.pixel_std = nn.Buffer(torch.ones(self.num_channels))

    def random_input(self, generator: torch.Generator) -> Float[Tensor, "B C S S2"]:
        """Return noise with a random number of rows and columns of patches, for `cpc export`."""
        batch, *cells = (int(torch.randint(most, (), generator=generator)) for most in (4, 5, 5))
        sides = [self.patch_size + self.stride * (num + 1) for num in cells]
        return torch.rand(batch + 1, self.num_channels, *sides, generator=generator)

    def forward(self, x: Float[Tensor, "B C S S2"] | Float[Tensor, "B H W C P P"]) -> Float[Tensor, "B H W D"]:
        """Encode images, or patches that are already cut, with pixels in [0, 1].

        Raises:
            ValueError: if the number of channels is not that of the trunk, or the grid does not fit the images.
        """
        features = self.trunk(self._pixels(x))
        if self.fully_convolutional:
            cell = self.trunk.stride
            pooled = F.avg_pool2d(features, self.patch_size // cell, self.stride // cell)
            return rearrange(pooled, "b d h w -> b h w d")
        num_rows, num_columns = x.shape[1:3] if x.ndim == 6 else map(self.grid.side, x.shape[2:])
        latents = reduce(features, "n d p q -> n d", "mean")
        return rearrange(latents, "(b h w) d -> b h w d", h=num_rows, w=num_columns)

    def num_latents(self, num_samples: Any) -> Any:
        """Return None: images have no padding, so all latents are valid."""

    def set_statistics(self, mean: Float[Tensor, " C"], std: Float[Tensor, " C"]) -> None:
        """Set the mean and standard deviation of each channel that standardise the pixels."""
        check_statistics(mean, std)
        self.pixel_mean.copy_(mean)
        self.pixel_std.copy_(std)

    def standardised(self, x: Float[Tensor, "B C S S2"] | Float[Tensor, "B H W C P P"]) -> Float[Tensor, "n C"]:
        """Return the standardised pixels."""
        return rearrange(self._pixels(x), "n c p q -> (n p q) c")

    @torch.no_grad()
    def initialise_from(self, x: Float[Tensor, "B C S S2"] | Float[Tensor, "B H W C P P"]) -> None:
        """Initialise the trunk from this batch, as the trunk defines it."""
        self.trunk.initialise_from(self._pixels(x))

    def _pixels(self, x: Tensor) -> Float[Tensor, "n C P Q"]:
        """Return the standardised input of the trunk: all patches, or whole images."""
        is_cut = x.ndim == 6 and not self.fully_convolutional  # a fully convolutional trunk reads whole images
        check_tensor(
            "pixels",
            x,
            "numbers",
            ("B", "H", "W", self.num_channels, "P", "P") if is_cut else ("B", self.num_channels, "S", "S"),
        )
        if not self.fully_convolutional:
            x = rearrange(x if is_cut else self._cut(x), "b h w c p q -> (b h w) c p q")
        else:
            for size in x.shape[2:]:
                self.grid.side(size)
        return (x - rearrange(self.pixel_mean, "c -> c 1 1")) / rearrange(self.pixel_std, "c -> c 1 1")

    def _cut(self, images: Float[Tensor, "B C S S2"]) -> Float[Tensor, "B H W C P P"]:
        patches = self.grid.patches(images)
        if self.crop_size is None:
            return patches
        inside = self.grid.is_inside(self.crop_size).to(images.device)
        return torch.where(inside, patches, rearrange(self.pixel_mean, "c -> c 1 1"))


@torch.no_grad()
def _try_patch(trunk: Any, patch_size: int) -> None:
    """Encode one black patch as a check. The patch has memory, because not every network runs on the meta device."""
    was_training = {module: module.training for module in trunk.modules()}
    device = next((weight.device for weight in trunk.parameters()), None)
    try:
        shape = tuple(trunk.eval()(torch.zeros(1, trunk.num_channels, patch_size, patch_size, device=device)).shape)
        problem = "" if len(shape) == 4 and 0 not in shape else f"gives {shape} for a patch, not a map [n, D, h, w]"
    except (RuntimeError, ValueError, AssertionError) as error:
        problem = f"cannot encode a patch: {' '.join(str(error).split())[:300]}"
    finally:
        for module, flag in was_training.items():
            module.training = flag
    if problem:
        name = getattr(trunk, "name", type(trunk).__name__)
        raise ValueError(f"patch_size={patch_size} does not fit the trunk {name}, which {problem}")
