"""Mean and standard deviation of uint8 images, exact, from whole-number sums. B images, S side, C channels."""

from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import Float64, Int64, UInt8


class ChannelStatistics(NamedTuple):
    """Of every channel, with pixels in [0, 1]."""

    mean: Float64[np.ndarray, " C"]
    std: Float64[np.ndarray, " C"]


def pixel_sums(images: UInt8[np.ndarray, "B S S C"]) -> Int64[np.ndarray, "B 2 C"]:
    """Per image and channel, the sum of its pixels and of their squares."""
    # Exact in float64: the sum of the squares of an image stays below 2**53. Channels first, since sums along the last
    # axis are ten times faster.
    pixels = rearrange(images, "b h w c -> b c (h w)").astype(np.float64)
    squares = pixels[:, :, None, :] @ pixels[:, :, :, None]
    return np.stack([pixels.sum(axis=-1), squares[:, :, 0, 0]], axis=1).astype(np.int64)


def channel_statistics(sums: Int64[np.ndarray, "B 2 C"], num_pixels: int) -> ChannelStatistics:
    """Mean and standard deviation over all pixels of all images.

    Args:
        sums: of each image, as `pixel_sums` has them.
        num_pixels: of an image, per channel.
    """
    # Python's whole numbers until the division: no overflow, and no cancellation.
    num_values = num_pixels * len(sums)
    totals, totals_of_squares = sums.sum(axis=0).tolist()
    means, stds = [], []
    for total, total_of_squares in zip(totals, totals_of_squares, strict=True):
        variance = (num_values * total_of_squares - total**2) / num_values**2
        means.append(total / num_values / 255)
        stds.append(variance**0.5 / 255)
    return ChannelStatistics(np.array(means), np.array(stds))
