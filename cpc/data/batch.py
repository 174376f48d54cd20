"""What one step of training sees, whatever the modality.

B batch, S samples, T latents.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """A batch of observations with the identities that negative strategies need.

    Attributes:
        x: `[B, S]` float32 waveforms (other modalities: their own observation).
        num_valid: `[B]` int64, samples of `x` that are signal, the rest is zero padding; None: all. Where a loss takes
            a batch it counts latents: `CPC.contrast` converts it.
        sequence_id: `[B]` int64, the file a window comes from: windows of one file may overlap; None: all distinct.
        group_id: `[B]` int64, the speaker, or -1 where unknown.
        labels: `[B, T]` int64 frame labels, -100 where unknown; `[B, 0]` if the data have none.
        target: like `x`, what contexts are to predict: `x` as it was before chance changed it; None: `x` itself.
    """

    x: Tensor
    num_valid: Tensor | None
    sequence_id: Tensor | None
    group_id: Tensor
    labels: Tensor
    target: Tensor | None = None

    @staticmethod
    def of(x: Tensor) -> "Batch":
        """Observations alone: whole, each of its own file, of unknown speakers, without labels."""
        unknown = torch.full((len(x),), -1, device=x.device)
        return Batch(x, None, None, unknown, unknown.new_zeros(len(x), 0))

    def beside(self, weights: Tensor) -> "Batch":
        """On the device of `weights`, and floating-point observations in their precision."""
        there = Batch(*(None if field is None else field.to(weights.device) for field in self))  # type: ignore[arg-type]
        if not self.x.is_floating_point():
            return there
        target = None if there.target is None else there.target.to(weights.dtype)
        return there._replace(x=there.x.to(weights.dtype), target=target)
