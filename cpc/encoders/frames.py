"""g_enc for frames of an environment: the same convolutions for every frame.

B sequences, T frames, C H W their channels, rows and columns, D latent dim.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn



class FrameEncoder(nn.Module):
    """Strided convolutions with ReLU, and a linear map of all that they give (Mnih et al. 2015).

    Args:
        frame_size: rows and columns.
        num_channels: C.
        dim: D.
        kernels: of each layer.
        strides: of each layer.
        widths: channels of each layer.

    Raises:
        ValueError: on unequal numbers of kernels, strides and widths, or frames too small for them.
    """

    modality = "frames"
    latents = "sequences"
    hop_samples = 1

    def __init__(
        self,
        frame_size: tuple[int, int] = (48, 64),
        num_channels: int = 1,
        dim: int = 256,
        kernels: tuple[int, ...] = (8, 4, 3),
        strides: tuple[int, ...] = (4, 2, 1),
        widths: tuple[int, ...] = (32, 64, 64),
    ) -> None:
        super().__init__()
        if not len(kernels) == len(strides) == len(widths):
            raise ValueError(
                f"kernels, strides and widths describe one layer each, got {len(kernels)}, {len(strides)} and "
                f"{len(widths)} of them"
            )
        if min(dim, num_channels, *kernels, *strides, *widths) < 1:
            raise ValueError(f"dim={dim}, num_channels={num_channels}, kernels, strides and widths must be at least 1")
        self.frame_size, self.num_channels, self.dim = tuple(frame_size), num_channels, dim
        self.kernels, self.strides, self.widths = tuple(kernels), tuple(strides), tuple(widths)
        rows, columns = self.frame_size
        layers: list[nn.Module] = []
        before = num_channels
        for kernel, stride, width in zip(kernels, strides, widths, strict=True):
            rows, columns = (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
            if min(rows, columns) < 1:
                raise ValueError(f"frame_size={self.frame_size} is too small for kernels={self.kernels}, strides={self.strides}")
            layers += [nn.Conv2d(before, width, kernel, stride), nn.ReLU()]
            before = width
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * rows * columns, dim))

    def forward(self, x: Shaped[Tensor, "B T C H W"]) -> Float[Tensor, "B T D"]:
        """Encode every frame by itself; whole numbers are taken as 0 to 255.

        Raises:
            ValueError: on frames of another size.
        """
        if x.shape[2:] != (self.num_channels, *self.frame_size):
            raise ValueError(
                f"frames are {tuple(x.shape[2:])}, but the encoder takes {(self.num_channels, *self.frame_size)}: set its "
                "num_channels and frame_size to those of the data"
            )
        frames = rearrange(x, "b t c h w -> (b t) c h w").to(self.layers[0].weight.dtype)  # type: ignore[arg-type]
        return rearrange(self.layers(frames / 255 - 0.5), "(b t) d -> b t d", b=len(x))

    @property
    def geometry(self) -> dict[str, int]:
        """Where latents lie, for readers of config.json."""
        return {"hop_samples": self.hop_samples}

    def num_latents(self, num_samples: Int[Tensor, " B"] | int) -> Int[Tensor, " B"] | int:
        """One latent a frame."""
        return num_samples

    def initialise_from(self, x: Tensor) -> None:
        """Weights begin as torch draws them."""

    def set_statistics(self, mean: float, std: float) -> None:
        """Pixels run from 0 to 255."""
