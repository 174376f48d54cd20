"""What the classes of a block weigh together for a query, without looking at each.

M queries, D dims, n classes, B blocks, F features, S statistics of a block, U updated classes.
"""

from abc import ABC, abstractmethod

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.kernels import KernelMap
from cpc.candidates.samplers.blocks import members_of

ROWS_AT_ONCE = 2**14


class BlockMass(nn.Module, ABC):
    """Estimates sum exp(h . c / temperature) over each block's classes, up to a factor for each query.

    Attributes:
        uniform_share: of the block draws that should go by number of classes, where the user names no share: more where
            masses can be negative or far off.
    """

    uniform_share: float

    @abstractmethod
    def reserve(self, num_blocks: int, dim: int) -> None:
        """Make room for so many blocks; call `check_unused` first."""

    def check_unused(self) -> None:
        """Refuse a second sampler.

        Raises:
            ValueError: if room was made before: the masses of the sampler that it was made for would be erased.
        """
        if next(self.buffers(recurse=False), None) is not None:
            raise ValueError(f"this {type(self).__name__} is another sampler's: give each TwoLevel a mass of its own")

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
    def forward(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M B"]:
        """The masses; negative ones count as zero."""

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse what the mass is not meant for: by default nothing."""


class CentroidMass(BlockMass):
    """count * exp(h . mu / T + h^2 . var / (2 T^2)): exact for a block of Gaussian embeddings with diagonal covariance.

    2 D numbers a block (D without the variance), and close where blocks are tight: by k-means. The statistics of a
    block are computed anew when one of its classes moves, so nothing drifts.

    Args:
        has_variance: whether to take the second term.
    """

    uniform_share = 0.01
    statistics: Tensor
    log_num: Tensor

    def __init__(self, has_variance: bool = True) -> None:
        super().__init__()
        self.has_variance = has_variance

    def reserve(self, num_blocks: int, dim: int) -> None:
        """Mean, variance and log number of the classes of a block.

        Raises:
            ValueError: if it has room already.
        """
        self.check_unused()
        self.register_buffer("statistics", torch.zeros(num_blocks, dim * (2 if self.has_variance else 1)))
        self.register_buffer("log_num", torch.zeros(num_blocks))

    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """All statistics."""
        num = offsets.diff()
        self.log_num.copy_(num.log())
        self.statistics.copy_(self._of(embeddings, blocks, num))

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
        self.statistics[changed] = self._of(embeddings[members.place], members.row, num)

    def forward(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M B"]:
        """Divided by the largest of each query."""
        scores = queries / temperature
        factors = torch.cat([scores, 0.5 * scores**2], dim=1) if self.has_variance else scores
        log_mass = torch.addmm(rearrange(self.log_num, "b -> b 1"), self.statistics, factors.T)
        return (log_mass - log_mass.amax(0)).exp_().T

    def _of(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], num: Int[Tensor, " B"]) -> Tensor:
        size = rearrange(num.clamp(min=1), "b -> b 1")
        empty = embeddings.new_zeros(len(num), embeddings.shape[1])
        mean = empty.index_add(0, blocks, embeddings) / size
        if not self.has_variance:
            return mean
        variance = empty.index_add(0, blocks, (embeddings - mean[blocks]) ** 2) / size
        return torch.cat([mean, variance], dim=1)


class FeatureMass(BlockMass):
    """phi(h) . (sum of the classes' phi): the tree's masses (Rawat et al. 2019), on one level.

    An update adds the difference of features, O(U F D); in float32 the sums drift by some 1e-7 of themselves each time,
    which changes the quality of the law, not the exactness of log q, until the next `refresh`.

    Args:
        kernel: the feature map.
    """

    uniform_share = 0.1
    sums: Tensor

    def __init__(self, kernel: KernelMap) -> None:
        super().__init__()
        self.kernel = kernel

    def reserve(self, num_blocks: int, dim: int) -> None:
        """A sum of features for each block.

        Raises:
            ValueError: if the kernel was built for another width, or it has room already.
        """
        self.check_unused()
        if self.kernel.dim != dim:
            raise ValueError(f"the kernel maps {self.kernel.dim} dimensions, the classes have {dim}")
        self.register_buffer("sums", torch.zeros(num_blocks, self.kernel.num_features))

    def build(self, embeddings: Float[Tensor, "n D"], blocks: Int[Tensor, " n"], offsets: Int[Tensor, " B1"]) -> None:
        """All sums."""
        self.sums.zero_()
        for rows, into in zip(embeddings.split(ROWS_AT_ONCE), blocks.split(ROWS_AT_ONCE), strict=True):
            self.sums.index_add_(0, into, self.kernel(rows))

    def update(
        self,
        embeddings: Float[Tensor, "n D"],
        old: Float[Tensor, "U D"],
        new: Float[Tensor, "U D"],
        blocks: Int[Tensor, " U"],
        offsets: Int[Tensor, " B1"],
    ) -> None:
        """The differences."""
        self.sums.index_add_(0, blocks, self.kernel(new) - self.kernel(old))

    def forward(self, queries: Float[Tensor, "M D"], temperature: float) -> Float[Tensor, "M B"]:
        """As the features have it; the temperature is the kernel's own."""
        # MKL multiplies the other way round at half the speed: few rows, and features by the thousand.
        return (self.sums @ self.kernel.of_queries(queries).T).T

    def check(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """As the kernel does.

        Raises:
            ValueError: from the kernel.
        """
        self.kernel.check(vectors, name)
