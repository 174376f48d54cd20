"""The held-out batches, the same at every evaluation while a model trains and ever after, and their bound."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cpc.bounds import BoundTally
from cpc.data.audio.corpus import Corpus, Sampler
from cpc.data.batch import Batch
from cpc.data.images.corpus import ImageCorpus
from cpc.data.streams.stream import Draw
from cpc.evaluation.protocol import WindowProtocol
from cpc.losses import Measure
from cpc.model import CPC
from cpc.predictors import Output

EVALUATION_SEED = 0
OnBatch = Callable[[Batch, Tensor, Tensor], None]
OnMeasure = Callable[[Measure, Output, Batch], None]


class HeldOut:
    """The held-out batches of a corpus, the same at every evaluation: for each strategy those that it means.

    They are one pass over the split at most: a window that comes again is no further evidence, and would only make the
    standard error look smaller. Where that leaves fewer batches than asked for, a line is printed.

    Args:
        corpus: whose windows are drawn.
        protocol: how.
        negatives: the strategy of training, measured on batches drawn as training's are; another same-speaker strategy
            is measured on same-speaker batches, any other on uniform ones.
        num_batches: of one evaluation and rank, at most.
        seed: of the batches, and of the negatives drawn.
        rank: this process.
        world_size: processes that share the evaluation.
    """

    def __init__(
        self,
        corpus: Corpus | ImageCorpus,
        protocol: WindowProtocol,
        negatives: str,
        num_batches: int,
        seed: int = EVALUATION_SEED,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if num_batches < 1:
            raise ValueError(f"num_batches={num_batches} must be at least 1")
        self.protocol = protocol
        self.negatives = negatives
        self.num_batches = num_batches
        self.seed = seed
        self.windows: Any = corpus.windows(protocol.split)
        self._corpus = corpus
        self._rank, self._world_size = rank, world_size
        self._drawn: dict[tuple[Sampler, bool], list[list[Draw]]] = {}

    def drawn_as(self, strategy: str) -> tuple[Sampler, bool]:
        """The sampler of a strategy's batches, and whether each speaker's part of one must hold two files."""
        sampler: Sampler = "same_speaker" if strategy.startswith("same_speaker") else "uniform"
        if strategy == self.negatives:
            sampler = self.protocol.sampler
        return sampler, strategy == "same_speaker_excluding"

    def batches(self, strategy: str) -> list[list[Draw]]:
        """The windows of each batch, for this rank.

        Raises:
            ValueError: if the corpus has no such batches: unknown speakers, or too few.
        """
        drawn_as = self.drawn_as(strategy)
        if drawn_as not in self._drawn:
            sampler, require_distinct_files = drawn_as
            size = self._corpus.held_out_batch_size(self.windows, self.protocol.batch_size, self._world_size)
            stream = self._corpus.batches(
                self.windows,
                sampler,
                size,
                self.num_batches,
                self.seed,
                speakers_per_batch=self.protocol.speakers_per_batch,
                require_distinct_files=require_distinct_files,
                rank=self._rank,
                world_size=self._world_size,
            )
            of_one_pass = max(1, stream.num_slots // (size * self._world_size))
            if of_one_pass < self.num_batches and self._rank == 0:
                print(
                    f"held-out log N - L, {strategy}: {of_one_pass} batches of {size} are one "
                    f"pass over split {self.protocol.split!r}, {self.num_batches} were asked for",
                    flush=True,
                )
            self._drawn[drawn_as] = [stream.batch(index) for index in range(min(of_one_pass, self.num_batches))]
        return self._drawn[drawn_as]


@torch.no_grad()
def measured_tallies(
    model: CPC,
    held_out: HeldOut,
    measures: Iterable[Measure],
    *,
    forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    on_batch: OnBatch | None = None,
    on_measure: OnMeasure | None = None,
) -> dict[Measure, BoundTally]:
    """Contrast this rank's held-out batches with each measure; those that share batches share their encoding.

    The model is put in eval mode for the duration. Negatives come from generators of their own, the same at each call.

    Args:
        model: what is measured.
        held_out: the batches.
        measures: strategies, each with the number of negatives drawn.
        forward_context: entered around the model's computation: autocast.
        on_batch: called with each batch of the training strategy, its latents and its contexts.
        on_measure: called with each measure, and what the model makes of each of its batches.

    Raises:
        ValueError: if a strategy leaves a row without negatives.
    """
    tallies = {measure: BoundTally(model.steps) for measure in measures}
    draws = {measure: torch.Generator().manual_seed(held_out.seed) for measure in tallies}
    weights = next(model.parameters())
    was_training = model.training
    model.eval()
    for drawn_as in dict.fromkeys(held_out.drawn_as(measure.strategy) for measure in tallies):
        sharing = [measure for measure in tallies if held_out.drawn_as(measure.strategy) == drawn_as]
        for windows in held_out.batches(sharing[0].strategy):
            batch = held_out.windows.__getitems__(windows).beside(weights)
            with forward_context():
                output = model(batch.x)
                for measure in sharing:
                    tallies[measure].update(model.contrast(output, batch, draws[measure], measure))
                    if on_measure is not None:
                        on_measure(measure, output, batch)
            if on_batch is not None and any(measure.strategy == held_out.negatives for measure in sharing):
                on_batch(batch, output.latents, output.contexts)
    model.train(was_training)
    return tallies
