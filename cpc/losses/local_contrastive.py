"""The loss of CPC for every place of a frame: find its latent k frames later among latents of the same place.

p places of an encoder's last layer, d channels of a place.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cpc.losses.contrastive import Contrastive
from cpc.losses.definition import CandidateSet
from cpc.losses.output import RowLosses


class LocalContrastive(Contrastive):
    """The mean of InfoNCE over the places of a frame: global contexts predict local latents.

    A whole frame can be recognised by its easiest detail, such as a clock, and then no other detail is learnt. With a
    loss for every place, a context must predict all places. This is the global-local loss of Anand et al. 2019
    (arXiv:1906.08226, eq. 1), after Hjelm et al. 2019 (arXiv:1808.06670). Their models have no contexts; use
    `cpc.contexts.Identity` to repeat them. Loss, accuracy and log N - L are means over places, so log N - L belongs to
    one place, not to a frame.

    The encoder returns places from `latents_and_places`, as `cpc.encoders.FrameEncoder` does. The options are those of
    `Contrastive`.
    """

    needs_places = True
    num_places: int

    def connect(self, encoder: Any, context: Any) -> int:
        """Return the width of the queries: the sum of the widths of all places, which the encoder must have."""
        if not hasattr(encoder, "latents_and_places"):
            found = f"model.loss is {type(self).__name__}, which predicts places of frames"
            raise ValueError(f"{found}, but {type(encoder).__name__} has none: choose cpc.encoders.FrameEncoder")
        self.num_places = encoder.num_places
        width: int = encoder.projection.in_features
        return width

    def _score(self, queries: Tensor, candidates: Tensor, rows: CandidateSet, drawn: Tensor | None) -> RowLosses:
        by_place = [rearrange(each, "n (p d) -> p n d", p=self.num_places) for each in (queries, candidates)]
        score = super()._score
        losses = [score(q, z, rows, drawn) for q, z in zip(*by_place, strict=True)]
        names = ("loss", "loss_nats", "accuracy")
        loss, loss_nats, accuracy = (torch.stack([getattr(each, name) for each in losses]).mean(0) for name in names)
        return losses[0]._replace(loss=loss, loss_nats=loss_nats, accuracy=accuracy)
