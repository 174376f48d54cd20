"""What samplers promise whose law depends on the query.

M queries, D dims, n classes, U updated classes, T targets per query.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Hits, Sampler, distinct


class QuerySampler(Sampler):
    """Draws from a law that follows the classes' embeddings, as they were when it was last told.

    Embeddings that have moved since make the law less apt, never wrong: log counts are those of the law in use. So
    `update` after each step is a choice of quality against time, and so is how often to `refresh`. Draws need no
    gradient and give none.

    With `hits="exclude"` the law is q conditioned on not being a target, q(i) / (1 - q(targets)), in one pass.
    `log_count_targets` is then scaled alike, m q(t) / (1 - q(targets)), as if the targets' draws had been made and
    crossed out; at -1 it is infinite. Each query has draws of its own.

    Under autocast a law is computed in float32 as without: products in bfloat16 would be those of another law than the
    one declared. A subclass defines `_refresh`, `_update`, `_log_prob` and `_sample`, which see float32, and no
    autocast or gradient.

    Args:
        num_classes: n.
        dim: D.
        temperature: the softmax's that the law is to resemble has scores h . c / temperature.

    Raises:
        ValueError: if `dim` is below 1, or the temperature is not positive.
    """

    needs_queries = True
    replacement = True  # candidates may repeat
    needs_normalised = False  # queries and classes of length 1
    has_temperature = True  # False: something else, such as a kernel's nu, plays its part
    is_ready: Tensor

    def __init__(self, num_classes: int, dim: int, temperature: float = 1.0) -> None:
        super().__init__(num_classes)
        if dim < 1 or not temperature > 0:
            raise ValueError(f"dim={dim} must be at least 1, and temperature={temperature} positive")
        self.dim = dim
        self.temperature = temperature
        self.register_buffer("is_ready", torch.tensor(False))

    @torch.no_grad()
    def refresh(self, embeddings: Float[Tensor, "n D"]) -> None:
        """Take all classes anew.

        Raises:
            ValueError: if the embeddings have another shape, are not finite, or not such as the law needs.
        """
        with torch.autocast(embeddings.device.type, enabled=False):
            self._refresh(embeddings.float())

    @torch.no_grad()
    def update(self, ids: Int[Tensor, " U"], embeddings: Float[Tensor, "U D"]) -> None:
        """Take new embeddings of some classes.

        Raises:
            ValueError: on ids out of range or named twice, embeddings that `refresh` would refuse, or before the first.
        """
        with torch.autocast(embeddings.device.type, enabled=False):
            self._update(ids.long(), embeddings.float())

    @torch.no_grad()
    def log_prob(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M n"]:
        """The law with hits kept, of all classes at O(n) a query: to measure a sampler by, not to draw with."""
        with torch.autocast(queries.device.type, enabled=False):
            return self._log_prob(queries.float())

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Draw candidates for each query of its own; see `Sampler.sample`.

        Raises:
            ValueError: as every sampler does; on queries that the law is not meant for; if too little is left to draw.
        """
        if queries is None:
            raise ValueError(f"{type(self).__name__} draws for queries: give them")
        # Contexts cost as much as operators, of which there are few: none without need.
        queries, targets = queries.detach().float(), targets.long()
        if not torch.is_autocast_enabled(queries.device.type):
            return self._sample(queries, num, targets, hits, generator)
        with torch.autocast(queries.device.type, enabled=False):
            return self._sample(queries, num, targets, hits, generator)

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
        targets: Int[Tensor, "M ..."],
        hits: Hits,
        generator: torch.Generator | None,
    ) -> Draw:
        """See `sample`."""

    def check_left(self, num: int, num_excluded: int) -> None:
        """Refuse to draw more distinct classes than there are, or any where all are excluded.

        Raises:
            ValueError: if fewer than `num` classes are left to draw, or none with replacement.
        """
        needed = 1 if self.replacement else num
        if self.num_classes - num_excluded < needed:
            raise ValueError(
                f"{needed} distinct classes cannot be drawn: there are {self.num_classes}, of which {num_excluded} are "
                "excluded; lower num_sampled, draw with replacement, or use hits='remove'"
            )

    def check_excluded(self, num: int, targets: Int[Tensor, "M T"], hits: Hits) -> None:
        """`check_left` with these targets.

        Raises:
            ValueError: as it does.
        """
        most_excluded = targets.shape[1] if hits == "exclude" else 0
        if most_excluded and self.num_classes - most_excluded < num:  # too few only if they are all different
            most_excluded = int((distinct(targets) != NO_TARGET).sum(1).max())
        self.check_left(num, most_excluded)

    def check_queries(self, queries: Float[Tensor, "M D"], targets: Int[Tensor, "M ..."]) -> None:
        """Refuse queries that cannot be drawn for.

        Raises:
            ValueError: unless they are as many as targets and of this width, and `refresh` has been called.
        """
        if queries.shape[0] != targets.shape[0] or queries.shape[1] != self.dim:
            raise ValueError(
                f"queries of shape {tuple(queries.shape)} for {len(targets)} rows of targets: {type(self).__name__} "
                f"was built for [{len(targets)}, {self.dim}]"
            )
        if not self.is_ready:
            raise ValueError(f"{type(self).__name__} knows no class yet: call refresh(embeddings) first")

    def check_finite(self, queries: Float[Tensor, "M D"]) -> None:
        """Refuse queries that no law can be made of.

        Raises:
            ValueError: if they are not finite.
        """
        if not bool(queries.isfinite().all()):
            raise ValueError("queries that are not finite: the model has diverged; lower the learning rate, or clip")

    def check_embeddings(self, embeddings: Float[Tensor, "U D"], num: int) -> None:
        """Refuse embeddings that no law can be made of.

        Raises:
            ValueError: if they are of another shape, or not finite.
        """
        if embeddings.shape != (num, self.dim):
            raise ValueError(f"embeddings of shape {tuple(embeddings.shape)}: expected ({num}, {self.dim})")
        if not bool(embeddings.isfinite().all()):
            raise ValueError(
                "embeddings that are not finite: the model has diverged, or the table was never initialised"
            )

    def check_updated(self, ids: Int[Tensor, " U"]) -> None:
        """Refuse what cannot be updated.

        Raises:
            ValueError: if classes are out of range or named twice, or `refresh` has never been called.
        """
        if not self.is_ready:
            raise ValueError(f"{type(self).__name__} knows no class yet: call refresh(embeddings) first")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_classes:
            raise ValueError(
                f"ids run from {int(ids.min())} to {int(ids.max())}, classes from 0 to {self.num_classes - 1}"
            )
        if len(ids.unique()) < len(ids):
            raise ValueError("an id is named twice: one class has one embedding; pass ids.unique()")
