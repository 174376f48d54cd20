"""Continuous batches of tokens. Row b of a batch continues row b of the previous batch, so contexts carry a state.

A lane is a stretch of text that is read chunk by chunk; row b of all batches is lane b. B lanes of this process, T
tokens of a lane in a batch, K furthest predicted step, N tokens of the text.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.data.batch import UNLABELLED, Batch


class TrainingLanes:
    """Training batches for truncated back-propagation through time: B parallel lanes through one cyclic stream.

    Of L lanes on all processes, lane b starts at token b N / L. After N / L tokens it continues with the tokens of lane
    b + 1; the first token of the text follows its last. So no state is discarded and no token left out.

    Args:
        stream: tokens of the training split, without the leading `<eos>`.
        num_lanes: B.
        chunk_tokens: T.
        num_ahead: K.
    """

    def __init__(
        self,
        stream: Int[np.ndarray, " N"],
        num_lanes: int,
        chunk_tokens: int,
        num_ahead: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        lanes = rank * num_lanes + np.arange(num_lanes)
        if len(stream) < num_lanes * world_size * chunk_tokens:
            raise ValueError(
                f"{len(stream)} tokens make {num_lanes * world_size} lanes of {len(stream) // (num_lanes * world_size)}"
                f", shorter than chunk_tokens={chunk_tokens}: lower `batch_size` or `chunk_tokens`"
            )
        self.stream = stream
        self.chunk_tokens = chunk_tokens
        self.num_ahead = num_ahead
        self._lanes = lanes
        self._starts = lanes * len(stream) // (num_lanes * world_size)
        self.batches_per_epoch = len(stream) / (num_lanes * world_size * chunk_tokens)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the batch with the index that a `ResumableIndex` yields."""
        (index,) = indices
        return self[index]

    def __getitem__(self, index: int) -> Batch:
        """Return batch number `index`, which depends only on this index."""
        first = self._starts + index * self.chunk_tokens
        indices = first[:, None] + np.arange(self.chunk_tokens + self.num_ahead)
        tokens = torch.from_numpy(self.stream[indices % len(self.stream)].astype(np.int64))
        num_lanes = len(tokens)
        return Batch(
            x=tokens[:, : self.chunk_tokens],
            num_valid=torch.full((num_lanes,), self.chunk_tokens),
            sequence_id=torch.from_numpy(self._lanes),
            group_id=torch.full((num_lanes,), -1),
            labels=tokens[:, 1:],
        )


def held_out_lanes(
    stream: Int[np.ndarray, " N"],
    num_lanes: int,
    chunk_tokens: int,
    num_ahead: int = 1,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Batch]:
    """Yield a whole split in continuous batches; every token except the first is predicted.

    The stream begins with `<eos>` and is cut into as many parts as there are lanes on all processes; after its end a
    lane holds padding (`num_valid`) and labels -100. Every lane except the first starts without context.
    """
    num_inputs = len(stream) - 1
    total = num_lanes * world_size
    edges = np.arange(total + 1) * num_inputs // total
    lanes = rank * num_lanes + np.arange(num_lanes)
    starts, ends = edges[lanes], edges[lanes + 1]
    padded = np.concatenate([stream, np.full(chunk_tokens + num_ahead, UNLABELLED, stream.dtype)])
    for offset in range(0, int((ends - starts).max(initial=0)), chunk_tokens):
        first = np.minimum(starts + offset, num_inputs)
        tokens = torch.from_numpy(padded[first[:, None] + np.arange(chunk_tokens + num_ahead)].astype(np.int64))
        num_valid = torch.from_numpy(np.clip(ends - first, 0, chunk_tokens))
        x: Tensor = tokens[:, :chunk_tokens].clamp(min=0)
        yield Batch(x, num_valid, torch.from_numpy(lanes), torch.full((num_lanes,), -1), tokens[:, 1:])
