"""The two-level sampler: a block of classes by an estimate of its mass, then a class of the block by its exact score.

M queries, D dims, n classes, B blocks, m candidates drawn, U updated classes, T targets per query, E excluded ones,
R blocks asked for, P places (classes in block order).
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.kernels import NORM_TOLERANCE
from cpc.candidates.samplers.block_mass import BlockMass, CentroidMass
from cpc.candidates.samplers.blocks import BLOCKS, Members, members_of, part_into_blocks
from cpc.candidates.samplers.inverse_cdf import inverse_cdf
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Hits
from cpc.native.compiled import call_on_threads, compiled, source

SOURCE = source("two_level.c")
LEAST_LOG_WEIGHT = -87  # as in two_level.c: below, a float is zero, and nothing is left where the highest are excluded
TILE_ELEMENTS = 2**22  # of the members' embeddings that torch gathers at once


class TwoLevel(QuerySampler):
    """q(i) = Q(block of i) softmax_block(h . c_i / temperature), exactly, whatever estimates the blocks' masses.

    Embeddings and statistics of blocks are kept in bfloat16, which halves memory and the time to read them. Draws and
    log q both use the rounded c_i; the loss uses the true one (scores differ by some 1e-3 for unit vectors at
    temperature 0.1).

    Q mixes the estimated masses with the blocks' numbers of classes: (1 - share) mass / sum + share count / n. Within a
    block the law is the softmax's own, so weights p / q are those of the blocks, at most n / (share count). A draw
    costs O(S B / m + D n / B) for S statistics a block. two_level.c makes the draws on a CPU with a C compiler, torch
    elsewhere, by the same law.

    Its law is closer to the softmax than that of RF-softmax's binary tree, in less time and with about 1 / (2 n / B) of
    the memory (docs/performance.md; `benchmarks/extreme/kernel_tree.py` is the tree).

    Args:
        num_classes: n.
        dim: D.
        temperature: of the scores.
        mass: estimate of a block's mass; None: `CentroidMass()`. `FeatureMass(kernel)` for sums of random features.
        blocks: `kmeans`, `ids` (neighbours in the table) or `random`. Every `refresh` finds new
            ones by k-means; `update` keeps them.
        block_size: classes in a block, in the mean; 64 suits m = 10 draws of D = 64.
        uniform_share: of block draws by number of classes; None: what the mass advises.
        seed: of k-means or the random blocks.

    Raises:
        ValueError: on unknown blocks, a block size below 1, or a share that is not in (0, 1).
    """

    embeddings: Tensor
    ids: Tensor
    places: Tensor
    block_of: Tensor
    offsets: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        temperature: float = 1.0,
        mass: BlockMass | None = None,
        blocks: str = "kmeans",
        block_size: int = 64,
        uniform_share: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, dim, temperature)
        if blocks not in BLOCKS:
            raise ValueError(f"blocks={blocks!r} is not one of {', '.join(BLOCKS)}")
        if block_size < 1:
            raise ValueError(f"block_size={block_size} must be at least 1")
        self.mass = CentroidMass() if mass is None else mass
        self.needs_normalised = self.mass.needs_normalised
        self.blocks = blocks
        self.block_size = block_size
        self.num_blocks = math.ceil(num_classes / block_size)
        self.uniform_share = self.mass.uniform_share if uniform_share is None else uniform_share
        if not 0 < self.uniform_share < 1:
            raise ValueError(
                f"uniform_share={self.uniform_share} is not in (0, 1): without it a block whose mass is estimated as "
                "zero would never be drawn"
            )
        self.seed = seed
        self.mass.reserve(self.num_blocks, dim)
        self.register_buffer("embeddings", torch.zeros(num_classes, dim, dtype=torch.bfloat16))  # in block order
        self.register_buffer("ids", torch.zeros(num_classes, dtype=torch.long))  # by place
        self.register_buffer("places", torch.zeros(num_classes, dtype=torch.long))  # by id
        self.register_buffer("block_of", torch.zeros(num_classes, dtype=torch.long))  # by place
        self.register_buffer("offsets", torch.zeros(self.num_blocks + 1, dtype=torch.long))

    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Part the classes into blocks, and build masses and embeddings."""
        block = part_into_blocks(self.blocks, embeddings, self.num_blocks, self.seed)
        self.ids.copy_(block.argsort(stable=True))
        self.places[self.ids] = torch.arange(self.num_classes, device=self.ids.device)
        self.block_of.copy_(block[self.ids])
        self.offsets[1:] = torch.bincount(block, minlength=self.num_blocks).cumsum(0)
        self.embeddings.copy_(embeddings[self.ids])
        self.mass.build(self.embeddings, self.block_of, self.offsets)

    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Take new embeddings of these classes, which stay in their blocks."""
        place = self.places[ids]
        old = self.embeddings[place]
        self.embeddings[place] = embeddings.bfloat16()
        self.mass.update(old, self.embeddings[place], self.block_of[place], self.offsets)

    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """O(n D) a query."""
        scores = (queries / self.temperature) @ self.embeddings.float().T
        blocks = self.block_of.expand_as(scores)
        highest = scores.new_zeros(len(queries), self.num_blocks).scatter_reduce(
            1, blocks, scores, "amax", include_self=False
        )
        weights = (scores - highest.gather(1, blocks)).exp()
        within = weights.new_zeros(highest.shape).scatter_add(1, blocks, weights)
        log_q = scores - (highest + within.log()).gather(1, blocks) + self._weights(queries).log().gather(1, blocks)
        return log_q[:, self.places]

    def _sample(
        self,
        queries: Float[Tensor, "M D"],
        num: int,
        targets: Int[Tensor, "M T"],
        hits: Hits,
        generator: torch.Generator | None,
    ) -> Draw:
        """Draw with replacement. The compiled code checks by itself; what it refuses is named here."""
        uniform = torch.rand(2, queries.shape[0], num, generator=generator, dtype=torch.float64)
        draw = self._draw_compiled(queries, targets, uniform, hits) if queries.device.type == "cpu" else None
        if draw is None:
            self.check_values(queries, targets)
            draw = self._draw(queries, targets, uniform.to(queries.device), hits)
        return draw

    def check_vectors(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse what is not finite, or what the mass cannot use."""
        super().check_vectors(vectors, name)
        self.mass.check(vectors, name)

    def _weights(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M B"]:
        """Q of the blocks."""
        mass = self.mass(queries, self.temperature).clamp(min=0)
        total = mass.sum(1, keepdim=True)
        sizes = self.offsets.diff() / self.num_classes
        share = torch.where(total > 0, self.uniform_share, 1.0)
        return torch.where(sizes > 0, (1 - share) * mass / torch.where(total > 0, total, 1.0) + share * sizes, 0.0)

    def _draw(
        self,
        queries: Float[Tensor, "M D"],
        targets: Int[Tensor, "M T"],
        uniform: Float[Tensor, "two M m"],
        hits: Hits,
    ) -> Draw:
        """In torch, some rows at a time."""
        num = uniform.shape[2]
        target_places = torch.where(targets == NO_TARGET, NO_TARGET, self.places[targets])
        excluded_places = target_places if hits == "exclude" else torch.full_like(targets, NO_TARGET)
        of_query = self.num_classes // self.num_blocks * self.dim * max(num, targets.shape[1])
        rows = max(1, TILE_ELEMENTS // of_query)
        of_rows = (each.split(rows) for each in (queries, target_places, excluded_places))
        drawn = [self._draw_rows(*tile) for tile in zip(*of_rows, uniform.split(rows, 1), strict=True)]
        places, log_q, log_q_targets = (torch.cat(each) for each in zip(*drawn, strict=True))
        return Draw(self.ids[places], log_q + math.log(num), log_q_targets + math.log(num))

    def _draw_rows(
        self,
        queries: Float[Tensor, "M D"],
        targets: Int[Tensor, "M T"],
        excluded: Int[Tensor, "M E"],
        uniform: Float[Tensor, "two M m"],
    ) -> tuple[Int[Tensor, "M m"], Float[Tensor, "M m"], Float[Tensor, "M T"]]:
        """Places, their log q and the targets', both divided by the share that is not excluded."""
        weights = self._weights(queries)
        places = targets.clamp(min=0)
        blocks = self.block_of[places]
        members, log_share, _, kept = self._within(queries, blocks, excluded)
        begin = torch.cat([members.end.new_zeros(1), members.end[:-1]]).reshape(blocks.shape)
        log_q_targets = weights.gather(1, blocks).log() + log_share[begin + places - self.offsets[blocks]]
        # Two targets of one block write the same.
        weights = weights.scatter(1, blocks, weights.gather(1, blocks) * kept)
        log_left = weights.sum(1, keepdim=True).log()

        drawn = inverse_cdf(weights, uniform[0])
        members, _, share, _ = self._within(queries, drawn, excluded)
        cumulated = share.cumsum(0, dtype=torch.float64)  # by one, up to rounding, in each block
        end = cumulated[members.end - 1].reshape(drawn.shape)
        begin = torch.cat([end.new_zeros(1), end.flatten()[:-1]]).reshape(drawn.shape)
        below = torch.minimum(begin + uniform[1] * (end - begin), torch.nextafter(end, begin))
        at = torch.searchsorted(cumulated, below.flatten(), right=True).reshape(drawn.shape)
        log_q = weights.gather(1, drawn).log() + share[at].log() - log_left
        return members.place[at], log_q, log_q_targets - log_left

    def _within(
        self, queries: Float[Tensor, "M D"], blocks: Int[Tensor, "M R"], excluded: Int[Tensor, "M E"]
    ) -> tuple[Members, Float[Tensor, " P"], Float[Tensor, " P"], Float[Tensor, "M R"]]:
        """The blocks' members, the log of their share of the block, and without the excluded ones: their share of what
        is left, and what share of the block that is.
        """
        members = members_of(blocks.flatten(), self.offsets)
        query = members.row // blocks.shape[1]
        scores = ((queries / self.temperature)[query] * self.embeddings[members.place].float()).sum(1)
        none = scores.new_zeros(blocks.numel())
        highest = none.scatter_reduce(0, members.row, scores, "amax", include_self=False)[members.row]
        weights = (scores - highest).clamp(min=LEAST_LOG_WEIGHT).exp()
        total = none.index_add(0, members.row, weights)
        is_excluded = (rearrange(members.place, "p -> p 1") == excluded[query]).any(1)
        left = weights.masked_fill(is_excluded, 0)
        total_left = none.index_add(0, members.row, left)
        log_share = scores - highest - total.log()[members.row]
        return members, log_share, left / total_left[members.row], (total_left / total).reshape(blocks.shape)

    def _draw_compiled(
        self,
        queries: Float[Tensor, "M D"],
        targets: Int[Tensor, "M T"],
        uniform: Float[Tensor, "two M m"],
        hits: Hits,
    ) -> Draw | None:
        """The same by two_level.c, many queries on as many threads as torch uses; None without it, or if it refuses.

        Where other work has pushed torch's code out of the caches, an operator costs as much as the arithmetic here:
        hence checks and temporaries in C, too.
        """
        library = compiled(SOURCE)
        if library is None:
            return None
        num, statistics = uniform.shape[2], self.mass.statistics
        queries, targets = queries.contiguous(), targets.contiguous()
        factors = self.mass.factors(queries, self.temperature).contiguous()
        ids = torch.empty(queries.shape[0], num, dtype=torch.long)
        log_count = torch.empty(ids.shape, dtype=torch.float32)
        log_count_targets = torch.empty(targets.shape, dtype=torch.float32)
        tables = (statistics, self.embeddings, self.offsets, self.block_of, self.ids, self.places)
        tensors = (queries, factors, *tables, targets, uniform, ids, log_count, log_count_targets)
        sizes = (*queries.shape, self.num_blocks, factors.shape[1], num, targets.shape[1])
        integers = (*sizes, self.mass.is_log, hits == "exclude")
        tolerance = NORM_TOLERANCE if self.needs_normalised else math.inf
        floats = (self.uniform_share, self.temperature, tolerance)
        is_drawn = call_on_threads(library.two_level_draw, queries.shape[0], num, integers, floats, tensors)
        return Draw(ids, log_count, log_count_targets) if is_drawn else None
