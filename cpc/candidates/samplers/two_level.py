"""A two-level sampler: it samples a block by an estimate of its mass, then a class of the block by its exact score.

M queries, D dims, n classes, B blocks, m sampled candidates, U updated classes, T targets per query, E excluded
classes, R requested blocks, P positions (classes in block order).
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.kernels import NORM_TOLERANCE
from cpc.candidates.samplers.block_mass import TILE, BlockMass, CentroidMass
from cpc.candidates.samplers.blocks import Blocks, assign_blocks, block_members
from cpc.candidates.samplers.inverse_cdf import inverse_cdf
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Request
from cpc.config.argument_rules import Count, Range, checked
from cpc.native.compiled import CFunction, compiled, source

SOURCE = source("two_level.c")
DRAW = CFunction(
    SOURCE,
    "two_level_draw",
    lambda num_queries, dim, num_blocks, num_statistics, num, num_targets, num_classes: {
        "queries": (torch.float32, (num_queries, dim)),
        "factors": (torch.float32, (num_queries, num_statistics)),
        "statistics": (torch.bfloat16, (-(-num_blocks // TILE), (num_statistics + 1) // 2, TILE, 2)),
        "embeddings": (torch.bfloat16, (num_classes, dim)),
        "offsets": (torch.int64, (num_blocks + 1,)),
        "block_of": (torch.int64, (num_classes,)),
        "id_of": (torch.int64, (num_classes,)),
        "position_of": (torch.int64, (num_classes,)),
        "targets": (torch.int64, (num_queries, num_targets)),
        "uniform": (torch.float64, (2, num_queries, num)),
        "ids": (torch.int64, (num_queries, num)),
        "log_count": (torch.float32, (num_queries, num)),
        "log_count_targets": (torch.float32, (num_queries, num_targets)),
    },
    integers=("is_log", "is_excluding"),
    floats=("uniform_share", "temperature", "tolerance"),
    num_draws="num",
)
# The same constant is in two_level.c. The exp of a lower number is zero in float32, and a block whose largest weights
# are excluded would have no weight left.
LEAST_LOG_WEIGHT = -87
TILE_ELEMENTS = 2**22  # number of elements of embeddings that torch gathers at once


class TwoLevel(QuerySampler):
    """A sampler with q(i) = Q(block of i) softmax_block(h . c_i / temperature).

    log q is exact even if the masses of the blocks are estimated badly. Embeddings and statistics are stored in
    bfloat16, which halves memory and reading time. Samples and log q both use the rounded c_i; the loss uses the exact
    c_i (scores differ by about 1e-3 for unit vectors at temperature 0.1).

    Q mixes the estimated masses with the sizes of the blocks: (1 - share) mass / sum + share count / n. Within a block,
    classes follow the softmax, so the weight p / q depends only on the block and is at most n / (share count). A sample
    costs O(S B / m + D n / B) for S statistics per block. On a CPU with a C compiler two_level.c samples, elsewhere
    torch, from the same distribution.

    The proposal is closer to the softmax than the binary tree of RF-softmax (`benchmarks/extreme/kernel_tree.py`). It
    takes less time and about 1 / (2 n / B) of the memory (docs/performance.md).

    Args:
        num_classes: n.
        dim: D.
        temperature: divides the scores.
        mass: estimate of the masses of blocks; None: `CentroidMass()`. `FeatureMass(kernel)` sums random features.
        blocks: `kmeans`, `ids` (consecutive classes) or `random`. Every `refresh` runs k-means again; `update` keeps
            the blocks.
        block_size: mean number of classes in a block; 64 suits m = 10 and D = 64.
        uniform_share: share of samples whose block is chosen by its number of classes; None: the default of the mass.
        seed: seed of k-means and of random blocks.
    """

    @checked
    def __init__(
        self,
        num_classes: int,
        dim: int,
        temperature: float = 1.0,
        mass: BlockMass | None = None,
        blocks: Blocks = "kmeans",
        block_size: Count = 64,
        uniform_share: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, dim, temperature)
        self.mass = CentroidMass() if mass is None else mass
        self.needs_normalised = self.mass.needs_normalised
        self.blocks = blocks
        self.block_size = block_size
        self.num_blocks = math.ceil(num_classes / block_size)
        self.uniform_share = self.mass.uniform_share if uniform_share is None else uniform_share
        # Without a share, a block whose mass is estimated as zero would never be drawn.
        Range(0, 1, is_open=True, is_below=True).check("`uniform_share`", self.uniform_share)
        self.seed = seed
        self.mass.reserve(self.num_blocks, dim)
        self.embeddings = nn.Buffer(torch.zeros(num_classes, dim, dtype=torch.bfloat16))  # in block order
        self.ids = nn.Buffer(torch.zeros(num_classes, dtype=torch.long))  # by position
        self.places = nn.Buffer(torch.zeros(num_classes, dtype=torch.long))  # by id
        self.block_of = nn.Buffer(torch.zeros(num_classes, dtype=torch.long))  # by position
        self.offsets = nn.Buffer(torch.zeros(self.num_blocks + 1, dtype=torch.long))

    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Assign the classes to blocks, and store embeddings and masses."""
        block = assign_blocks(self.blocks, embeddings, self.num_blocks, self.seed)
        self.ids.copy_(block.argsort(stable=True))
        self.places[self.ids] = torch.arange(self.num_classes, device=self.ids.device)
        self.block_of.copy_(block[self.ids])
        self.offsets[1:] = torch.bincount(block, minlength=self.num_blocks).cumsum(0)
        self.embeddings.copy_(embeddings[self.ids])
        self.mass.build(self.embeddings, self.block_of, self.offsets)

    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Replace the embeddings of these classes, which stay in their blocks."""
        positions = self.places[ids]
        old = self.embeddings[positions]
        self.embeddings[positions] = embeddings.bfloat16()
        self.mass.update(old, self.embeddings[positions], self.block_of[positions], self.offsets)

    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        scores = (queries / self.temperature) @ self.embeddings.float().T
        blocks = self.block_of.expand_as(scores)
        highest = scores.new_zeros(len(queries), self.num_blocks).scatter_reduce(
            1, blocks, scores, "amax", include_self=False
        )
        weights = (scores - highest.gather(1, blocks)).exp()
        block_sums = weights.new_zeros(highest.shape).scatter_add(1, blocks, weights)
        log_q = scores - (highest + block_sums.log()).gather(1, blocks) + self._weights(queries).log().gather(1, blocks)
        return log_q[:, self.places]

    def _sample_by_query(self, queries: Float[Tensor, "M D"], request: Request) -> Draw:
        """Sample with replacement. If the compiled code rejects its input, the torch code raises the error."""
        uniform = torch.rand(2, queries.shape[0], request.num, generator=request.generator, dtype=torch.float64)
        draw = self._sample_compiled(queries, request, uniform) if queries.device.type == "cpu" else None
        if draw is None:
            self.check_values(queries, request.targets)
            draw = self._sample_torch(queries, request, uniform.to(queries.device))
        return draw

    def check_vectors(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise ValueError on vectors that are not finite, or that the mass cannot use."""
        super().check_vectors(vectors, name)
        self.mass.check(vectors, name)

    def _weights(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M B"]:
        """Return Q, the probability of each block."""
        mass = self.mass(queries, self.temperature).clamp(min=0)
        total = mass.sum(1, keepdim=True)
        sizes = self.offsets.diff() / self.num_classes
        share = torch.where(total > 0, self.uniform_share, 1.0)
        return torch.where(sizes > 0, (1 - share) * mass / torch.where(total > 0, total, 1.0) + share * sizes, 0.0)

    def _sample_torch(self, queries: Float[Tensor, "M D"], request: Request, uniform: Float[Tensor, "two M m"]) -> Draw:
        """Sample with torch operators, a tile of queries at a time."""
        num, targets = request.num, request.targets
        target_positions = torch.where(targets == NO_TARGET, NO_TARGET, self.places[targets])
        excluded_positions = target_positions if request.hits == "exclude" else torch.full_like(targets, NO_TARGET)
        elements_per_query = self.num_classes // self.num_blocks * self.dim * max(num, targets.shape[1])
        rows = max(1, TILE_ELEMENTS // elements_per_query)
        tiles = (values.split(rows) for values in (queries, target_positions, excluded_positions))
        samples = [self._sample_rows(*tile) for tile in zip(*tiles, uniform.split(rows, 1), strict=True)]
        positions, log_q, log_q_targets = (torch.cat(parts) for parts in zip(*samples, strict=True))
        return Draw(self.ids[positions], log_q + math.log(num), log_q_targets + math.log(num))

    def _sample_rows(
        self,
        queries: Float[Tensor, "M D"],
        targets: Int[Tensor, "M T"],
        excluded: Int[Tensor, "M E"],
        uniform: Float[Tensor, "two M m"],
    ) -> tuple[Int[Tensor, "M m"], Float[Tensor, "M m"], Float[Tensor, "M T"]]:
        """Return positions, their log q and the log q of targets; q is conditional on classes that are not excluded."""
        weights = self._weights(queries)
        positions = targets.clamp(min=0)
        blocks = self.block_of[positions]
        _, end, log_share, _, kept_share = self._score_members(queries, blocks, excluded)
        begin = torch.cat([end.new_zeros(1), end[:-1]]).reshape(blocks.shape)
        log_q_targets = weights.gather(1, blocks).log() + log_share[begin + positions - self.offsets[blocks]]
        # Targets in the same block write the same value.
        weights = weights.scatter(1, blocks, weights.gather(1, blocks) * kept_share)
        log_left = weights.sum(1, keepdim=True).log()

        blocks = inverse_cdf(weights, uniform[0])
        members, end, _, share, _ = self._score_members(queries, blocks, excluded)
        cumulated = share.cumsum(0, dtype=torch.float64)  # grows by about one per block
        end = cumulated[end - 1].reshape(blocks.shape)
        begin = torch.cat([end.new_zeros(1), end.flatten()[:-1]]).reshape(blocks.shape)
        below = torch.minimum(begin + uniform[1] * (end - begin), torch.nextafter(end, begin))
        index = torch.searchsorted(cumulated, below.flatten(), right=True).reshape(blocks.shape)
        log_q = weights.gather(1, blocks).log() + share[index].log() - log_left
        return members[index], log_q, log_q_targets - log_left

    def _score_members(
        self, queries: Float[Tensor, "M D"], blocks: Int[Tensor, "M R"], excluded: Int[Tensor, "M E"]
    ) -> tuple[Int[Tensor, " P"], Int[Tensor, " _"], Float[Tensor, " P"], Float[Tensor, " P"], Float[Tensor, "M R"]]:
        """Return the members of these blocks and their shares of the weight of a block.

        The results are the members, one block after the other, and the end of each block among them; the log of the
        share of each member in its block, the share of each member among the members that are not excluded, and the
        share of these members in each block.
        """
        members, row, end = block_members(blocks.flatten(), self.offsets)
        query = row // blocks.shape[1]
        scores = ((queries / self.temperature)[query] * self.embeddings[members].float()).sum(1)
        none = scores.new_zeros(blocks.numel())
        highest = none.scatter_reduce(0, row, scores, "amax", include_self=False)[row]
        weights = (scores - highest).clamp(min=LEAST_LOG_WEIGHT).exp()
        total = none.index_add(0, row, weights)
        is_excluded = (rearrange(members, "p -> p 1") == excluded[query]).any(1)
        left = weights.masked_fill(is_excluded, 0)
        total_left = none.index_add(0, row, left)
        log_share = scores - highest - total.log()[row]
        return members, end, log_share, left / total_left[row], (total_left / total).reshape(blocks.shape)

    def _sample_compiled(
        self, queries: Float[Tensor, "M D"], request: Request, uniform: Float[Tensor, "two M m"]
    ) -> Draw | None:
        """Sample with two_level.c on the threads of torch; return None if it is not compiled, or rejects its input.

        Checks and temporaries are in C too: after other work has evicted torch's code from the caches, one torch
        operator costs as much as all arithmetic here.
        """
        if compiled(SOURCE) is None:
            return None
        num, statistics = request.num, self.mass.statistics
        queries, targets = queries.contiguous(), request.targets.contiguous()
        factors = self.mass.factors(queries, self.temperature).contiguous()
        ids = torch.empty(queries.shape[0], num, dtype=torch.long)
        log_count = torch.empty(ids.shape, dtype=torch.float32)
        log_count_targets = torch.empty(targets.shape, dtype=torch.float32)
        tables = (statistics, self.embeddings, self.offsets, self.block_of, self.ids, self.places)
        tensors = (queries, factors, *tables, targets, uniform, ids, log_count, log_count_targets)
        sizes = (*queries.shape, self.num_blocks, factors.shape[1], num, targets.shape[1], self.num_classes)
        tolerance = NORM_TOLERANCE if self.needs_normalised else math.inf
        numbers = (self.mass.is_log, request.hits == "exclude", self.uniform_share, self.temperature, tolerance)
        return Draw(ids, log_count, log_count_targets) if DRAW(sizes, numbers, tensors) else None
