"""What the classes of a block weigh together for a query, without looking at each.

M queries, D dims, n classes, B blocks in N tiles, F features, S statistics of a block in Half pairs, U updated classes.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.kernels import KernelMap
from cpc.candidates.kernels.kernel_map import NORM_TOLERANCE
from cpc.candidates.samplers.blocks import members_of

ROWS_AT_ONCE = 2**14
TILE = 16  # blocks whose statistics lie side by side: a vector register's floats


class BlockMass(nn.Module, ABC):
    """Estimates sum exp(h . c / temperature) over each block's classes, up to a factor for each query.

    The mass or its log is linear in statistics of the block, so that all masses are one matrix product.

    Attributes:
        uniform_share: of the block draws that should go by number of classes, where the user names no share: more where
            masses can be negative or far off.
        is_log: whether the products are logs of masses, to be taken relative to each query's largest.
        statistics: in tiles of 16 blocks, where two statistics of each block lie side by side, as two_level.c and
            matrix units want them; zero beyond the last. In bfloat16: reading them is what masses cost, and their
            rounding is far below the estimate's own error.
        tolerance: by how much the length of queries may differ from 1.
    """

    uniform_share: float
    is_log: bool
    tolerance: float = math.inf
    statistics: Float[Tensor, "N Half 16 2"]

    @abstractmethod
    def num_statistics(self, dim: int) -> int:
        """S for embeddings of so many dimensions."""

    @abstractmethod
    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """From all classes, in block order."""

    @abstractmethod
    def update(
        self,
        embeddings: Float[Tensor, "n D"],
        old: Float[Tensor, "U D"],
        new: Float[Tensor, "U D"],
        blocks: Int[Tensor, " U"],
        offsets: Int[Tensor, " B1"],
    ) -> None:
        """After classes of these blocks have moved from `old` to `new`, which `embeddings` holds already."""

    @abstractmethod
    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """What the statistics are multiplied with."""

    def reserve(self, num_blocks: int, dim: int) -> None:
        """Make room for so many blocks.

        Raises:
            ValueError: if masses of this kind cannot be had of embeddings of this width, or room was made before: the
                masses of the sampler that it was made for would be erased.
        """
        if next(self.buffers(recurse=False), None) is not None:
            raise ValueError(f"this {type(self).__name__} is another sampler's: give each TwoLevel a mass of its own")
        num_tiles, num_pairs = math.ceil(num_blocks / TILE), math.ceil(self.num_statistics(dim) / 2)
        self.num_blocks = num_blocks
        self.register_buffer("statistics", torch.zeros(num_tiles, num_pairs, TILE, 2, dtype=torch.bfloat16))

    def put(self, statistics: Float[Tensor, "B S"], blocks: Int[Tensor, " B"] | None = None) -> None:
        """The statistics of these blocks (None: of all), into their tiles."""
        if blocks is None:
            blocks = torch.arange(len(statistics), device=statistics.device)
        pairs = rearrange(F.pad(statistics, (0, statistics.shape[1] % 2)), "b (half two) -> b half two", two=2)
        self.statistics[blocks // TILE, :, blocks % TILE] = pairs.to(self.statistics.dtype)

    def forward(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M B"]:
        """The masses; negative ones count as zero."""
        factors = self.factors(queries, temperature)
        by_block = rearrange(self.statistics.float(), "n half b two -> (n b) (half two)")
        products = factors @ by_block[: self.num_blocks, : factors.shape[1]].T
        return (products - products.amax(1, keepdim=True)).exp() if self.is_log else products

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse what the mass is not meant for: by default nothing."""


class CentroidMass(BlockMass):
    """count * exp(h . mu / T + h^2 . var / (2 T^2)): exact for a block of Gaussian embeddings with diagonal covariance.

    2 D + 1 numbers a block (D + 1 without the variance), and close where blocks are tight: by k-means. The statistics
    of a block are computed anew when one of its classes moves, so nothing drifts.

    Args:
        has_variance: whether to take the second term.
    """

    uniform_share = 0.01
    is_log = True

    def __init__(self, has_variance: bool = True) -> None:
        super().__init__()
        self.has_variance = has_variance

    def num_statistics(self, dim: int) -> int:
        """Mean, variance and log number of the classes of a block."""
        return dim * (2 if self.has_variance else 1) + 1

    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """All statistics."""
        self.put(self._of(embeddings, blocks, offsets.diff()))

    def update(
        self,
        embeddings: Float[Tensor, "n D"],
        old: Float[Tensor, "U D"],
        new: Float[Tensor, "U D"],
        blocks: Int[Tensor, " U"],
        offsets: Int[Tensor, " B1"],
    ) -> None:
        """Statistics of these blocks."""
        changed = blocks.unique()
        members = members_of(changed, offsets)
        num = offsets.diff()[changed]
        statistics = self._of(embeddings[members.place], members.row, num)
        self.put(statistics, changed)

    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """The scores h / T, their squares over two, and 1."""
        scores = queries / temperature
        squares = [0.5 * scores**2] if self.has_variance else []
        return torch.cat([scores, *squares, torch.ones_like(scores[:, :1])], dim=1)

    def _of(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], num: Int[Tensor, " B"]) -> Tensor:
        embeddings = embeddings.float()
        size = rearrange(num, "b -> b 1")
        empty = embeddings.new_zeros(len(num), embeddings.shape[1])
        mean = empty.index_add(0, blocks, embeddings) / size.clamp(min=1)
        if not self.has_variance:
            return torch.cat([mean, size.log()], dim=1)
        variance = empty.index_add(0, blocks, (embeddings - mean[blocks]) ** 2) / size.clamp(min=1)
        return torch.cat([mean, variance, size.log()], dim=1)


class FeatureMass(BlockMass):
    """phi(h) . (sum of the classes' phi): the tree's masses (Rawat et al. 2019), on one level.

    An update adds the difference of features, O(U F D); in float32 the sums drift by some 1e-7 of themselves each time,
    which changes the quality of the law, not the exactness of log q, until the next `refresh`.

    Args:
        kernel: the feature map.
    """

    uniform_share = 0.1
    is_log = False
    sums: Tensor

    def __init__(self, kernel: KernelMap) -> None:
        super().__init__()
        self.kernel = kernel
        if kernel.needs_normalised:
            self.tolerance = NORM_TOLERANCE

    def reserve(self, num_blocks: int, dim: int) -> None:
        """Room for the sums in float32 besides: differences of single classes would be lost in bfloat16.

        Raises:
            ValueError: if the kernel was built for another width.
        """
        super().reserve(num_blocks, dim)
        self.register_buffer("sums", torch.zeros(num_blocks, self.kernel.num_features))

    def num_statistics(self, dim: int) -> int:
        """The features.

        Raises:
            ValueError: if the kernel was built for another width.
        """
        if self.kernel.dim != dim:
            raise ValueError(f"the kernel maps {self.kernel.dim} dimensions, the classes have {dim}")
        return self.kernel.num_features

    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """All sums."""
        self.sums.zero_()
        for rows, into in zip(embeddings.split(ROWS_AT_ONCE), blocks.split(ROWS_AT_ONCE), strict=True):
            self.sums.index_add_(0, into, self.kernel(rows.float()))
        self.put(self.sums)

    def update(
        self,
        embeddings: Float[Tensor, "n D"],
        old: Float[Tensor, "U D"],
        new: Float[Tensor, "U D"],
        blocks: Int[Tensor, " U"],
        offsets: Int[Tensor, " B1"],
    ) -> None:
        """The differences."""
        self.sums.index_add_(0, blocks, self.kernel(new.float()) - self.kernel(old.float()))
        self.put(self.sums[blocks], blocks)

    def factors(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M S"]:
        """The queries' features; the temperature is the kernel's own."""
        return self.kernel.of_queries(queries)

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """As the kernel does.

        Raises:
            ValueError: from the kernel.
        """
        self.kernel.check(vectors, name)
