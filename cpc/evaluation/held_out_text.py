"""A held-out text, read from end to end: its perplexity, and the information that it certifies."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from cpc.bounds import BoundTally
from cpc.data.batch import Batch
from cpc.data.streams.lanes import held_out_lanes
from cpc.data.text.corpus import TokenCorpus, entropy_nats
from cpc.evaluation.protocol import TextProtocol
from cpc.losses import Measure
from cpc.losses.contrast import is_row
from cpc.losses.objectives import FULL_SOFTMAX
from cpc.model import CPC


class HeldOutText:
    """The batches of a whole split, the same at every evaluation; each goes on where the one before it ended.

    Args:
        corpus: whose text is read.
        protocol: how.
        num_ahead: the furthest step predicted.
        rank: this process.
        world_size: processes that share the split.

    Attributes:
        entropy_nats: of the split's tokens, from their frequencies in it: on average low, by about (V - 1) / 2n for V
            tokens that occur, so that what H - L certifies is not too much.
        num_batches: on all processes.

    Raises:
        ValueError: if there is no such split, or it has fewer tokens than lanes.
    """

    def __init__(
        self, corpus: TokenCorpus, protocol: TextProtocol, num_ahead: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.protocol = protocol
        self.stream = corpus.stream(protocol.split)
        self.entropy_nats = entropy_nats(corpus.counts(protocol.split))
        num_lanes, num_tokens = protocol.batch_size * world_size, len(self.stream) - 1
        if num_tokens < num_lanes:
            raise ValueError(
                f"split {protocol.split!r} has {num_tokens} tokens for {num_lanes} lanes: lower `batch_size`, or hold "
                "more out"
            )
        self.num_batches = -(-num_tokens // (num_lanes * protocol.chunk_tokens))
        self._of_lanes = {"num_ahead": num_ahead, "rank": rank, "world_size": world_size}

    def batches(self) -> Iterator[Batch]:
        """From the first to the last."""
        return held_out_lanes(self.stream, self.protocol.batch_size, self.protocol.chunk_tokens, **self._of_lanes)


@torch.no_grad()
def class_tally(
    model: CPC, held_out: HeldOutText, *, forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> BoundTally:
    """The full softmax's loss on this rank's batches, whatever the model trains with, contexts carried on.

    The model is put in eval mode for the duration.

    Args:
        model: of text.
        held_out: the batches.
        forward_context: entered around the model's computation: autocast.
    """
    tally = BoundTally(model.steps)
    weights = next(model.parameters())
    was_training = model.training
    model.eval()
    state = None
    for on_cpu in held_out.batches():
        batch = on_cpu.beside(weights)
        with forward_context():
            output = model(batch.x, state)
            state = output.state
            # the end of a text may be followed by nothing that is skip_steps and one ahead; nearer steps know more
            nearest, num_places = model.steps[0].k - 1, batch.x.shape[1]
            if bool(is_row(batch.labels[:, nearest : nearest + num_places], batch.num_valid).any()):
                tally.update(model.contrast(output, batch, measure=Measure(FULL_SOFTMAX, None)))
    model.train(was_training)
    return tally
