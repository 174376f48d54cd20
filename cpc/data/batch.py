"""The batch of a training step, the same type for all modalities.

B batch, S samples, T latents.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cpc.data.tensors import move

UNLABELLED = -100  # label of what has none; torch's `ignore_index`


class Batch(NamedTuple):
    """A batch of observations with the identities that negative strategies need.

    Attributes:
        x: `[B, S]` float32 waveforms; other modalities have observations of another shape.
        num_valid: `[B]` int64, number of samples of `x` that are signal, before zero padding. None: all.
        sequence_id: `[B]` int64, the file of each window, since windows of one file may overlap; None: all files
            differ.
        group_id: `[B]` int64, the speaker, or -1 if unknown.
        labels: `[B, T]` int64 frame labels, `UNLABELLED` where unknown; `[B, 0]` if the data have none.
        target: observations like `x`, whose latents are predicted: `x` without augmentation; None: `x` itself.
        is_known: `[B, S]` bool, samples of which at least one channel is known; None: all.
    """

    x: Tensor
    num_valid: Tensor | None
    sequence_id: Tensor | None
    group_id: Tensor
    labels: Tensor
    target: Tensor | None = None
    is_known: Tensor | None = None

    @staticmethod
    def of(x: Tensor) -> "Batch":
        """Return a batch of observations that come from different files, and have no padding, labels or speakers.

        Identities stay on the host, which reads them without waiting for a GPU.
        """
        unknown = torch.full((len(x),), -1)
        return Batch(x, None, None, unknown, unknown.new_zeros(len(x), 0))

    def beside(self, weights: Tensor) -> "Batch":
        """Return the batch with its observations on the device of `weights`; floats are of the dtype of `weights`."""
        moved = self.to(weights.device)
        if not self.x.is_floating_point():
            return moved
        target = None if moved.target is None else moved.target.to(weights.dtype)
        return moved._replace(x=moved.x.to(weights.dtype), target=target)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with its observations on a device.

        All other fields stay on the host, which plans the loss from them, and would have to wait for a GPU.
        """
        target = None if self.target is None else move(self.target, device)
        return self._replace(x=move(self.x, device), target=target)
