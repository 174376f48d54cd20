"""Streams of tokens in lanes: each batch continues where the one before it ended, so that a state can be carried over.

B lanes of this process, T tokens of a batch, K furthest step predicted, N tokens of the stream.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.data.batch import Batch

UNKNOWN_LABEL = -100  # of what follows beyond the end


class TrainingLanes:
    """Truncated back-propagation through time: B lanes run side by side through one stream that has no end.

    Lane b of all L starts at token b N / L; the last token is followed by the first. So when lane b has read its part
    it goes on with that of lane b + 1: no state is ever thrown away, no token left out, and N / (L T) batches are an
    epoch. Lanes are numbered over all processes: the batches of `world_size` processes with B lanes are those of one
    with `world_size` B.

    Args:
        stream: of the training split, its leading `<eos>` left out.
        num_lanes: B.
        chunk_tokens: T.
        num_ahead: K.
        rank: this process.
        world_size: processes that share the stream.

    Raises:
        ValueError: if a lane would be shorter than a batch.
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
        """The batch whose number an `ResumableIndex` has drawn."""
        (index,) = indices
        return self[index]

    def __getitem__(self, index: int) -> Batch:
        """Batch number `index`, a function of that alone."""
        first = self._starts + index * self.chunk_tokens
        places = first[:, None] + np.arange(self.chunk_tokens + self.num_ahead)
        tokens = torch.from_numpy(self.stream[places % len(self.stream)].astype(np.int64))
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
    """A whole split in batches, each continuing where the one before it ended; every token but the first is predicted.

    The stream is cut into as many parts as there are lanes on all processes; a lane that has ended is padding
    (`num_valid`), and labels that lie beyond the end are -100. The fewer lanes, the fewer tokens are read without what
    precedes them; one lane has none.

    Args:
        stream: with its leading `<eos>`, which makes the first token of text one that follows.
        num_lanes: of this process.
        chunk_tokens: T.
        num_ahead: K.
        rank: this process.
        world_size: processes that share the split.
    """
    num_inputs = len(stream) - 1
    total = num_lanes * world_size
    edges = np.arange(total + 1) * num_inputs // total
    lanes = rank * num_lanes + np.arange(num_lanes)
    starts, ends = edges[lanes], edges[lanes + 1]
    padded = np.concatenate([stream, np.full(chunk_tokens + num_ahead, UNKNOWN_LABEL, stream.dtype)])
    for offset in range(0, int((ends - starts).max(initial=0)), chunk_tokens):
        first = np.minimum(starts + offset, num_inputs)
        tokens = torch.from_numpy(padded[first[:, None] + np.arange(chunk_tokens + num_ahead)].astype(np.int64))
        num_valid = torch.from_numpy(np.clip(ends - first, 0, chunk_tokens))
        x: Tensor = tokens[:, :chunk_tokens].clamp(min=0)
        yield Batch(x, num_valid, torch.from_numpy(lanes), torch.full((num_lanes,), -1), tokens[:, 1:])
