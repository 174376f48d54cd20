"""Observations that are drawn in random order, and whose latents are contrasted with each other.

B observations.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.config.argument_rules import Count, Natural, Seed
from cpc.data.batch import Batch
from cpc.data.modality import EVALUATION_SEED, Modality, Training
from cpc.data.streams.resumable_index import ENDLESS
from cpc.data.streams.same_group import SameGroupBatches
from cpc.data.streams.stream import BatchStream, Draw, naming
from cpc.data.streams.uniform import UniformBatches


@runtime_checkable
class Observations(Protocol):
    """The observations of a split: a data set whose index is a draw (row, place), as streams yield it.

    Attributes:
        split: their part of the corpus; None: all.
        sequence_ids: `[n]` the same where observations may overlap.
        group_ids: `[n]` the speaker, or whoever they are of; -1 where unknown.
        draws: `num_slots`, `num_starts` and `made_from` of the rows, as `BatchStream` takes them.
        num_values: numbers in an observation as the encoder takes it, in both where `Batch.target` is another view.
        num_latents: of an observation without padding.
    """

    split: str | None
    sequence_ids: np.ndarray
    group_ids: np.ndarray
    draws: dict[str, Any]
    num_values: int
    num_latents: int

    def __getitems__(self, drawn: Any) -> Batch:
        """The batch of these draws."""
        ...

    def num_valid(self, drawn: Any) -> Int[Tensor, " B"]:
        """`Batch.num_valid` of these draws, without a look at their content."""
        ...


class DrawnCorpus(ABC):
    """An opened source of observations that are drawn.

    Attributes:
        speakers: names of the groups by their id, for messages; empty where they have none.
        nouns: what a group and an item of the source are, for messages.
        uniform: the stream of the sampler `uniform`, which takes `Observations.draws`.
    """

    speakers: Sequence[str] = ()
    nouns: tuple[str, str] = ("speaker", "file")
    uniform: type[BatchStream] = UniformBatches

    @abstractmethod
    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Refuse splits that cannot serve, from what is known before anything is decoded.

        Args:
            splits: those that will be used; None: everything.
            needs_speakers: whether the speaker (the group) of every observation must be known.

        Raises:
            ValueError: naming the split.
        """

    @abstractmethod
    def windows(self, split: str | None, *, is_training: bool = False) -> Any:
        """The `Observations` of a split, None of all; changed by chance where training does that."""

    @abstractmethod
    def statistics(self, split: str | None) -> tuple[Any, Any]:
        """Mean and standard deviation of the input over a split; None: over all."""

    def batches(
        self,
        windows: Any,
        sampler: str,
        batch_size: int,
        num_batches: int,
        seed: int,
        *,
        speakers_per_batch: int = 1,
        require_distinct_files: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> BatchStream:
        """A stream of draws: `uniform`, or `same_speaker`, of few groups each.

        Raises:
            ValueError: naming the split, as the streams do.
        """
        options = {"batch_size": batch_size, "num_batches": num_batches, "seed": seed}
        with naming(windows.split):
            stream = windows.draws | options | {"rank": rank, "world_size": world_size}
            if sampler == "uniform":
                return self.uniform(**stream)
            if sampler != "same_speaker":
                raise ValueError(f"sampler={sampler!r} is not one of 'uniform', 'same_speaker'")
            return SameGroupBatches(
                **stream,
                group_ids=windows.group_ids,
                groups_per_batch=speakers_per_batch,
                require_distinct_items=require_distinct_files,
                group_names=self.speakers or None,
                nouns=self.nouns,
            )

    def held_out_batch_size(self, windows: Any, batch_size: int, world_size: int) -> int:
        """Of all ranks, as training's: rows of short splits are drawn again, from other places."""
        return world_size * batch_size


@dataclass(kw_only=True)
class Drawn(Modality):
    """A modality whose observations are drawn; see `Modality`. Its corpus is a `DrawnCorpus`.

    Args:
        train_split: what is trained on.
        eval_split: the held-out part that the bound is measured on.
        batch_size: observations per batch and device.
        eval_batches: batches of one held-out evaluation and device, the same ones every time; one pass at most.
        num_workers: loader processes; 0 loads in the training process.
        cache_dir: where packed data go; null: beside the source.
        skip_bad: go on without files that cannot be used, and say how many.
        seed: of the batches.

    Attributes:
        sampler: of the batches: `uniform`, or `same_speaker`, of `speakers_per_batch` speakers each.
        size_option: the field that makes observations larger.
        num_initialisation: observations that the data-dependent initialisation sees, at most.
    """

    sampler: ClassVar[str] = "uniform"
    speakers_per_batch: ClassVar[int] = 1
    size_option: ClassVar[str] = "batch_size"
    num_initialisation: ClassVar[int] = 64

    eval_batches: Count = 16
    num_workers: Natural = 0
    seed: Seed = 0

    def standardise(self, encoder: Any, corpus: DrawnCorpus) -> None:
        """Give the encoder mean and deviation of the training split."""
        encoder.set_statistics(*corpus.statistics(self.train_split))

    def initialisation_batch(self, corpus: DrawnCorpus) -> Tensor:
        """Observations of the training split, as training changes them."""
        windows = corpus.windows(self.train_split, is_training=True)
        num_windows = min(self.num_initialisation, len(windows.sequence_ids))
        return windows.__getitems__(corpus.batches(windows, "uniform", num_windows, 1, self.seed).batch(0)).x

    def check_split(self, corpus: DrawnCorpus, split: str, strategies: Sequence[str], own: str) -> None:
        """Refuse a split that is not there, or lacks the speakers or the sequences that sampler or strategies need."""
        needs_speakers = any(
            each.startswith("same_speaker") or self.sampler_for(each, own) != "uniform" for each in strategies
        )
        corpus.check(split, needs_speakers=needs_speakers)
        needs_others = [each for each in strategies if each.endswith("_excluding")]
        if needs_others and len(np.unique(corpus.windows(split).sequence_ids)) == 1:
            share = (
                "data.valid_share" if hasattr(self, "valid_share") else "--valid_share of `cpc data index` or `record`"
            )
            more = "add others" if split == self.train_split else f"add others, or hold more out by a larger {share}"
            raise ValueError(
                f"split {split!r} has one sequence only (a file, or images of a scene), and {needs_others[0]!r} takes "
                f"negatives from others: {more}; or leave that strategy out, by --model.extra_strategies [] of "
                "`cpc pretrain` or --negatives of `cpc evaluate`"
            )

    def sampler_for(self, strategy: str, own: str) -> str:
        """Return the sampler of a strategy's batches; those of `own`, training's, are drawn as in training."""
        if strategy == own:
            return self.sampler
        return "same_speaker" if strategy.startswith("same_speaker") else "uniform"

    def unread_speakers(self, strategies: Sequence[str], own: str) -> str:
        """Return what to say of a `speakers_per_batch` that no batch reads; "" if one does."""
        if self.speakers_per_batch == 1 or any(self.sampler_for(each, own) != "uniform" for each in strategies):
            return ""
        advice = "set `sampler` to same_speaker, or " if own in strategies else ""
        return (
            f"`speakers_per_batch`={self.speakers_per_batch} has no effect: batches for "
            f"{', '.join(dict.fromkeys(strategies))} are drawn from all speakers; {advice}leave it out"
        )

    def training(self, corpus: DrawnCorpus, model: Any, rank: int = 0, world_size: int = 1) -> Training:
        """Return an endless stream over the training split."""
        windows = corpus.windows(self.train_split, is_training=True)
        batches = corpus.batches(
            windows,
            self.sampler,
            self.batch_size,
            ENDLESS,
            self.seed,
            speakers_per_batch=self.speakers_per_batch,
            require_distinct_files="same_speaker_excluding" in model.loss_part.training_strategies,
            rank=rank,
            world_size=world_size,
        )
        return Training(windows, batches)

    def held_out(
        self,
        corpus: DrawnCorpus,
        model: Any,
        *,
        num_batches: int | None = None,
        seed: int = EVALUATION_SEED,
        rank: int = 0,
        world_size: int = 1,
    ) -> "HeldOut":
        """Draws from the held-out split, for each strategy those that it means."""
        own = model.loss_part.training_strategies[0]
        num_batches = self.eval_batches if num_batches is None else num_batches
        return HeldOut(corpus, self, own, num_batches, seed, rank, world_size)


class HeldOut:
    """The held-out batches of a corpus, the same at every evaluation: for each strategy those that it means.

    They are one pass over the split at most: a window that comes again is no further evidence, and would only make the
    standard error look smaller. Where that leaves fewer batches than asked for, a line is printed.

    Args:
        corpus: whose observations are drawn.
        options: split, batch size, sampler.
        negatives: the strategy of training, measured on batches drawn as training's are; another same-speaker strategy
            is measured on same-speaker batches, any other on uniform ones.
        num_batches: of one evaluation and rank, at most.
        seed: of the batches, and of the negatives drawn.
        rank: this process.
        world_size: processes that share the evaluation.

    Raises:
        ValueError: if `num_batches` is below 1.
    """

    is_continuous = False
    class_entropy_nats = None

    def __init__(
        self,
        corpus: DrawnCorpus,
        options: Drawn,
        negatives: str,
        num_batches: int,
        seed: int = EVALUATION_SEED,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if num_batches < 1:
            raise ValueError(f"num_batches={num_batches} must be at least 1")
        self.negatives = negatives
        self.split = options.eval_split
        self.num_batches = num_batches
        self.seed = seed
        self.facts: dict[str, Any] = {}
        self.windows: Any = corpus.windows(self.split)
        self._corpus, self._options = corpus, options
        self._rank, self._world_size = rank, world_size
        self._drawn: dict[tuple[str, bool], list[list[Draw]]] = {}

    def sampler_for(self, strategy: str) -> tuple[str, bool]:
        """The sampler of a strategy's batches, and whether each speaker's part of one must hold two files."""
        return self._options.sampler_for(strategy, self.negatives), strategy == "same_speaker_excluding"

    def batches(self, strategy: str) -> Iterator[Batch]:
        """The batches of this rank."""
        for drawn in self.draws(strategy):
            yield self.windows.__getitems__(drawn)

    def draws(self, strategy: str) -> list[list[Draw]]:
        """The draws of each batch, for this rank; as `draws_of_all_ranks`."""
        of_all = self.draws_of_all_ranks(strategy)
        first, end = (len(of_all[0]) * rank // self._world_size for rank in (self._rank, self._rank + 1))
        return [drawn[first:end] for drawn in of_all]

    def draws_of_all_ranks(self, strategy: str) -> list[list[Draw]]:
        """The draws of each batch, the ranks' one after the other.

        Raises:
            ValueError: if the corpus has no such batches: unknown speakers, or too few.
        """
        sampler_for = self.sampler_for(strategy)
        if sampler_for not in self._drawn:
            sampler, require_distinct_files = sampler_for
            size = self._corpus.held_out_batch_size(self.windows, self._options.batch_size, self._world_size)
            stream = self._corpus.batches(
                self.windows,
                sampler,
                size,
                self.num_batches,
                self.seed,
                speakers_per_batch=self._options.speakers_per_batch,
                require_distinct_files=require_distinct_files,
            )
            of_one_pass = max(1, stream.num_slots // size)
            if of_one_pass < self.num_batches and self._rank == 0:
                print(
                    f"held-out log N - L, {strategy}: {of_one_pass} batches of {size} are one "
                    f"pass over split {self.split!r}, {self.num_batches} were asked for",
                    flush=True,
                )
            self._drawn[sampler_for] = [stream.batch(index) for index in range(min(of_one_pass, self.num_batches))]
        return self._drawn[sampler_for]


def identities(
    encoder: Any, windows: Any, drawn: list[Draw]
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Number of latents, sequence and group of every observation drawn, without a look at its content."""
    rows = [row for row, _ in drawn]
    ids, groups = (torch.from_numpy(np.asarray(each)[rows]) for each in (windows.sequence_ids, windows.group_ids))
    num_latents = encoder.num_latents(windows.num_valid(drawn))
    return torch.full_like(ids, windows.num_latents) if num_latents is None else num_latents, ids, groups
