"""An objective on a class table, with the sampler that it draws from: what a language model trains with.

M queries, T targets of each, D dims.
"""

import logging
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.class_table import ClassTable
from cpc.candidates.samplers import NO_TARGET, Hits, QuerySampler, Sampler
from cpc.data.batch import Batch
from cpc.losses.candidate_sets import Sequences, weight_of
from cpc.losses.class_loss import as_sets, check_draw, loss_on_table
from cpc.losses.engine.tiled_loss import scaled
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.objectives import FULL_SOFTMAX, correction_of, hits_of, learns_log_odds, objective_of
from cpc.losses.output import ContrastiveOutput, RowLosses, sum_by_step
from cpc.losses.ranks import rows_of_all_ranks
from cpc.predictors import Output

_log = logging.getLogger(__name__)


class ClassTableLoss(Loss):
    """Finds the class of what follows, which comes as `Batch.labels`, among those of a table.

    Draws candidates, asks for hits as the objective demands, and gathers no more of the table than it needs.

    A sampler that follows the query is shown the classes' vectors. Built for one dim more than they have, it is shown
    the biases too: as a last coordinate temperature * bias, which meets a 1 in every query; kernels that need vectors
    of length 1 cannot. Built for the table's dims, its law knows nothing of them: the loss is corrected for that, but
    varies the more the further the biases differ.

    Args:
        table: the classes.
        objective: a name in `cpc.losses.OBJECTIVES`.
        sampler: where candidates come from; None for the full objectives.
        num_sampled: how many are drawn.
        correction: one that the objective accepts; None: its usual one.
        hits: what becomes of drawn targets, one that the objective accepts; None: its usual way.
        refresh_every: training losses after which a sampler that follows the query is shown the table again; until
            then it draws by the law of the table as it was, with log counts that are exact all the same.
        updates_between: whether such a sampler is shown, after every training step between, the classes that its losses
            met as targets or candidates: with sparse gradients all that have moved, else those that moved most; of
            several processes the first one's. Where there are many classes, cheaper than to refresh often.
        skip_steps: places between a context and the first one whose class is predicted.

    A model with it is measured by the full softmax, whatever it trains with. Of several processes all draw by rank 0's
    proposal: its sampler's buffers go to the others at every step, and resume.

    Raises:
        ValueError: if objective, sampler, correction, hits and table do not go together, or so many cannot be drawn.
    """

    predicts = "classes"

    def __init__(
        self,
        table: ClassTable,
        objective: str,
        sampler: Sampler | None = None,
        num_sampled: int | None = None,
        correction: str | None = None,
        hits: str | None = None,
        refresh_every: int = 1,
        updates_between: bool = False,
        skip_steps: int = 0,
    ) -> None:
        super().__init__(skip_steps)
        self.objective = objective
        self.correction = correction_of(objective, correction)
        self.num_sampled = num_sampled
        self.table = table
        self.has_sparse_gradients = table.has_sparse_gradients
        self.sampler = sampler
        self.hits: Hits | None = None
        if refresh_every < 1:
            raise ValueError(f"refresh_every={refresh_every} must be at least 1")
        if refresh_every > 1 and not isinstance(sampler, QuerySampler):
            raise ValueError(
                f"refresh_every={refresh_every} is for a sampler that follows the query, such as TwoLevel, not for "
                f"{type(sampler).__name__}: leave it out"
            )
        self.refresh_every = refresh_every
        self.num_losses: Tensor
        if updates_between and (refresh_every == 1 or not isinstance(sampler, QuerySampler)):
            raise ValueError(
                f"updates_between=True with refresh_every={refresh_every} and {type(sampler).__name__}: it is for a "
                "sampler that follows the query, such as TwoLevel, between refreshes; raise refresh_every, or leave it"
            )
        self.updates_between = updates_between
        self.last_targets: tuple[Tensor, Tensor] | None = None  # and their rows of the table, as they were
        self.is_used: Tensor
        if isinstance(sampler, QuerySampler):
            self.register_buffer("num_losses", torch.zeros((), dtype=torch.long))
        if updates_between:
            self.register_buffer("is_met", torch.zeros(table.num_classes, dtype=torch.bool))
        if not objective_of(objective).hits:
            if sampler is not None or num_sampled is not None or hits is not None:
                raise ValueError(f"objective={objective!r} meets every class: give no sampler, num_sampled or hits")
            if table.has_sparse_gradients:
                raise ValueError(
                    f"objective={objective!r} gives every class a gradient: set has_sparse_gradients=False"
                )
            return
        if sampler is None or num_sampled is None:
            raise ValueError(f"objective={objective!r} needs candidates: give a sampler and num_sampled")
        self.hits = hits_of(objective, hits)
        if self.hits not in sampler.hits:
            raise ValueError(
                f"{objective} asks for hits={self.hits!r}, which {type(sampler).__name__} does not offer: choose "
                f"another sampler, or hits among both {', '.join(objective_of(objective).hits)} and "
                f"{', '.join(sampler.hits)}"
            )
        if sampler.num_classes != table.num_classes:
            raise ValueError(f"the sampler draws from {sampler.num_classes} classes, the table has {table.num_classes}")
        if self.hits == "exclude" and not sampler.excludes_per_query(num_sampled):
            raise ValueError(
                f"{objective} asks for hits='exclude', but one draw of {type(sampler).__name__} serves all queries and "
                "cannot avoid the targets of each: build it with shared=False, or ask for hits='remove'"
            )
        sampler.check_request(num_sampled, self.hits)
        sampler.check_left(num_sampled, int(self.hits == "exclude"))  # one target a row, at least
        if isinstance(sampler, QuerySampler):
            self._check_scores(sampler)

    @property
    def meets_all_ranks(self) -> bool:  # type: ignore[override]
        """Whether one draw serves the rows of all ranks: it is then made of one seed, as in a single process."""
        return getattr(self.sampler, "shared", False)

    @property
    def training_strategies(self) -> tuple[str, ...]:
        """The objective's name."""
        return (self.objective,)

    def held_out_strategies(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """The full softmax alone."""
        if tuple(extra) not in ((), ("mixed_excluding",)):
            raise ValueError(f"model.extra_strategies are of negatives, which {type(self).__name__} has none of")
        return (FULL_SOFTMAX,)

    def connect(self, encoder: Any, context: Any) -> int:
        """Queries are as wide as the table's classes; an encoder of tokens is shown the table."""
        if context.directions != ("",):
            raise ValueError(f"{type(self).__name__} predicts along sequences: choose a context of sequences")
        if hasattr(encoder, "connect_classes"):
            encoder.connect_classes(self.table)
        return self.table.dim

    def forward(
        self,
        output: Output,
        batch: Batch,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Find the class of what follows k steps later with the query W_k c_t, for every step k and every t.

        A row is a t that is valid and whose class k steps later is known: `labels[:, t + k - 1]`, negative where
        unknown. All rows share one call, and one draw where the sampler shares draws. log N is that of the candidates,
        n for the full softmax, and N - 1 of them drawn for a sampled one. A training loss weighs a row by the rows of
        all ranks, times their number, which DDP's mean takes back; every rank must call it at the same time.

        Raises:
            ValueError: if there are too few labels for the furthest step, none is known, or `num_valid` counts more
                places than there are.
        """
        strategy = self.objective if measure is None else measure.strategy
        if strategy not in (FULL_SOFTMAX, self.objective):
            raise ValueError(f"strategy={strategy!r}: classes are found by {self.objective} or {FULL_SOFTMAX}")
        queries, labels = output.queries[""], batch.labels.cpu()
        num_steps, num_sequences, num_places, _ = queries.shape
        furthest = self.skip_steps + num_steps
        num_labels = num_places + furthest - 1
        if labels.shape[1] < num_labels:
            raise ValueError(
                f"{num_places} places and {furthest} steps ahead need {num_labels} labels, got {labels.shape[1]}"
            )
        num_valid = Sequences.of((num_sequences, num_places), batch.num_valid).num_valid
        ahead = labels[:, self.skip_steps : num_labels].unfold(1, num_steps, 1)  # [B, T, K]
        is_valid = torch.arange(num_places) < rearrange(num_valid, "b -> b 1")
        query = ((ahead >= 0) & rearrange(is_valid, "b t -> b t 1")).flatten().nonzero()[:, 0]
        num_rows = torch.bincount(query % num_steps, minlength=num_steps)
        # Held-out text may end earlier on some ranks, which ask no more; its sums need no weight.
        of_ranks = rows_of_all_ranks(num_rows) if measure is None else num_rows[None]
        if bool((of_ranks.sum(1) == 0).any()):  # on whatever rank: all refuse it, and none waits
            raise ValueError("no place of the batch has a known class ahead of it: there is nothing to be found")
        weights = len(of_ranks) * weight_of(query % num_steps, of_ranks.sum(0))
        row_losses = (query, query % num_steps, query // (num_places * num_steps), weights)
        there, step, sequence, weight = (each.to(queries.device, non_blocking=True) for each in row_losses)
        asked, targets = rearrange(queries, "k b t d -> (b t k) d")[there], ahead.flatten()[query]
        if measure is not None and strategy == FULL_SOFTMAX:
            found = self.exact(asked, targets, weight)
        else:
            found = self.row_losses(asked, targets, generator, weight)
        return sum_by_step(found, step, sequence, num_steps, num_sequences)

    def row_losses(
        self,
        queries: Float[Tensor, "M D"],
        targets: Int[Tensor, "M ..."],
        generator: torch.Generator | None = None,
        weight: Float[Tensor, " M"] | None = None,
    ) -> RowLosses:
        """The training loss; see `class_loss`.

        Args:
            queries: what classes are scored with. The sampler gets them as they are multiplied: of length 1 where the
                table is normalised, not divided by the temperature, without the 1 that biases are multiplied by.
            targets: `[M]` or `[M, T]`, -1 where a row has fewer than T; on the host no GPU has to wait for their check.
            generator: source of the draws.
            weight: of each row in the loss; None: 1 / M.

        Raises:
            ValueError: as `class_loss` and the sampler say.
        """
        on_host = as_sets(targets, len(queries), self.table.num_classes)
        targets, draw = on_host.to(queries.device, non_blocking=True), None
        if self.sampler is not None:
            assert self.num_sampled is not None
            assert self.hits is not None
            self._refresh()
            shown = self._shown_queries(queries.detach()) if self.sampler.needs_queries else None
            draw = self.sampler.sample(shown, self.num_sampled, targets, self.hits, generator)
            if self.updates_between and self.training:
                self.is_used[draw.ids] = True
                present = on_host[on_host != NO_TARGET].to(self.is_used.device)
                self.is_used[present] = True
                self.last_targets = present, self.table.weight.detach()[present]
        check_draw(draw, targets, self.objective, self.correction)
        of_table = (self._divided(queries), self.table.vectors, self.table.biases)
        return loss_on_table(*of_table, targets, draw, self.objective, self.correction, weight)

    def set_step(self, batch: int) -> None:
        """Say which training batch comes next, by its number, to a sampler whose law depends on it."""
        if self.sampler is not None:
            self.sampler.set_step(batch)

    def _refresh(self) -> None:
        """Show the sampler the table, or what has moved of it, where it looks at it and its turn has come."""
        if not isinstance(self.sampler, QuerySampler) or (self.sampler.is_ready and not self.training):
            return
        has_moved = self.updates_between and self._has_moved()
        if not self.sampler.is_ready or self.num_losses % self.refresh_every == 0:
            self.sampler.refresh(self._shown_classes())
        elif has_moved:
            ids = self.is_used.nonzero()[:, 0]
            self.sampler.update(ids, self._shown_classes(ids))
        if has_moved:
            self.is_used.zero_()
        self.num_losses += int(self.training)

    def _has_moved(self) -> bool:
        """Whether there was a step since the last loss: what those have met whose gradients add up is yet to move.

        Told by the rows of its targets, which every step moves; fused optimisers leave torch's count of versions as it
        is, and gradients stand until the next backward pass, or not, as the training loop likes.
        """
        if self.last_targets is None:
            return True
        ids, rows = self.last_targets
        return not torch.equal(self.table.weight.detach()[ids], rows)

    @property
    def _draws_by_bias(self) -> bool:
        return isinstance(self.sampler, QuerySampler) and self.sampler.dim > self.table.dim

    def _shown_queries(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M D1"]:
        vectors = self.table.normalised(queries)
        return F.pad(vectors, (0, 1), value=1.0) if self._draws_by_bias else vectors

    @torch.no_grad()
    def _shown_classes(self, ids: Int[Tensor, " U"] | None = None) -> Float[Tensor, "n D1"]:
        vectors, biases = self.table.vectors(ids), self.table.biases(ids)
        if not self._draws_by_bias or biases is None:
            return vectors
        return torch.cat([vectors, self.table.temperature * rearrange(biases, "n -> n 1")], dim=1)

    def _check_scores(self, sampler: QuerySampler) -> None:
        """Refuse a sampler whose law would be that of other scores; where it leaves the biases out, say so."""
        table, name = self.table, type(sampler).__name__
        can_have_bias = table.has_bias and not sampler.needs_normalised  # vectors of length 1 have no room for another
        if sampler.dim != table.dim and not (can_have_bias and sampler.dim == table.dim + 1):
            with_bias = f", or for dim={table.dim + 1} to draw by their biases too" if can_have_bias else ""
            raise ValueError(
                f"{name} is built for vectors of dim={sampler.dim}, the table's have {table.dim}: build it for "
                f"these{with_bias}"
            )
        if sampler.has_temperature and sampler.temperature != table.temperature:
            raise ValueError(
                f"the sampler draws at temperature={sampler.temperature}, the table scores at {table.temperature}: its "
                "law would be that of other scores; give both the same"
            )
        if can_have_bias and sampler.dim == table.dim:
            _log.warning(
                "%s(dim=%d) draws by products alone, not by the biases of the table: dim=%d shows it those too",
                *(name, table.dim, table.dim + 1),
            )

    def exact(
        self, queries: Float[Tensor, "M D"], targets: Int[Tensor, "M ..."], weight: Float[Tensor, " M"] | None = None
    ) -> RowLosses:
        """The full softmax's loss, whatever the objective: the log of the perplexity; a tile of rows at a time.

        Sampled objectives without a correction learn log(P / Q) (docs/theory.md): the log of the expected counts Q is
        added to their scores. Of distinct candidates Q is that of independent inclusion, a close approximation.
        The full logistic loss and the sampled one learn log odds F: the softmax is that of log P = log sigmoid(F).

        Raises:
            ValueError: as `check_exact`, and on queries or targets that do not fit the table.
        """
        targets = as_sets(targets, len(queries), self.table.num_classes).to(queries.device, non_blocking=True)
        form = "softmax_of_odds" if learns_log_odds(self.objective) else "softmax"
        bias, learned_against = self.table.biases(), self._learned_against(queries.device)
        if learned_against is not None:
            bias = learned_against if bias is None else bias + learned_against
        of_table = (self._divided(queries), self.table.vectors, lambda _: bias)
        return loss_on_table(*of_table, targets, None, FULL_SOFTMAX, "none", weight, form)

    def check_exact(self) -> None:
        """Refuse what has no full softmax: scores learned against a law that is not one and the same for all queries.

        Raises:
            ValueError: naming objective and sampler.
        """
        self._learned_against(self.table.weight.device)

    def _learned_against(self, device: torch.device) -> Float[Tensor, " n"] | None:
        """Log Q where the scores are log(P / Q), up to a constant; None where they are not."""
        if self.correction != "none" or self.sampler is None:
            return None
        assert self.num_sampled is not None
        counts = self.sampler.expected_counts(self.num_sampled, device)
        if counts is None:
            raise ValueError(
                f"{self.objective} learns log(P / Q), and the law Q of {type(self.sampler).__name__} is not the same "
                "for all queries: no full softmax, and no perplexity, can be told from its scores; choose "
                "sampled_softmax or nce, or a sampler such as Unigram"
            )
        return counts.log().to(torch.get_default_dtype())

    def _divided(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
        if queries.shape[1] != self.table.dim:
            raise ValueError(f"queries have {queries.shape[1]} dims, the table's classes {self.table.dim}")
        return scaled(self.table.normalised(queries), self.table.temperature)
