"""The encoder g_enc for frames: strided convolutions on each frame, or on stacks of a frame and the frames before it.

B windows of T frames, S frames in a stack, H W rows and columns of pixels, D latent dim, P positions in the output of
the last layer, d channels of a layer.
"""

from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Num
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Range, checked
from cpc.data.tensors import check_tensor
from cpc.encoders.convolution import Norm, check_layers, initialise_layers
from cpc.encoders.encoder import Encoder, check_statistics
from cpc.encoders.tiny import TinyLayer


class FrameEncoder(Encoder):
    """Convolutions with ReLU, and a projection of all outputs, so that a latent can encode positions of objects.

    The layers are those of Mnih et al. 2015 (Human-level control through deep reinforcement learning). The first two
    are those of Espeholt et al. 2018 (IMPALA, arXiv:1802.01561), whose agents van den Oord et al. 2018 train in section
    3.4.

    Args:
        frame_size: H, W.
        dim: D.
        num_frames: S.
        widths: channels of each layer.
        kernels: side of the kernel of each layer, in pixels of its input.
        strides: stride of each layer.
        norm: see `TinyTrunk`.
    """

    modality = "frames"
    variable_axes: ClassVar[dict[int, str]] = {0: "batch", 1: "time"}
    hop_samples = 1
    geometry_names: ClassVar[tuple[str, ...]] = ("hop_samples", "num_frames", "frame_size")

    @checked
    def __init__(
        self,
        frame_size: tuple[Count, Count] = (105, 80),
        dim: Count = 256,
        num_frames: Count = 1,
        widths: tuple[Count, ...] = (32, 64, 64),
        kernels: tuple[Count, ...] = (8, 4, 3),
        strides: tuple[Count, ...] = (4, 2, 1),
        norm: Norm = "affine",
    ) -> None:
        super().__init__()
        check_layers(widths=widths, kernels=kernels, strides=strides)
        self.frame_size, self.dim, self.num_frames = tuple(frame_size), dim, num_frames
        self.widths, self.kernels, self.strides, self.norm = tuple(widths), tuple(kernels), tuple(strides), norm
        dims = [num_frames, *widths]
        self.layers = nn.Sequential(
            *(
                TinyLayer(dims[i], dims[i + 1], kernel, stride, norm, padding=0)
                for i, (kernel, stride) in enumerate(zip(kernels, strides, strict=True))
            )
        )
        height, width = self.frame_size
        for kernel, stride in zip(kernels, strides, strict=True):
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        Range(1).check(f"frames of {self.frame_size} pixels: the size after the last layer", min(height, width))
        self.num_places = height * width
        self.projection = nn.Linear(dims[-1] * self.num_places, dim)
        self.pixel_mean = nn.Buffer(torch.zeros(()))
        self.pixel_std = nn.Buffer(torch.ones(()))

    def random_input(self, generator: torch.Generator) -> Num[Tensor, "B T S H W"]:
        """Return noise of a random length, for `cpc export`."""
        batch, length = (int(torch.randint(most, (), generator=generator)) for most in (4, 8))
        size = (batch + 1, length + 1, self.num_frames, *self.frame_size)
        return torch.randint(256, size, generator=generator, dtype=torch.uint8)

    def forward(self, x: Num[Tensor, "B T S H W"]) -> Float[Tensor, "B T D"]:
        """Encode every stack of frames separately; pixels lie between 0 and 255."""
        return self.latents_and_places(x)[0]

    def latents_and_places(self, x: Num[Tensor, "B T S H W"]) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T _"]]:
        """Return the latents, and the outputs of the last layer at the P positions, flattened row by row."""
        places = rearrange(self.layers(self._pixels(x)), "(b t) h w d -> b t (h w d)", b=len(x))
        return self.projection(places), places

    def set_statistics(self, mean: float, std: float) -> None:
        """Set the mean and standard deviation that standardise the pixels; both on a scale where 255 is 1."""
        check_statistics(mean, std)
        self.pixel_mean.fill_(mean)
        self.pixel_std.fill_(std)

    def standardised(self, x: Num[Tensor, "B T S H W"]) -> Float[Tensor, "n 1"]:
        """Return the standardised pixels."""
        return rearrange(self._pixels(x), "n h w s -> (n h w s) 1")

    def initialise_from(self, x: Num[Tensor, "B T S H W"]) -> None:
        """Set scale and bias of each layer to give mean 0 and deviation 1 on these frames (norm `affine` only)."""
        initialise_layers(self.layers, self._pixels(x))

    def _pixels(self, x: Tensor) -> Float[Tensor, "n H W S"]:
        """Return the standardised stacks with channels last, as the layers need them."""
        check_tensor("frames", x, "numbers", ("B", "T", self.num_frames, *self.frame_size))
        pixels = x.to(self.pixel_mean.dtype) / 255
        return rearrange((pixels - self.pixel_mean) / self.pixel_std, "b t s h w -> (b t) h w s")
