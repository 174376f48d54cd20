"""Estimates of the total softmax weight (mass) of a block of classes, without scoring each class.

M queries, D dims, n classes, P of these classes, B blocks in N tiles, F features, S statistics of a block in Half
pairs, U moved classes.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.kernels import KernelMap
from cpc.config.argument_rules import Choices, Range

ROWS_AT_ONCE = 2**14
MAX_COORDINATE = 1e16  # the sum of a million squares of this number is finite in float32
TILE = 16  # blocks whose statistics are adjacent in memory: the floats of one vector register


class BlockMass(nn.Module, ABC):
    """An estimate, for each block, of the sum of exp(h . c / temperature) over its classes, up to a factor per query.

    The mass, or its log, is linear in statistics of the block, and the statistics follow from sums of features over its
    classes. All masses are therefore one matrix product. When a class moves, `update` adds the difference of its
    features to the sum. Each update changes the float32 sums by a relative rounding error of about 1e-7, until the next
    `refresh`; log q stays exact, but the proposal fits less well.

    Attributes:
        uniform_share: default share of the samples whose block is chosen in proportion to its number of classes. Masses
            that can be negative or inaccurate need a larger share.
        is_log: whether the products are logs of masses. The largest log of each query is then subtracted before exp.
        sums: sums of features over the classes of each block; in float32, because bfloat16 would lose the difference
            of a single class.
        statistics: statistics in tiles of 16 blocks, with two statistics of each block adjacent, which is the layout of
            two_level.c and of matrix units; zero beyond the last block. They are in bfloat16, because reading them is
            the main cost, and the rounding is far below the error of the estimate.
        needs_normalised: whether classes and queries must have length 1.
    """

    uniform_share: float
    is_log: bool
    needs_normalised = False
    sums: Float[Tensor, "B F"]
    statistics: Float[Tensor, "N Half 16 2"]

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Return F for embeddings of `dim` dimensions."""

    @abstractmethod
    def features(self, embeddings: Float[Tensor, "P D"]) -> Float[Tensor, "P F"]:
        """Return the features that are summed over the classes of a block."""

    @abstractmethod
    def block_statistics(self, sums: Float[Tensor, "B F"], sizes: Int[Tensor, " B"]) -> Float[Tensor, "B S"]:
        """Return the statistics of blocks with these sums and sizes."""

    @abstractmethod
    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """Return the factors of the queries in the product with the statistics."""

    def reserve(self, num_blocks: int, dim: int) -> None:
        """Allocate the buffers of `num_blocks` blocks; a ValueError if another sampler already uses this mass."""
        if next(self.buffers(recurse=False), None) is not None:
            raise ValueError(f"another sampler already uses this {type(self).__name__}")
        self.num_blocks = num_blocks
        sums = torch.zeros(num_blocks, self.num_features(dim), dtype=torch.float32)
        num_statistics = self.block_statistics(sums[:1], torch.ones(1, dtype=torch.long)).shape[1]
        num_tiles, num_pairs = math.ceil(num_blocks / TILE), math.ceil(num_statistics / 2)
        self.register_buffer("sums", sums)
        self.register_buffer("statistics", torch.zeros(num_tiles, num_pairs, TILE, 2, dtype=torch.bfloat16))

    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """Compute sums and statistics from all classes, which are in block order."""
        self.sums.zero_()
        for rows, indices in zip(embeddings.split(ROWS_AT_ONCE), blocks.split(ROWS_AT_ONCE), strict=True):
            self.sums.index_add_(0, indices, self.features(rows.float()))
        self._write_statistics(torch.arange(self.num_blocks, device=blocks.device), offsets)

    def update(
        self,
        old: Float[Tensor, "U D"],
        new: Float[Tensor, "U D"],
        blocks: Int[Tensor, " U"],
        offsets: Int[Tensor, " B1"],
    ) -> None:
        """Replace the embeddings `old` by `new` in these blocks."""
        for before, after, indices in zip(*(part.split(ROWS_AT_ONCE) for part in (old, new, blocks)), strict=True):
            self.sums.index_add_(0, indices, self.features(after.float()) - self.features(before.float()))
            self._write_statistics(indices, offsets)

    def forward(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M B"]:
        """Return the masses; the caller treats negative masses as zero."""
        factors = self.factors(queries, temperature)
        block_statistics = rearrange(self.statistics.float(), "n half b two -> (n b) (half two)")
        products = factors @ block_statistics[: self.num_blocks, : factors.shape[1]].T
        return (products - products.amax(1, keepdim=True)).exp() if self.is_log else products

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise ValueError on vectors that the mass cannot use; by default, every vector is valid."""

    def _write_statistics(self, blocks: Int[Tensor, " B"], offsets: Int[Tensor, " B1"]) -> None:
        """Write the statistics of these blocks into their tiles."""
        statistics = self.block_statistics(self.sums[blocks], offsets[blocks + 1] - offsets[blocks])
        pairs = rearrange(F.pad(statistics, (0, statistics.shape[1] % 2)), "b (half two) -> b half two", two=2)
        self.statistics[blocks // TILE, :, blocks % TILE] = pairs.to(self.statistics.dtype)


class CentroidMass(BlockMass):
    """The mass count * exp(h . mu / T + h^2 . var / (2 T^2)) from mean and variance of the classes of a block.

    The mass is exact for Gaussian embeddings with diagonal covariance, and close for compact blocks, such as those of
    k-means. The mass takes 2 D + 1 numbers per block, or D + 1 without the variance.

    Args:
        has_variance: whether to include the second term.
    """

    uniform_share = 0.01
    is_log = True

    def __init__(self, has_variance: bool = True) -> None:
        super().__init__()
        self.has_variance = has_variance

    def num_features(self, dim: int) -> int:  # noqa: D102
        return dim * (2 if self.has_variance else 1)

    def features(self, embeddings: Float[Tensor, "P D"]) -> Float[Tensor, "P F"]:
        """Return the embeddings, followed by their squares if the mass has a variance."""
        return torch.cat([embeddings, embeddings**2], dim=1) if self.has_variance else embeddings

    def block_statistics(self, sums: Float[Tensor, "B F"], sizes: Int[Tensor, " B"]) -> Float[Tensor, "B S"]:
        """Return the mean, the variance and the log of the number of classes."""
        sizes = rearrange(sizes, "b -> b 1")
        means = sums / sizes.clamp(min=1)
        if not self.has_variance:
            return torch.cat([means, sizes.log()], dim=1)
        mean, mean_square = means.chunk(2, dim=1)
        return torch.cat([mean, (mean_square - mean**2).clamp(min=0), sizes.log()], dim=1)

    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """Return h / T, half its square, and 1."""
        scores = queries / temperature
        squares = [0.5 * scores**2] if self.has_variance else []
        return torch.cat([scores, *squares, torch.ones_like(scores[:, :1])], dim=1)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise ValueError if a sum of squares could overflow; its block would be infinite until the next `refresh`."""
        if vectors.numel():
            Range(0, MAX_COORDINATE, is_below=True).check(f"largest coordinate of {name}", float(vectors.abs().amax()))


class FeatureMass(BlockMass):
    """The mass phi(h) . (sum of phi over the classes); with `RandomFourier`, RF-softmax without its tree
    (Rawat et al. 2019).

    Args:
        kernel: the feature map.
    """

    uniform_share = 0.1
    is_log = False

    def __init__(self, kernel: KernelMap) -> None:
        super().__init__()
        self.kernel = kernel
        self.needs_normalised = kernel.needs_normalised

    def num_features(self, dim: int) -> int:  # noqa: D102
        Choices((dim,)).check("the kernel's dim", self.kernel.dim)
        return self.kernel.num_features

    def features(self, embeddings: Float[Tensor, "P D"]) -> Float[Tensor, "P F"]:  # noqa: D102
        return self.kernel(embeddings)

    def block_statistics(self, sums: Float[Tensor, "B F"], sizes: Int[Tensor, " B"]) -> Float[Tensor, "B S"]:
        """Return the sums unchanged."""
        return sums

    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """Return the features of the queries; the kernel has its own scale, so `temperature` is ignored."""
        return self.kernel.query_features(queries)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:  # noqa: D102
        self.kernel.check(vectors, name)
