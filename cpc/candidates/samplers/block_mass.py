"""What the classes of a block weigh together for a query, without looking at each.

M queries, D dims, n classes, P of them, B blocks in N tiles, F features, S statistics of a block in Half pairs, U moved
classes.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.kernels import KernelMap

ROWS_AT_ONCE = 2**14
MOST = 1e16  # of a coordinate: a million squares still have a sum
TILE = 16  # blocks whose statistics lie side by side: a vector register's floats


class BlockMass(nn.Module, ABC):
    """Estimates sum exp(h . c / temperature) over each block's classes, up to a factor for each query.

    The mass or its log is linear in statistics of the block, which follow from sums of features over its classes: all
    masses are one matrix product, and a class that moves adds the difference of its features, at the cost of these. In
    float32 the sums drift by some 1e-7 of themselves each time, which changes the quality of the law, not the exactness
    of log q, until the next `refresh`.

    Attributes:
        uniform_share: of the block draws that should go by number of classes, where the user names no share: more where
            masses can be negative or far off.
        is_log: whether the products are logs of masses, to be taken relative to each query's largest.
        sums: of the features of each block's classes; in float32, as differences of single classes would be lost in
            bfloat16.
        statistics: in tiles of 16 blocks, where two statistics of each block lie side by side, as two_level.c and
            matrix units want them; zero beyond the last. In bfloat16: reading them is what masses cost, and their
            rounding is far below the estimate's own error.
        needs_normalised: whether classes and queries must have length 1.
    """

    uniform_share: float
    is_log: bool
    needs_normalised = False
    sums: Float[Tensor, "B F"]
    statistics: Float[Tensor, "N Half 16 2"]

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """F for embeddings of so many dimensions."""

    @abstractmethod
    def features(self, embeddings: Float[Tensor, "P D"]) -> Float[Tensor, "P F"]:
        """What is summed over a block's classes."""

    @abstractmethod
    def statistics_of(self, sums: Float[Tensor, "B F"], sizes: Int[Tensor, " B"]) -> Float[Tensor, "B S"]:
        """Statistics of blocks with these sums and so many classes."""

    @abstractmethod
    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """What the statistics are multiplied with."""

    def reserve(self, num_blocks: int, dim: int) -> None:
        """Make room for so many blocks.

        Raises:
            ValueError: if this mass takes another width, or another sampler uses it: its masses would be erased.
        """
        if next(self.buffers(recurse=False), None) is not None:
            raise ValueError(f"this {type(self).__name__} is another sampler's: give each TwoLevel a mass of its own")
        self.num_blocks = num_blocks
        sums = torch.zeros(num_blocks, self.num_features(dim), dtype=torch.float32)
        num_statistics = self.statistics_of(sums[:1], torch.ones(1, dtype=torch.long)).shape[1]
        num_tiles, num_pairs = math.ceil(num_blocks / TILE), math.ceil(num_statistics / 2)
        self.register_buffer("sums", sums)
        self.register_buffer("statistics", torch.zeros(num_tiles, num_pairs, TILE, 2, dtype=torch.bfloat16))

    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """From all classes, in block order."""
        self.sums.zero_()
        for rows, into in zip(embeddings.split(ROWS_AT_ONCE), blocks.split(ROWS_AT_ONCE), strict=True):
            self.sums.index_add_(0, into, self.features(rows.float()))
        self._put(torch.arange(self.num_blocks, device=blocks.device), offsets)

    def update(
        self,
        old: Float[Tensor, "U D"],
        new: Float[Tensor, "U D"],
        blocks: Int[Tensor, " U"],
        offsets: Int[Tensor, " B1"],
    ) -> None:
        """After classes of these blocks have moved."""
        for before, after, of in zip(*(each.split(ROWS_AT_ONCE) for each in (old, new, blocks)), strict=True):
            self.sums.index_add_(0, of, self.features(after.float()) - self.features(before.float()))
            self._put(of, offsets)

    def forward(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M B"]:
        """The masses; negative ones count as zero."""
        factors = self.factors(queries, temperature)
        by_block = rearrange(self.statistics.float(), "n half b two -> (n b) (half two)")
        products = factors @ by_block[: self.num_blocks, : factors.shape[1]].T
        return (products - products.amax(1, keepdim=True)).exp() if self.is_log else products

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse vectors that the mass cannot use; by default none."""

    def _put(self, blocks: Int[Tensor, " B"], offsets: Int[Tensor, " B1"]) -> None:
        """The statistics of these blocks, into their tiles."""
        statistics = self.statistics_of(self.sums[blocks], offsets[blocks + 1] - offsets[blocks])
        pairs = rearrange(F.pad(statistics, (0, statistics.shape[1] % 2)), "b (half two) -> b half two", two=2)
        self.statistics[blocks // TILE, :, blocks % TILE] = pairs.to(self.statistics.dtype)


class CentroidMass(BlockMass):
    """count * exp(h . mu / T + h^2 . var / (2 T^2)): exact for a block of Gaussian embeddings with diagonal covariance.

    2 D + 1 numbers a block (D + 1 without the variance), and close where blocks are tight: by k-means.

    Args:
        has_variance: whether to take the second term.
    """

    uniform_share = 0.01
    is_log = True

    def __init__(self, has_variance: bool = True) -> None:
        super().__init__()
        self.has_variance = has_variance

    def num_features(self, dim: int) -> int:
        """D, or 2 D with the squares for the variance."""
        return dim * (2 if self.has_variance else 1)

    def features(self, embeddings: Float[Tensor, "P D"]) -> Float[Tensor, "P F"]:
        """Embeddings, and their squares for the variance."""
        return torch.cat([embeddings, embeddings**2], dim=1) if self.has_variance else embeddings

    def statistics_of(self, sums: Float[Tensor, "B F"], sizes: Int[Tensor, " B"]) -> Float[Tensor, "B S"]:
        """Mean, variance and log number of the classes."""
        sizes = rearrange(sizes, "b -> b 1")
        means = sums / sizes.clamp(min=1)
        if not self.has_variance:
            return torch.cat([means, sizes.log()], dim=1)
        mean, mean_square = means.chunk(2, dim=1)
        return torch.cat([mean, (mean_square - mean**2).clamp(min=0), sizes.log()], dim=1)

    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """The scores h / T, their squares over two, and 1."""
        scores = queries / temperature
        squares = [0.5 * scores**2] if self.has_variance else []
        return torch.cat([scores, *squares, torch.ones_like(scores[:, :1])], dim=1)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise ValueError where sums of squares could overflow: the block would be lost until the next `refresh`."""
        if vectors.numel() and not float(vectors.abs().amax()) < MOST:
            raise ValueError(f"{name} beyond {MOST:g}: the model has diverged; lower the learning rate, or clip")


class FeatureMass(BlockMass):
    """phi(h) . (sum of the classes' phi): with `RandomFourier`, RF-softmax (Rawat et al. 2019) without its tree.

    Args:
        kernel: the feature map.
    """

    uniform_share = 0.1
    is_log = False

    def __init__(self, kernel: KernelMap) -> None:
        super().__init__()
        self.kernel = kernel
        self.needs_normalised = kernel.needs_normalised

    def num_features(self, dim: int) -> int:
        """The kernel's."""
        if self.kernel.dim != dim:
            raise ValueError(f"the kernel maps {self.kernel.dim} dimensions, the classes have {dim}")
        return self.kernel.num_features

    def features(self, embeddings: Float[Tensor, "P D"]) -> Float[Tensor, "P F"]:
        """phi(c)."""
        return self.kernel(embeddings)

    def statistics_of(self, sums: Float[Tensor, "B F"], sizes: Int[Tensor, " B"]) -> Float[Tensor, "B S"]:
        """The sums themselves."""
        return sums

    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """The queries' features; the temperature is the kernel's own."""
        return self.kernel.query_features(queries)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """As the kernel does."""
        self.kernel.check(vectors, name)
