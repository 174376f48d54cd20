"""The loss of a language model: an objective on a class table, with a sampler that draws the candidates.

M queries, T targets of each query, D dims.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from cpc.candidates.class_table import ClassTable
from cpc.candidates.samplers import NO_TARGET, Hits, QuerySampler, Sampler
from cpc.candidates.samplers.sampler import target_sets
from cpc.config.argument_rules import Choices, Count, Range, checked
from cpc.data.tensors import check_tensor
from cpc.losses.candidate_sets import row_weights
from cpc.losses.class_loss import loss_on_table
from cpc.losses.engine import divide_by_temperature
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.objectives import FULL_SOFTMAX, accepted, objective_of
from cpc.losses.output import ContrastiveOutput, RowLosses, sum_by_step
from cpc.losses.ranks import gather_integers
from cpc.losses.sequences import Sequences, positions_ahead
from cpc.predictors import Output


class ClassTableLoss(Loss):
    """The loss of finding the next class, given as `Batch.labels`, among the classes of a table.

    A sampler whose proposal depends on the query reads the classes' vectors. If the sampler has one dim more than the
    table, it also reads the biases: the last coordinate is temperature * bias for a class and 1 for a query. Kernels
    that need vectors of length 1 cannot do this. If the sampler has as many dims as the table, its proposal ignores the
    biases. The loss is corrected for this, but its variance grows with the differences between biases.

    The full softmax measures the model in every case. With several processes, rank 0 sends the buffers of its sampler
    to the others at every step; checkpoints save the same buffers.

    Args:
        table: the classes.
        objective: a name in `cpc.losses.OBJECTIVES`.
        sampler: source of the candidates; None for full objectives.
        num_sampled: number of candidates that are drawn.
        correction: a correction that the objective accepts; None: its default.
        hits: a treatment of accidental hits that the objective accepts; None: its default.
        refresh_every: number of training losses between two refreshes of a sampler that reads the table. Between
            refreshes the sampler draws from the proposal of the older table; its log counts stay exact.
        updates_between: whether such a sampler is also updated after each training step, for the classes that were
            targets or candidates (of the first process), which have changed most. A training loop of your own calls
            `watch` with its optimiser before the first loss.
        skip_steps: number of latents between a context and the first latent whose class is predicted.

    Raises:
        ValueError: if objective, sampler, correction, hits and table do not fit each other, or `num_sampled` classes
            cannot be drawn.
    """

    predicts = "classes"
    hits: Hits | None = None

    @checked
    def __init__(
        self,
        table: ClassTable,
        objective: str,
        sampler: Sampler | None = None,
        num_sampled: int | None = None,
        correction: str | None = None,
        hits: str | None = None,
        refresh_every: Count = 1,
        updates_between: bool = False,
        skip_steps: int = 0,
    ) -> None:
        super().__init__(skip_steps)
        self.objective = objective
        self.correction = accepted(objective, "correction", correction)
        self.num_sampled = num_sampled
        self.table = table
        self.has_sparse_gradients = table.has_sparse_gradients
        self.sampler = sampler
        self.refresh_every = refresh_every
        self.updates_between = updates_between
        self.has_moved: bool | None = None  # whether the optimiser may have taken a step; None: it is not watched
        reads_table = isinstance(sampler, QuerySampler)
        if (refresh_every > 1 or updates_between) and not reads_table:
            given = f"refresh_every={refresh_every} and updates_between={updates_between}"
            raise ValueError(f"{given} are for a sampler that reads the table, not for {type(sampler).__name__}")
        if updates_between and refresh_every == 1:
            raise ValueError("updates_between=True with refresh_every=1: raise refresh_every, or leave it out")
        if reads_table:
            self.num_losses = nn.Buffer(torch.zeros((), dtype=torch.long))
        if updates_between:
            # classes that were targets or candidates since the last refresh or update
            self.is_met = nn.Buffer(torch.zeros(table.num_classes, dtype=torch.bool))
        if objective_of(objective).hits:
            self._check_sampler(hits)
        elif sampler is not None or num_sampled is not None or hits is not None:
            raise ValueError(f"objective={objective!r} scores every class: give no sampler, num_sampled or hits")
        elif table.has_sparse_gradients:
            raise ValueError(f"objective={objective!r} gives every class a gradient: set has_sparse_gradients=False")

    def _check_sampler(self, hits: str | None) -> None:
        """Check a sampler for the objective and the table, and set `hits`."""
        table, sampler, num, objective = self.table, self.sampler, self.num_sampled, self.objective
        if sampler is None or num is None:
            raise ValueError(f"objective={objective!r} needs candidates: give a sampler and num_sampled")
        self.hits = accepted(objective, "hits", hits)
        sampler.check_request(num, self.hits)
        Choices((table.num_classes,)).check("the number of classes of the sampler", sampler.num_classes)
        if self.hits == "exclude" and not sampler.excludes_per_query(num):
            found = f"all queries share one draw of {type(sampler).__name__}: set shared=False, or hits='remove'"
            raise ValueError(f"{objective} asks for hits='exclude', but {found}")
        sampler.check_left(num, int(self.hits == "exclude"))  # at least one target per row
        if isinstance(sampler, QuerySampler):
            sampler.check_table(table)

    @property
    def uses_all_ranks(self) -> bool:  # type: ignore[override]
        """Whether the rows of all ranks share one draw, which then uses one seed, as in a single process."""
        return getattr(self.sampler, "shared", False)

    @property
    def training_strategies(self) -> tuple[str, ...]:
        """The objective's name."""
        return (self.objective,)

    def held_out_strategies(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """Return only the full softmax."""
        Choices(((), ("mixed_excluding",))).check(f"model.extra_strategies of {type(self).__name__}", tuple(extra))
        return (FULL_SOFTMAX,)

    def connect(self, encoder: Any, context: Any) -> int:
        """Return the width of the table's classes; an encoder of tokens gets the table."""
        if context.directions != ("",):
            raise ValueError(f"{type(self).__name__} predicts in one direction: choose a context such as GRU")
        if hasattr(encoder, "connect_classes"):
            encoder.connect_classes(self.table)
        return self.table.dim

    def forward(
        self,
        output: Output,
        sequences: Sequences,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Return the loss of finding the class k steps ahead with the query W_k c_t, for every step k and every t.

        There is a row for every valid t whose class k steps ahead, `labels[:, t + k - 1]`, is known (not negative). All
        rows share one draw if the sampler shares draws. N is the number of candidates: n for the full softmax; for a
        sampled softmax, the positive and N - 1 drawn classes. All ranks must call this.

        Raises:
            ValueError: if there are too few labels for the furthest step, or no class is known.
        """
        strategy = self.objective if measure is None else measure.strategy
        Choices((self.objective, FULL_SOFTMAX)).check("strategy", strategy)
        assert sequences.labels is not None
        queries, labels = output.queries[""], sequences.labels.cpu()
        num_steps, num_sequences, num_latents, _ = queries.shape
        steps = sequences.geometry.distances
        given = f"{num_latents} latents, to be predicted {steps[-1]} steps ahead: the number of labels"
        Range(num_latents + steps[-1] - 1).check(given, labels.shape[1])
        ahead = labels[:, positions_ahead(num_latents, steps) - 1]  # [B, T, K]
        query = ((ahead >= 0) & rearrange(sequences.is_valid, "b t -> b t 1")).flatten().nonzero()[:, 0]
        num_rows = torch.bincount(query % num_steps, minlength=num_steps)
        # Held-out text may end earlier on some ranks, which then stop calling this. Its sums need no weight.
        counts = gather_integers(num_rows) if measure is None else num_rows[None]
        if bool((counts.sum(1) == 0).any()):  # on any rank: all ranks raise, so that none waits
            raise ValueError("no latent of the batch is followed by a known class: give labels")
        weights = len(counts) * row_weights(query % num_steps, counts.sum(0))
        rows = (query, query % num_steps, query // (num_latents * num_steps), weights)
        index, step, sequence, weight = (each.to(queries.device, non_blocking=True) for each in rows)
        row_queries, targets = rearrange(queries, "k b t d -> (b t k) d")[index], ahead.flatten()[query]
        if measure is not None and strategy == FULL_SOFTMAX:
            found = self.exact(row_queries, targets, weight)
        else:
            found = self.row_losses(row_queries, targets, generator, weight)
        return sum_by_step(found, step, sequence, num_steps, num_sequences)

    def row_losses(
        self,
        queries: Float[Tensor, "M D"],
        targets: Int[Tensor, "M ..."],
        generator: torch.Generator | None = None,
        weight: Float[Tensor, " M"] | None = None,
    ) -> RowLosses:
        """Return the training loss; arguments and errors are those of `class_loss`, the sampler may raise more.

        Pass queries not divided by the temperature. They are scaled to length 1 if the table is normalised. Targets on
        the host are checked without waiting for a GPU.
        """
        on_host = target_sets(targets, len(queries), self.table.num_classes)
        targets, draw = on_host.to(queries.device, non_blocking=True), None
        if self.sampler is not None:
            assert self.num_sampled is not None
            assert self.hits is not None
            self._refresh()
            vectors = self.table.normalised(queries.detach()) if self.sampler.needs_queries else None
            if vectors is not None and isinstance(self.sampler, QuerySampler) and self.sampler.dim > self.table.dim:
                vectors = F.pad(vectors, (0, 1), value=1.0)  # beside temperature * bias
            draw = self.sampler.sample(vectors, self.num_sampled, targets, self.hits, generator)
            draw.check(len(targets), self.table.num_classes, "classes")
            if self.updates_between and self.training:
                self.is_met[draw.ids] = True
                self.is_met[on_host[on_host != NO_TARGET].to(self.is_met.device)] = True
        options = (targets, draw, self.objective, self.correction, weight)
        return loss_on_table(self._scaled(queries), self.table.lookup, *options)

    def set_step(self, batch: int) -> None:
        """Set the index of the next training batch for the sampler."""
        if self.sampler is not None:
            self.sampler.set_step(batch)

    def watch(self, optimiser: Optimizer) -> None:
        """Watch the steps of the optimiser of the table, which `updates_between` needs."""
        if self.updates_between:
            self._note_step()
            optimiser.register_step_post_hook(self._note_step)

    def _note_step(self, *_: Any) -> None:
        self.has_moved = True

    def _refresh(self) -> None:
        """Refresh or update a sampler that reads the table, if this is due."""
        if not isinstance(self.sampler, QuerySampler) or (self.sampler.is_ready and not self.training):
            return
        if self.updates_between and self.training and self.has_moved is None:
            raise ValueError("updates_between=True: call `loss.watch(optimiser)` before training")
        has_moved = self.updates_between and self.has_moved
        if not self.sampler.is_ready or self.num_losses % self.refresh_every == 0:
            self.sampler.read(self.table)
        elif has_moved:
            self.sampler.read(self.table, self.is_met.nonzero()[:, 0])
        if has_moved:
            self.is_met.zero_()
            self.has_moved = False
        self.num_losses += int(self.training)

    def _scaled(self, queries: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
        check_tensor("queries", queries, "floats", ("M", self.table.dim))
        return divide_by_temperature(self.table.normalised(queries), self.table.temperature)

    def exact(
        self, queries: Float[Tensor, "M D"], targets: Int[Tensor, "M ..."], weight: Float[Tensor, " M"] | None = None
    ) -> RowLosses:
        """Return the loss of the full softmax, the log of the perplexity, for any objective.

        Sampled objectives without a correction learn log(P / Q) (docs/theory.md), so log Q is added to their scores.
        For distinct candidates, Q is computed as if classes were included independently, a close approximation. The
        full and the sampled logistic loss learn log odds F, so the softmax is taken over log P = log sigmoid(F).

        Raises:
            ValueError: the errors of `check_exact`; also if queries or targets do not fit the table.
        """
        targets = target_sets(targets, len(queries), self.table.num_classes).to(queries.device, non_blocking=True)
        form, hits, _ = objective_of(self.objective)
        # A logistic loss without targets among the candidates learns log(P / (1 - P)).
        exact_form = "softmax_of_odds" if form == "logistic" and "keep" not in hits else "softmax"
        bias, log_proposal = self.table.biases(), self._log_proposal(queries.device)
        if log_proposal is not None:
            bias = log_proposal if bias is None else bias + log_proposal
        options = (targets, None, FULL_SOFTMAX, "none", weight, exact_form)
        return loss_on_table(self._scaled(queries), lambda _: (self.table.vectors(), bias), *options)

    def check_exact(self) -> None:
        """Raise ValueError if the scores give no full softmax, because each query had another proposal in training."""
        self._log_proposal(self.table.weight.device)

    def _log_proposal(self, device: torch.device) -> Float[Tensor, " n"] | None:
        """Return log Q if the scores are log(P / Q) up to a constant, else None."""
        if self.correction != "none" or self.sampler is None:
            return None
        assert self.num_sampled is not None
        counts = self.sampler.expected_counts(self.num_sampled, device)
        if counts is None:
            proposal = f"the proposal Q of {type(self.sampler).__name__} differs between queries"
            raise ValueError(f"{self.objective} learns log(P / Q), and {proposal}, so scores give no perplexity")
        return counts.log().to(torch.get_default_dtype())
