"""The model: x -> z, c and the contrastive loss; pure torch.

B batch, S samples, T latents, D latent dim, C context dim, K prediction steps. Of images, latents and contexts are
grids `[B, H, W, D]`, whose columns are the sequences.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Literal, NamedTuple

import torch
from einops import repeat
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from cpc.candidates.strategies import STRATEGIES
from cpc.contexts.grid import GridContext
from cpc.losses.class_contrast import class_contrast
from cpc.losses.class_table_loss import ClassTableLoss
from cpc.losses.contrast import Contrast, contrast, side_by_side
from cpc.losses.info_nce import COMPUTE
from cpc.predictors import Step


class Output(NamedTuple):
    """Latents `[B, T, D]`, contexts `[B, T, C]` (or grids of them), and the state from which encoding goes on."""

    latents: Tensor
    contexts: Tensor
    state: Any


class CPC(nn.Module):
    """Contrastive Predictive Coding (van den Oord et al. 2018, arXiv:1807.03748).

    Args:
        encoder: g_enc, x -> z.
        context: g_ar, z_<=t -> c_t.
        predictor: c_t -> the queries W_k c_t of the steps k = 1..K.
        negatives: whose latents the positive is compared with, a name in `cpc.candidates.STRATEGIES`.
        num_negatives: drawn per row and step, uniformly with replacement; None: every candidate of the batch.
        shared_across_steps: use the same draws for all steps (see `cpc.losses.contrast`).
        compute: `bf16` rounds the operands of the loss's matrix products (see `cpc.losses.info_nce`).
        auxiliary_negatives: further strategies to train with, and the share of each one's loss in the training loss;
            `negatives` has the rest, and the bound is its alone. `{"sequence_only": 0.75}` beside `mixed`: three
            quarters of the loss teach what is said, one quarter who speaks.
        skip_steps: latents between a context and the first one predicted. Latents that share input with the context
            are told rather than predicted: patches that overlap by half want to skip one row.
        classes: a table of classes with an objective and a sampler, for candidates in place of latents: what is
            predicted is the class of what follows, which comes as `labels`. Whom a query meets is then the sampler's
            to say, and every option above but `skip_steps` keeps its default.

    Raises:
        ValueError: on an unknown strategy, shares that leave nothing for `negatives`, fewer than one negative, a
            negative `skip_steps`, or a context of sequences for an encoder of images, or the other way round; with
            `classes`, on options of negatives, or a context of grids.
    """

    # Any: parts follow a protocol (connect, dim, num_latents, ...) that torch's own attribute types would hide.
    encoder: Any
    context: Any
    predictor: Any

    def __init__(
        self,
        encoder: Any,
        context: Any,
        predictor: Any,
        negatives: str = "mixed",
        num_negatives: int | None = None,
        shared_across_steps: bool = False,
        compute: str = "float32",
        auxiliary_negatives: dict[str, float] | None = None,
        skip_steps: int = 0,
        classes: ClassTableLoss | None = None,
    ) -> None:
        super().__init__()
        if negatives not in STRATEGIES:
            raise ValueError(f"negatives={negatives!r} is not one of {', '.join(STRATEGIES)}")
        _check_auxiliary(auxiliary_negatives or {}, negatives)
        if num_negatives is not None and num_negatives < 1:
            raise ValueError(f"num_negatives={num_negatives} must be at least 1, or None for all candidates")
        if compute not in COMPUTE:
            raise ValueError(f"compute={compute!r} is not one of {', '.join(COMPUTE)}")
        if skip_steps < 0:
            raise ValueError(f"skip_steps={skip_steps} must not be negative")
        _check_shapes(encoder, context)
        if classes is not None:
            is_plain = (negatives, num_negatives, shared_across_steps, compute) == ("mixed", None, False, "float32")
            if not is_plain or auxiliary_negatives or isinstance(context, GridContext):
                raise ValueError(
                    "with model.classes the candidates are classes: leave negatives, num_negatives, "
                    "shared_across_steps, compute and auxiliary_negatives out, and choose a context of sequences"
                )
            if hasattr(encoder, "connect_classes"):
                encoder.connect_classes(classes.table)
        self.encoder = encoder
        self.context = context
        self.predictor = predictor
        self.negatives = negatives
        self.num_negatives = num_negatives
        self.shared_across_steps = shared_across_steps
        self.compute = compute
        self.auxiliary_negatives = dict(auxiliary_negatives or {})
        self.skip_steps = skip_steps
        self.classes = classes
        self.other_predictors = nn.ModuleList(deepcopy(predictor) for _ in context.directions[1:])
        context.connect(encoder.dim)
        for of_direction in self.predictors:
            query_dim = encoder.dim if classes is None else classes.table.dim
            of_direction.connect(context.dim // len(context.directions), query_dim)
        self.is_initialised: Tensor
        self.register_buffer("is_initialised", torch.zeros((), dtype=torch.bool))

    @property
    def training_strategies(self) -> tuple[str, ...]:
        """Those whose losses make up the training loss; that of the bound first. Of classes, the objective's name."""
        if self.classes is not None:
            return (self.classes.objective,)
        return (self.negatives, *self.auxiliary_negatives)

    @property
    def predictors(self) -> list[Any]:
        """One for every direction of time, each with its own weights."""
        return [self.predictor, *self.other_predictors]

    @property
    def steps(self) -> list[Step]:
        """What is predicted, in the order of a contrast's first axis."""
        distances = range(self.skip_steps + 1, self.skip_steps + 1 + self.predictor.num_steps)
        return [Step(direction, k) for direction in self.context.directions for k in distances]

    def forward(self, x: Num[Tensor, "B ..."], state: Any = None) -> Output:
        """Encode observations; pass the last `state` on to continue sequences rather than begin them."""
        latents = self.encoder(x)  # [B, T, D]
        contexts, state = self.context(latents, state)  # [B, T, C]
        return Output(latents, contexts, state)

    def loss(
        self,
        x: Num[Tensor, "B ..."],
        *,
        num_valid: Int[Tensor, " B"] | None = None,
        sequence_id: Int[Tensor, " B"] | None = None,
        group_id: Int[Tensor, " B"] | None = None,
        strategy: str | None = None,
        labels: Int[Tensor, "B L"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Contrast:
        """Contrast every z_{t+k} with its candidates.

        Args:
            x: observations.
            num_valid: samples of each row of `x` that are signal; None: all.
            sequence_id: rows that may overlap share an id; None: all distinct.
            group_id: the speaker of each row, -1 where unknown.
            strategy: this one alone, for evaluation; None: as the model trains.
            labels: of a model with `classes`, the class of what follows each latent (`cpc.losses.class_contrast`).
            generator: source of the negatives' draws.
        """
        latents, contexts, _ = self(x)
        return self.contrast(
            latents,
            contexts,
            num_valid=None if num_valid is None else self.encoder.num_latents(num_valid),
            sequence_id=sequence_id,
            group_id=group_id,
            strategy=strategy,
            labels=labels,
            generator=generator,
        )

    def contrast(
        self,
        latents: Float[Tensor, "B ... D"],
        contexts: Float[Tensor, "B ... C"],
        *,
        num_valid: Int[Tensor, " B"] | None = None,
        sequence_id: Int[Tensor, " B"] | None = None,
        group_id: Int[Tensor, " B"] | None = None,
        strategy: str | None = None,
        num_negatives: int | Literal["trained"] | None = "trained",
        labels: Int[Tensor, "B L"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Contrast:
        """The loss from latents and contexts at hand; `num_valid` counts latents here.

        With auxiliary strategies `.loss` is the mean of all, weighted by their shares; all else is of `negatives`.
        `num_negatives` is the model's unless evaluation asks for others, None for all candidates. A model
        with `classes` looks at contexts and `labels` alone, and knows the strategies of `training_strategies` and
        `full_softmax`.
        """
        if self.classes is not None:
            return self._contrast_classes(contexts, labels, num_valid, strategy, generator)
        num_negatives = self.num_negatives if num_negatives == "trained" else num_negatives
        of_directions = [
            self._contrast_sequences(queries, z, strategy, num_negatives, generator, identities)
            for queries, z, identities in self.predictions(
                latents, contexts, num_valid=num_valid, sequence_id=sequence_id, group_id=group_id
            )
        ]
        return of_directions[0] if self.context.directions == ("",) else side_by_side(of_directions, len(latents))

    def predictions(
        self,
        latents: Float[Tensor, "B ... D"],
        contexts: Float[Tensor, "B ... C"],
        *,
        num_valid: Int[Tensor, " B"] | None = None,
        sequence_id: Int[Tensor, " B"] | None = None,
        group_id: Int[Tensor, " B"] | None = None,
    ) -> Iterator[tuple[Float[Tensor, "K S T D"], Float[Tensor, "S T D"], dict[str, Tensor | None]]]:
        """For each direction of time the queries, the latents they predict, and whose these are, as for `contrast`."""
        if sequence_id is None:
            sequence_id = torch.arange(len(latents), device=latents.device)
        for (z, c), predictor in zip(self.context.sequences(latents, contexts), self.predictors, strict=True):
            identities = {"num_valid": num_valid, "sequence_id": sequence_id, "group_id": group_id}
            each = len(z) // len(latents)  # the columns of an image share its identity
            yield (
                predictor(c),
                z,
                {name: None if i is None else repeat(i, "b -> (b s)", s=each) for name, i in identities.items()},
            )

    def _contrast_classes(
        self,
        contexts: Float[Tensor, "B T C"],
        labels: Int[Tensor, "B L"] | None,
        num_valid: Int[Tensor, " B"] | None,
        strategy: str | None,
        generator: torch.Generator | None,
    ) -> Contrast:
        assert self.classes is not None
        if labels is None:
            raise ValueError("a model with classes predicts the classes of what follows: give it labels")
        if strategy not in (None, "full_softmax", self.classes.objective):
            raise ValueError(f"strategy={strategy!r}: classes are told by {self.classes.objective} or full_softmax")
        return class_contrast(
            self.predictor(contexts),
            labels,
            self.classes,
            ahead=[step.k for step in self.steps],
            num_valid=num_valid,
            exact=strategy == "full_softmax",
            generator=generator,
        )

    def _contrast_sequences(
        self,
        queries: Float[Tensor, "K S T D"],
        latents: Float[Tensor, "S T D"],
        strategy: str | None,
        num_negatives: int | None,
        generator: torch.Generator | None,
        identities: dict[str, Tensor | None],
    ) -> Contrast:
        """With one strategy, or as the model trains if it is None."""

        def contrast_with(strategy: str) -> Contrast:
            return contrast(
                queries,
                latents,
                strategy=strategy,
                num_negatives=num_negatives,
                shared_across_steps=self.shared_across_steps,
                skip_steps=self.skip_steps,
                generator=generator,
                compute=self.compute,
                **identities,
            )

        of_bound = contrast_with(strategy or self.negatives)
        if strategy is not None or not self.auxiliary_negatives:
            return of_bound
        loss, loss_nats = (1 - sum(self.auxiliary_negatives.values())) * of_bound.loss, of_bound.loss_nats
        for strategy, share in self.auxiliary_negatives.items():
            auxiliary = contrast_with(strategy)
            loss = loss + share * auxiliary.loss
            loss_nats = loss_nats + 0 * auxiliary.loss_nats  # the same, unless the step is not finite here
        return of_bound._replace(loss=loss, loss_nats=loss_nats)

    def initialise_from(self, x: Num[Tensor, "B ..."]) -> None:
        """Data-dependent initialisation of the encoder; before the model is wrapped, compiled or trained."""
        self.encoder.initialise_from(x)
        self.is_initialised.fill_(True)


def _check_shapes(encoder: Any, context: Any) -> None:
    modality = getattr(encoder, "modality", None)  # an encoder of one's own may leave it out, and is believed
    if modality is not None and isinstance(context, GridContext) != (modality == "image"):
        latents = "grids: choose PixelCNN or RowGRU" if modality == "image" else "sequences: choose GRU, for example"
        raise ValueError(
            f"the context is {type(context).__name__}, but the encoder {type(encoder).__name__} is of {modality}, "
            f"whose latents are {latents}"
        )


def _check_auxiliary(shares: dict[str, float], negatives: str) -> None:
    for strategy, share in shares.items():
        if strategy not in STRATEGIES:
            raise ValueError(f"auxiliary_negatives names {strategy!r}, which is not one of {', '.join(STRATEGIES)}")
        if strategy == negatives:
            raise ValueError(
                f"auxiliary_negatives names {strategy!r}, which is negatives itself: name another strategy"
            )
        if not share > 0:
            raise ValueError(f"auxiliary_negatives gives {strategy!r} the share {share}: shares must be positive")
    if sum(shares.values()) >= 1:
        raise ValueError(
            f"the shares in auxiliary_negatives sum to {sum(shares.values()):g}: below 1 a part is left for "
            f"negatives={negatives!r}, whose bound is watched"
        )
