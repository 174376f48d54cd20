"""The model: x -> z, c, q and the loss; pure torch.

B batch, S samples, T latents, D latent dim, C context dim, K prediction steps. For images, latents and contexts are
grids `[B, H, W, D]`, whose columns are the sequences.
"""

from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Bool, Int, Num
from torch import Tensor, nn

from cpc.contexts.context import check_latents
from cpc.data.batch import Batch
from cpc.encoders.encoder import check_scale
from cpc.losses.contrastive import Contrastive
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.output import ContrastiveOutput
from cpc.losses.sequences import Sequences
from cpc.predictors import Output, Step

_PROTOCOL = {  # attributes that each part must have
    "encoder": ("dim", "num_latents", "initialise_from"),
    "context": ("directions", "connect", "split_directions"),
    "predictor": ("num_steps", "connect"),
    "loss": ("connect", "needs_places", "sequences", "training_strategies"),
}


class CPC(nn.Module):
    """Contrastive Predictive Coding (van den Oord et al. 2018, arXiv:1807.03748).

    Args:
        encoder: g_enc, x -> z.
        context: g_ar, z_<=t -> c_t (all z if it reads ahead).
        predictor: c_t -> the queries W_k c_t of its steps k; each direction of time gets a copy.
        loss: queries -> L; `cpc.losses.Contrastive()` if None. The attribute is `loss_part`.

    Raises:
        ValueError: if an argument is not a part of its kind, only one of encoder and context works on images, or the
            loss does not fit encoder and context.
    """

    # Any: torch's attribute types would hide the protocol of the parts (connect, dim, num_latents, ...).
    encoder: Any
    context: Any
    loss_part: Any
    predictors: Any

    def __init__(self, encoder: Any, context: Any, predictor: Any, loss: Loss | None = None) -> None:
        super().__init__()
        _check_parts(encoder=encoder, context=context, predictor=predictor, loss=loss)
        check_latents(encoder, context)
        self.encoder = encoder
        self.context = context
        self.predictors = nn.ModuleList([predictor, *(deepcopy(predictor) for _ in context.directions[1:])])
        self.loss_part = Contrastive() if loss is None else loss
        query_dim = self.loss_part.connect(encoder, context)
        context.connect(encoder.dim)
        for direction_predictor in self.predictors:
            direction_predictor.connect(context.dim // len(context.directions), query_dim)
        self.is_initialised: Tensor
        self.register_buffer("is_initialised", torch.zeros((), dtype=torch.bool))

    def encode(self, x: Num[Tensor, "B ..."], state: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Return latents, contexts, and the state with which the next chunk continues. Probes call only this method.

        A second chunk is a ValueError if the context reads ahead.
        """
        if not self.training:
            check_scale(self.encoder, x)
        latents = self.encoder(x)  # z: [B, T, D]
        contexts, state = self.context(latents, state)  # c: [B, T, C]
        return latents, contexts, state

    def forward(self, x: Num[Tensor, "B ..."], state: Any = None) -> Output:
        """Encode observations and predict; pass the last `state` to continue sequences instead of starting them."""
        latents, targets = self.latents_and_targets(x)
        contexts, state = self.context(latents, state)
        by_direction = zip(self.predictors, self.context.split_directions(contexts).items(), strict=True)
        queries = {direction: predict(c) for predict, (direction, c) in by_direction}  # q = W_k c: [K, B, T, D]
        return Output(latents, contexts, queries, state, targets, self.predictor_steps)

    def loss(
        self,
        batch: Batch | Num[Tensor, "B ..."],
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Return the loss of a batch; see `contrast`. Plain observations are distinct sequences without padding."""
        batch = batch if isinstance(batch, Batch) else Batch.of(batch)
        return self.contrast(self(batch.x), batch, generator, measure)

    def contrast(
        self,
        output: Output,
        batch: Batch,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Return the loss of an output of the model.

        Args:
            output: output of the model for `batch.x`.
            batch: the observations. If the batch has a `target`, positives and negatives come from it.
            generator: source of the draws.
            measure: a strategy and number of negatives to use instead of those of training.
        """
        if batch.target is not None:
            output = output._replace(targets=self.targets(batch.target))
        return self.loss_part(output, self.sequences(output, batch), generator, measure)

    def sequences(self, output: Output, batch: Batch) -> Sequences:
        """Return the lengths, identities and labels of a batch, for the latents of its output."""
        num_latents, is_known = self.lengths(batch)
        ids = (num_latents, batch.sequence_id, batch.group_id, is_known)
        sequences: Sequences = self.loss_part.sequences(output, *ids, labels=batch.labels)
        return sequences

    def latents_and_targets(self, x: Num[Tensor, "B ..."]) -> tuple[Tensor, Tensor | None]:
        """Return the latents that contexts read, and the latents that queries predict (None if they are the same)."""
        places = self.loss_part.needs_places
        return self.encoder.latents_and_places(x) if places else (self.encoder(x), None)

    def targets(self, x: Num[Tensor, "B ..."]) -> Tensor:
        """Return the latents that queries predict."""
        latents, targets = self.latents_and_targets(x)
        return latents if targets is None else targets

    def lengths(self, batch: Batch) -> tuple[Int[Tensor, " B"] | None, Bool[Tensor, "B T"] | None]:
        """Return the number of latents that are signal, and the mask of known latents; None: all."""
        num_valid, is_known = batch.num_valid, batch.is_known
        num_latents = None if num_valid is None else self.encoder.num_latents(num_valid)
        return num_latents, None if is_known is None else self.encoder.known_latents(is_known)

    @property
    def predictor(self) -> Any:
        """The predictor of the first direction."""
        return self.predictors[0]

    @property
    def steps(self) -> list[Step]:
        """The predicted steps, in the order of the first axis of `ContrastiveOutput`."""
        distances = [self.loss_part.skip_steps + step for step in self.predictor_steps]
        return [Step(direction, k) for direction in self.context.directions for k in distances]

    @property
    def predictor_steps(self) -> tuple[int, ...]:
        """The steps of the predictor, to which the loss adds its `skip_steps`."""
        # A predictor of another package may have no `steps`; it predicts 1..K.
        return getattr(self.predictor, "steps", None) or tuple(range(1, self.predictor.num_steps + 1))

    def initialise_from(self, x: Num[Tensor, "B ..."]) -> None:
        """Initialise the encoder from data; call this before the model is wrapped, compiled or trained."""
        self.encoder.initialise_from(x)
        self.is_initialised.fill_(True)


def _check_parts(**parts: Any) -> None:
    """Raise an error now on a module of a wrong kind, which would fail in the middle of a step."""
    for name, part in parts.items():
        missing = [each for each in _PROTOCOL[name] if not hasattr(part, each)]
        if missing and (name != "loss" or part is not None):
            kind, package = type(part), "cpc.losses" if name == "loss" else f"cpc.{name}s"
            raise ValueError(
                f"model.{name} is {kind.__module__}.{kind.__qualname__}, which is not a valid {name}: it lacks "
                f"{', '.join(missing)}; name a class of {package}, or one with the same attributes"
            )
