"""The interface of samplers whose proposal depends on the query.

M queries, D dims, n classes, U updated classes, T targets per query.
"""

import logging
from abc import abstractmethod

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.class_table import ClassTable
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Request, Sampler, distinct
from cpc.config.argument_rules import Choices, Count, Positive, Range, checked
from cpc.data.tensors import check_finite, check_indices, check_tensor

_log = logging.getLogger(__name__)


class QuerySampler(Sampler):
    """A sampler whose proposal q depends on the query and on the class embeddings of the last `refresh` or `update`.

    If the embeddings have changed since that call, the proposal fits less well. Results stay correct, because log
    counts are computed from the proposal that is used. Calling `update` and `refresh` more often costs time and
    improves the fit. Sampling has no gradient.

    With `hits="exclude"` candidates are drawn from q given that they are not targets, q(i) / (1 - q(targets)), without
    rejection. The expected count of a target is m q(t) / (1 - q(targets)), with the same divisor as for candidates.
    `log_count_targets` is +inf for padding. Each query has its own candidates.

    The proposal is computed in float32, also under autocast: if products were in bfloat16, samples would not follow the
    returned log probabilities. A subclass defines `_refresh`, `_update`, `_log_prob` and `_sample_by_query`, which
    receive checked float32 vectors and run without autocast and gradients.

    Args:
        num_classes: n.
        dim: D.
        temperature: the proposal approximates the softmax of h . c / temperature.
    """

    needs_queries = True
    needs_normalised = False  # whether queries and classes must have length 1
    has_temperature = True  # False if another parameter, such as nu of a kernel, replaces the temperature

    @checked
    def __init__(self, num_classes: int, dim: Count, temperature: Positive = 1.0) -> None:
        super().__init__(num_classes)
        self.dim = dim
        self.temperature = temperature
        self.is_ready = nn.Buffer(torch.tensor(False))

    @torch.no_grad()
    def refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Set the embeddings of all classes; a ValueError if they are not finite, or the sampler cannot use them."""
        self._check_embeddings(embeddings, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            self._refresh(embeddings.float())
        self.is_ready.fill_(True)

    @torch.no_grad()
    def update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Replace the embeddings of some classes, each named once; a ValueError before the first `refresh`."""
        self._check_ready()
        check_indices("ids", ids, ("U",), self.num_classes, "classes")
        if len(ids.unique()) < len(ids):
            raise ValueError("ids repeat, but a class has one embedding: pass each id once")
        self._check_embeddings(embeddings, len(ids))
        with torch.autocast(embeddings.device.type, enabled=False):
            self._update(ids.long(), embeddings.float())

    @torch.no_grad()
    def read(self, table: ClassTable, ids: Int[Tensor, " U"] | None = None) -> None:
        """Refresh from a table, or update these classes.

        If this sampler has one dim more than the table, the last coordinate is temperature * bias.
        """
        vectors, biases = table.lookup(ids)
        if self.dim > table.dim and biases is not None:
            vectors = torch.cat([vectors, table.temperature * rearrange(biases, "n -> n 1")], dim=1)
        self.refresh(vectors) if ids is None else self.update(ids, vectors)

    def check_table(self, table: ClassTable) -> None:
        """Raise ValueError if the proposal would use other scores than the table; warn if it ignores the biases."""
        name = type(self).__name__
        can_have_bias = table.has_bias and not self.needs_normalised  # a bias changes the length
        if not table.dim <= self.dim <= table.dim + can_have_bias:
            with_bias = f", or with dim={table.dim + 1} to draw by biases too" if can_have_bias else ""
            raise ValueError(
                f"{name} is built for vectors of dim={self.dim}, but the table has dim={table.dim}: build it with "
                f"this dim{with_bias}"
            )
        if self.has_temperature:
            Choices((table.temperature,)).check(f"{name}: temperature", self.temperature)
        if can_have_bias and self.dim == table.dim:
            _log.warning(
                "%s(dim=%d) draws by products and ignores the biases of the table: give dim=%d to include them",
                *(name, table.dim, table.dim + 1),
            )

    @torch.no_grad()
    def log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """Return log q of all classes with hits kept. The cost is O(n) per query; use it for tests and measurements."""
        with torch.autocast(queries.device.type, enabled=False):
            self.check_vectors(queries.float(), "queries")
            return self._log_prob(queries.float())

    def _sample(self, request: Request) -> Draw:
        targets = request.targets
        check_tensor("queries", request.queries, "floats", (len(targets), self.dim))
        assert request.queries is not None
        self._check_ready()
        num_excluded = targets.shape[1] if request.hits == "exclude" else 0
        if num_excluded >= self.num_classes:  # count distinct targets, since a target may repeat
            num_excluded = int((distinct(targets) != NO_TARGET).sum(1).max())
        self.check_left(request.num, num_excluded)

        queries = request.queries.detach().float()
        # A context manager costs about as much as one of the few operators here: enter it only if needed.
        if torch.is_autocast_enabled(queries.device.type):
            with torch.autocast(queries.device.type, enabled=False):
                return self._sample_by_query(queries, request)
        return self._sample_by_query(queries, request)

    @abstractmethod
    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Set the embeddings of all classes."""

    @abstractmethod
    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Replace the embeddings of some classes."""

    @abstractmethod
    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """Return log q of all classes."""

    @abstractmethod
    def _sample_by_query(self, queries: Float[Tensor, "M D"], request: Request) -> Draw:
        """Sample with hits kept or excluded for these float32 queries, and call `check_values`."""

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if every class is excluded."""
        Range(0, self.num_classes - 1).check("the number of excluded classes", num_excluded)

    def check_values(self, queries: Float[Tensor, "M D"], targets: Int[Tensor, "M T"]) -> None:
        """Raise ValueError if targets are not classes, or the sampler cannot use the queries."""
        self.check_targets(targets)
        self.check_vectors(queries, "queries")

    def check_vectors(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Raise ValueError on queries or embeddings that are not finite; a subclass may add conditions."""
        check_finite(name, vectors)

    def _check_embeddings(self, embeddings: Float[Tensor, "U D"], num: int) -> None:
        check_tensor("embeddings", embeddings, "floats", (num, self.dim))
        self.check_vectors(embeddings.float(), "embeddings")

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise ValueError(f"{type(self).__name__} has no embeddings yet: call refresh(embeddings) first")
