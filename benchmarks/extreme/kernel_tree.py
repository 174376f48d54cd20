"""The binary tree of RF-softmax: classes drawn by a kernel in O(F log n).

M queries, D dims, n classes, F features, m candidates drawn, U updated classes, E excluded classes per query, L levels.
"""

import math
from pathlib import Path

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.extreme.kernels import Quadratic
from cpc.candidates.kernels import KernelMap
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Request, distinct
from cpc.native.compiled import CFunction, compiled

SOURCE = Path(__file__).with_suffix(".c")
DRAW = CFunction(
    SOURCE,
    "kernel_tree_draw",
    lambda num_queries, num_features, num_levels, num_classes, num, num_targets, num_columns: {
        "nodes": (torch.float32, (2 ** (num_levels + 1), num_features)),
        "features": (torch.float32, (num_queries, num_features)),
        "targets": (torch.int64, (num_queries, num_targets)),
        "excluded": (torch.int64, (num_queries, num_columns)),
        "uniform": (torch.float64, (num_levels + 2, num_queries, num)),
        "ids": (torch.int64, (num_queries, num)),
        "log_q": (torch.float64, (num_queries, num)),
        "log_q_targets": (torch.float64, (num_queries, num_targets)),
    },
    floats=("uniform_share",),
    num_draws="num",
)
TILE_ELEMENTS = 2**24  # 64 MiB of nodes gathered at once
BUILD_ROWS = 2**14


class KernelTree(QuerySampler):
    """q(i) is about K(h, c_i) / sum_j K(h, c_j), by walking down a tree whose nodes hold sums of features.

    Rawat et al. 2019 (arXiv:1907.10747, section 3.2), Blanc and Rendle 2018 (arXiv:1712.00527): phi(h) . (sum of phi(c)
    below a node) is the mass of the node. A node whose mass is negative, which random features allow, is given none;
    where both children have none, they are taken by their number of classes. log q is the sum of the logs of the branch
    probabilities that were used, so it is exact whatever the kernel approximates. A uniform share on top keeps every
    class possible, and weights 1 / q bounded by n / share.

    A parent is computed from its children anew when one of them is updated: nothing drifts. Memory is 2 F floats for
    each class, the number of classes rounded up to a power of two: at n = 500,000 and F = 2000, 8.4 GB. On a CPU with a
    C compiler the walks are made by kernel_tree.c, otherwise in torch; the law is the same.

    Args:
        num_classes: n.
        kernel: the feature map; `RandomFourier` for RF-softmax, `Quadratic` for the quadratic softmax.
        uniform_share: of the draws that are uniform; zero only for `Quadratic`: sums of other kernels can vanish.

    Raises:
        ValueError: unless the uniform share is in [0, 1), or if it is zero with another kernel than `Quadratic`.
    """

    nodes: Tensor
    has_temperature = False

    def __init__(self, num_classes: int, kernel: KernelMap, uniform_share: float = 0.1) -> None:
        super().__init__(num_classes, kernel.dim)
        if not 0 <= uniform_share < 1:
            raise ValueError(f"uniform_share={uniform_share} is not in [0, 1)")
        if uniform_share == 0 and not isinstance(kernel, Quadratic):
            raise ValueError(
                f"uniform_share=0 with {type(kernel).__name__}, whose sums can be negative or underflow: classes "
                "would get the probability zero; set it to 0.1, say"
            )
        self.kernel = kernel
        self.needs_normalised = kernel.needs_normalised
        self.uniform_share = uniform_share
        self.num_levels = max(1, math.ceil(math.log2(num_classes)))
        # A heap: the root is node 1, the children of node v are 2 v and 2 v + 1, class i is node 2^L + i.
        self.register_buffer("nodes", torch.zeros(2 ** (self.num_levels + 1), kernel.num_features))

    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Build the tree, O(n F D)."""
        first_leaf = 2**self.num_levels
        for start in range(0, self.num_classes, BUILD_ROWS):
            rows = embeddings[start : start + BUILD_ROWS]
            self.nodes[first_leaf + start : first_leaf + start + len(rows)] = self.kernel(rows)
        for level in reversed(range(self.num_levels)):
            self.nodes[2**level : 2 ** (level + 1)] = self._pairs()[2**level : 2 ** (level + 1)].sum(1)

    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Recompute the paths of these classes, O(U (F D + F log n))."""
        node = ids + 2**self.num_levels
        self.nodes[node] = self.kernel(embeddings)
        for _ in range(self.num_levels):
            node = (node // 2).unique()
            self.nodes[node] = self._pairs()[node].sum(1)

    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """Return log q of all classes, level by level, in O(n F) per query."""
        features = self.kernel.query_features(queries)
        probability = torch.ones(len(queries), 1, dtype=torch.float64, device=features.device)
        for level in range(1, self.num_levels + 1):
            nodes = torch.arange(2**level, 2 ** (level + 1), device=features.device)
            scores, children = (
                rearrange(each, "m (k two) -> m k two", two=2)
                for each in (features @ self.nodes[nodes].T, nodes.expand(len(queries), -1))
            )
            branches = self._branches(scores, children, level)
            probability = rearrange(rearrange(probability, "m k -> m k 1") * branches, "m k two -> m (k two)")
        return self._mixed(probability[:, : self.num_classes]).log().float()

    def _sample_by_query(self, queries: Float[Tensor, "M D"], request: Request) -> Draw:
        """Sample by walks down the tree, with replacement."""
        _, num, targets, hits, generator = request
        self.check_values(queries, targets)
        excluded = distinct(targets) if hits == "exclude" else torch.full_like(targets, NO_TARGET)
        uniform = torch.rand(self.num_levels + 2, len(queries), num, generator=generator, dtype=torch.float64)
        features = self.kernel.query_features(queries)
        drawn = self._draw_compiled(features, targets, excluded, uniform) if queries.device.type == "cpu" else None
        if drawn is None:
            drawn = self._draw(features, targets, excluded, uniform.to(queries.device))
        ids, log_q, log_q_targets = drawn
        return Draw(ids, log_q.float() + math.log(num), log_q_targets.float() + math.log(num))

    def check_vectors(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise an error for vectors that are not finite, or that the kernel cannot use."""
        super().check_vectors(vectors, name)
        self.kernel.check(vectors, name)

    def _pairs(self) -> Float[Tensor, "P 2 F"]:
        """Return the two children of each node, next to each other."""
        return rearrange(self.nodes, "(p two) f -> p two f", two=2)

    def _num_classes_below(self, nodes: Int[Tensor, "*M"], level: int) -> Int[Tensor, "*M"]:
        width = 2 ** (self.num_levels - level)
        return (self.num_classes - (nodes - 2**level) * width).clamp(0, width)

    def _branches(
        self, scores: Float[Tensor, "M k 2"], children: Int[Tensor, "M k 2"], level: int
    ) -> Float[Tensor, "M k 2"]:
        """Return the probabilities of two children on one level."""
        return _normalised(scores.double().clamp(min=0), self._num_classes_below(children, level))

    def _mixed(self, probability: Tensor) -> Tensor:
        return (1 - self.uniform_share) * probability + self.uniform_share / self.num_classes

    def _draw(
        self,
        features: Float[Tensor, "M F"],
        targets: Int[Tensor, "M T"],
        excluded: Int[Tensor, "M E"],
        uniform: Float[Tensor, "levels M m"],
    ) -> tuple[Int[Tensor, "M m"], Float[Tensor, "M m"], Float[Tensor, "M T"]]:
        """Sample in torch, some rows at a time."""
        rows = max(1, TILE_ELEMENTS // (2 * self.kernel.num_features * max(uniform.shape[2], targets.shape[1])))
        tiles = zip(*(each.split(rows) for each in (features, targets, excluded)), uniform.split(rows, 1), strict=True)
        drawn = [self._draw_rows(*tile) for tile in tiles]
        ids, log_q, log_q_targets = (torch.cat(each) for each in zip(*drawn, strict=True))
        return ids, log_q, log_q_targets

    def _draw_compiled(
        self,
        features: Float[Tensor, "M F"],
        targets: Int[Tensor, "M T"],
        excluded: Int[Tensor, "M E"],
        uniform: Float[Tensor, "levels M m"],
    ) -> tuple[Int[Tensor, "M m"], Float[Tensor, "M m"], Float[Tensor, "M T"]] | None:
        """Sample by kernel_tree.c, on as many threads as torch uses; None without a compiler or memory."""
        if compiled(SOURCE) is None:
            return None
        num = uniform.shape[2]
        features, targets = features.contiguous(), targets.contiguous()
        ids = torch.empty(len(features), num, dtype=torch.long)
        log_q = torch.empty(ids.shape, dtype=torch.float64)
        log_q_targets = torch.empty(targets.shape, dtype=torch.float64)
        tensors = (self.nodes, features, targets, excluded.contiguous(), uniform, ids, log_q, log_q_targets)
        sizes = (*features.shape, self.num_levels, self.num_classes, num, targets.shape[1], excluded.shape[1])
        return (ids, log_q, log_q_targets) if DRAW(sizes, (self.uniform_share,), tensors) else None

    def _draw_rows(
        self,
        features: Float[Tensor, "M F"],
        targets: Int[Tensor, "M T"],
        excluded: Int[Tensor, "M E"],
        uniform: Float[Tensor, "levels M m"],
    ) -> tuple[Int[Tensor, "M m"], Float[Tensor, "M m"], Float[Tensor, "M T"]]:
        """Return candidates, their log q and the targets' log q, both divided by the share that is not excluded."""
        share_below = self._walk(features, targets.clamp(min=0))  # [M, T] each, from the leaf's 1 to the root's q
        q_targets = self._mixed(share_below[-1])
        if bool((excluded != NO_TARGET).any()):
            share_below = self._walk(features, excluded.clamp(min=0))
        is_excluded = excluded != NO_TARGET
        q_excluded = reduce(torch.where(is_excluded, self._mixed(share_below[-1]), 0.0), "m e -> m 1", "sum")

        # Which draws are uniform: of both parts of the mixture, what is not excluded is left.
        num_left = self.num_classes - is_excluded.sum(1, keepdim=True)
        uniform_left = self.uniform_share * num_left / self.num_classes
        is_uniform = uniform[0] * (1 - q_excluded) < uniform_left
        uniform_ids = uniform_except(uniform[1], self.num_classes, excluded)

        node = torch.ones_like(uniform_ids)
        probability = torch.ones_like(uniform[0])
        for level in range(1, self.num_levels + 1):
            child = _children(node)
            branches = self._branches(self._scores(features, node), child, level)
            below = (excluded.clamp(min=0) + 2**self.num_levels) >> (self.num_levels - level)
            is_below = (rearrange(child, "m k two -> m k two 1") == rearrange(below, "m e -> m 1 1 e")) & rearrange(
                is_excluded, "m e -> m 1 1 e"
            )
            lost = (is_below * rearrange(share_below[self.num_levels - level], "m e -> m 1 1 e")).sum(-1)
            left = self._num_classes_below(child, level) - is_below.sum(-1)
            goes_right = (
                uniform[level + 1] >= _normalised(branches * (1 - lost).clamp(min=0) * (left > 0), left)[..., 0]
            )
            is_right = torch.where(is_uniform, (uniform_ids >> (self.num_levels - level)) & 1, goes_right.long())
            probability = probability * branches.gather(2, rearrange(is_right, "m k -> m k 1"))[..., 0]
            node = 2 * node + is_right
        log_left = torch.log1p(-q_excluded)
        return node - 2**self.num_levels, self._mixed(probability).log() - log_left, q_targets.log() - log_left

    def _scores(self, features: Float[Tensor, "M F"], parents: Int[Tensor, "M k"]) -> Float[Tensor, "M k 2"]:
        return torch.einsum("mf,mkcf->mkc", features, self._pairs()[parents])

    def _walk(self, features: Float[Tensor, "M F"], ids: Int[Tensor, "M k"]) -> list[Float[Tensor, "M k"]]:
        """Return the class's share of the mass of each node on the way from the class to the root: 1, ..., q."""
        shares = [torch.ones(ids.shape, dtype=torch.float64, device=ids.device)]
        node = ids + 2**self.num_levels
        for level in reversed(range(1, self.num_levels + 1)):
            parent = node // 2
            branches = self._branches(self._scores(features, parent), _children(parent), level)
            shares.append(shares[-1] * branches.gather(2, rearrange(node % 2, "m k -> m k 1"))[..., 0])
            node = parent
        return shares


def uniform_except(uniform: Float[Tensor, "M m"], num_classes: int, excluded: Int[Tensor, "M E"]) -> Int[Tensor, "M m"]:
    """Sample uniformly from the classes that are not excluded, without rejection: the r-th of these classes.

    Args:
        uniform: in [0, 1).
        num_classes: n.
        excluded: classes in ascending order, each once, after any number of -1.
    """
    is_excluded = excluded != NO_TARGET
    num_excluded = is_excluded.sum(1, keepdim=True)
    rank = (uniform * (num_classes - num_excluded)).long()
    # The excluded class e with j smaller ones before it lies at or below the r-th of the others if e - j <= r.
    smaller = is_excluded.cumsum(1) - 1
    is_passed = rearrange(rank, "m k -> m k 1") >= rearrange(excluded - smaller, "m e -> m 1 e")
    return rank + (is_passed & rearrange(is_excluded, "m e -> m 1 e")).sum(-1)


def _children(nodes: Int[Tensor, "M k"]) -> Int[Tensor, "M k 2"]:
    return 2 * rearrange(nodes, "m k -> m k 1") + torch.arange(2, device=nodes.device)


def _normalised(weights: Float[Tensor, "*M 2"], counts: Tensor) -> Float[Tensor, "*M 2"]:
    """Return weights that sum to one; if all are zero, they are proportional to the counts."""
    total = weights.sum(-1, keepdim=True)
    count_shares = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), count_shares)
