"""The loss of CPC place by place: find what every place of a frame will be, among the same place of other frames.

P places of an encoder's last layer, d channels of each, Q queries, N candidates.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.losses.candidate_sets import CandidateSet
from cpc.losses.contrastive import Contrastive
from cpc.losses.output import RowLosses


class LocalContrastive(Contrastive):
    """Global contexts predict local latents: the mean of InfoNCE over the places of a frame.

    A whole frame is told from others by whatever is easiest, such as a clock, and the rest need not be learnt. Each
    place is a question of its own, and a context must answer all of them (the global-local loss of Anand et al. 2019,
    arXiv:1906.08226, eq. 1, after Hjelm et al. 2019, arXiv:1808.06670; they have no contexts: `cpc.contexts.Identity`).
    Loss, accuracy and log N - L are means over places: log N - L is of one place, not of a frame.

    The encoder gives places by `latents_and_places`, as `cpc.encoders.FrameEncoder` does. Options: see `Contrastive`.
    """

    num_places: int

    def connect(self, encoder: Any, context: Any) -> int:
        """Queries are as wide as all places of the encoder together.

        Raises:
            ValueError: if the encoder has none.
        """
        if not hasattr(encoder, "latents_and_places"):
            raise ValueError(
                f"model.loss is {type(self).__name__}, which predicts places of frames, but {type(encoder).__name__} "
                "has none: choose cpc.encoders.FrameEncoder, or cpc.losses.Contrastive"
            )
        self.num_places = encoder.num_places
        width: int = encoder.projection.in_features
        return width

    def encode(self, encoder: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """The latents that contexts read, and the places that queries find."""
        latents, places = encoder.latents_and_places(x)
        return latents, places

    def _row_losses(
        self,
        queries: Float[Tensor, "Q P_d"],
        candidates: Float[Tensor, "N P_d"],
        candidate_set: CandidateSet,
        negatives: Int[Tensor, "M R"] | None,
    ) -> RowLosses:
        places = [rearrange(each, "n (p d) -> p n d", p=self.num_places) for each in (queries, candidates)]
        losses = super()._row_losses
        rows = [losses(q, z, candidate_set, negatives) for q, z in zip(*places, strict=True)]
        loss, loss_nats, accuracy = (
            torch.stack([getattr(row, name) for row in rows]).mean(0) for name in ("loss", "loss_nats", "accuracy")
        )
        return rows[0]._replace(loss=loss, loss_nats=loss_nats, accuracy=accuracy)
