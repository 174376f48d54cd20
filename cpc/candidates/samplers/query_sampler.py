"""What samplers promise whose law depends on the query.

M queries, D dims, n classes, U updated classes, T targets per query.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Hits, Sampler, distinct, drop_hits
from cpc.data.tensors import check_range, check_tensor


class QuerySampler(Sampler):
    """Draws from a law that follows the classes' embeddings, as of the last `refresh` or `update`.

    Embeddings that have moved since make the law a worse fit, never wrong: log counts are those of the law in use. How
    often to `update` and `refresh` trades quality against time. Draws need no gradient and give none.

    With `hits="exclude"` the law is q conditioned on not being a target, q(i) / (1 - q(targets)), in one pass.
    `log_count_targets` then has the same scale, m q(t) / (1 - q(targets)), as if the targets' draws had been made and
    crossed out; at -1 it is infinite. Each query has draws of its own.

    Under autocast a law is computed in float32 as without: products in bfloat16 would be those of another law than the
    one declared. A subclass defines `_refresh`, `_update`, `_log_prob` and `_sample`, which get checked float32 vectors
    and see no autocast or gradient.

    Args:
        num_classes: n.
        dim: D.
        temperature: the softmax's that the law is to resemble has scores h . c / temperature.

    Raises:
        ValueError: if `dim` is below 1, or the temperature is not positive and finite.
    """

    needs_queries = True
    needs_normalised = False  # queries and classes of length 1
    has_temperature = True  # False: something else, such as a kernel's nu, plays its part
    is_ready: Tensor

    def __init__(self, num_classes: int, dim: int, temperature: float = 1.0) -> None:
        super().__init__(num_classes)
        if dim < 1 or not 0 < temperature < torch.inf:
            raise ValueError(f"dim={dim} must be at least 1, and temperature={temperature} positive and finite")
        self.dim = dim
        self.temperature = temperature
        self.register_buffer("is_ready", torch.tensor(False))

    @torch.no_grad()
    def refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Take the embeddings of all classes.

        Raises:
            ValueError: if the embeddings have another shape, are not finite, or the law cannot use them.
        """
        self._check_embeddings(embeddings, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            self._refresh(embeddings.float())
        self.is_ready.fill_(True)

    @torch.no_grad()
    def update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Take new embeddings of some classes.

        Raises:
            ValueError: on ids out of range or named twice, embeddings that `refresh` would refuse, or before `refresh`.
        """
        self._check_ready()
        check_tensor("ids", ids, "integers", ("U",))
        check_range("ids", ids, 0, self.num_classes, "classes")
        if len(ids.unique()) < len(ids):
            raise ValueError("an id is named twice: one class has one embedding; pass ids.unique()")
        self._check_embeddings(embeddings, len(ids))
        with torch.autocast(embeddings.device.type, enabled=False):
            self._update(ids.long(), embeddings.float())

    @torch.no_grad()
    def log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """The law of all classes with hits kept, at O(n) a query: for tests and measurements."""
        with torch.autocast(queries.device.type, enabled=False):
            self.check_vectors(queries.float(), "queries")
            return self._log_prob(queries.float())

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Draw candidates for each query; see `Sampler.sample`.

        Raises:
            ValueError: as every sampler does; on queries that the law cannot use; if no class is left to draw.
        """
        if queries is None:
            raise ValueError(f"{type(self).__name__} draws for queries: give them")
        self.check_request(num, hits)
        self.check_kind(targets)
        check_tensor("queries", queries, "floats", (len(targets), self.dim))
        self._check_ready()
        of_row = targets.reshape(targets.shape[0], -1).long()
        num_excluded = of_row.shape[1] if hits == "exclude" else 0
        if num_excluded >= self.num_classes:  # nothing is left only if they are all different
            num_excluded = int((distinct(of_row) != NO_TARGET).sum(1).max())
        self.check_left(num, num_excluded)

        queries = queries.detach().float()
        # Contexts cost as much as operators, of which there are few: none without need.
        if torch.is_autocast_enabled(queries.device.type):
            with torch.autocast(queries.device.type, enabled=False):
                draw = self._sample(queries, num, of_row, hits, generator)
        else:
            draw = self._sample(queries, num, of_row, hits, generator)
        ids, log_count, log_count_targets = draw
        log_count = drop_hits(ids, log_count, of_row) if hits == "remove" else log_count
        return Draw(ids, log_count, log_count_targets.masked_fill(of_row < 0, torch.inf).reshape(targets.shape))

    @abstractmethod
    def _refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """See `refresh`."""

    @abstractmethod
    def _update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """See `update`."""

    @abstractmethod
    def _log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """See `log_prob`."""

    @abstractmethod
    def _sample(
        self,
        queries: Float[Tensor, "M D"],
        num: int,
        targets: Int[Tensor, "M T"],
        hits: Hits,
        generator: torch.Generator | None,
    ) -> Draw:
        """Candidates with hits kept or excluded; calls `check_values`. The count of a target -1 may be anything."""

    def check_left(self, num: int, num_excluded: int) -> None:
        """Refuse to draw where every class is excluded.

        Raises:
            ValueError: if none is left.
        """
        if self.num_classes <= num_excluded:
            raise ValueError(
                f"nothing is left to draw: there are {self.num_classes} classes, of which {num_excluded} are excluded; "
                "use hits='remove'"
            )

    def check_values(self, queries: Float[Tensor, "M D"], targets: Int[Tensor, "M T"]) -> None:
        """Refuse targets that are no class and queries that the law cannot use."""
        self.check_targets(targets)
        self.check_vectors(queries, "queries")

    def check_vectors(self, vectors: Float[Tensor, "*M D"], name: str) -> None:
        """Refuse queries or embeddings that the law cannot use.

        Raises:
            ValueError: if they are not finite; a subclass may ask for more.
        """
        if not bool(vectors.isfinite().all()):
            raise ValueError(
                f"{name} that are not finite: the model has diverged (lower the learning rate, or clip), or the table "
                "was never initialised"
            )

    def _check_embeddings(self, embeddings: Float[Tensor, "U D"], num: int) -> None:
        check_tensor("embeddings", embeddings, "floats", (num, self.dim))
        self.check_vectors(embeddings.float(), "embeddings")

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise ValueError(f"{type(self).__name__} knows no class yet: call refresh(embeddings) first")
