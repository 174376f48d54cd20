"""Map-style data: corpora whose observations are read by index, in random order. B observations."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.config.argument_rules import Count, Natural, Seed, check_fields, checked
from cpc.data.batch import Batch
from cpc.data.modality import EVALUATION_SEED, Modality, Training
from cpc.data.store.contents import is_quiet, rows_of_split, say
from cpc.data.store.fingerprints import Content
from cpc.data.streams.same_group import SameGroupBatches
from cpc.data.streams.stream import BatchStream, Draw, UniformBatches, is_of_files, naming

Sampler = Literal["uniform", "same_speaker"]


class MapStyleCorpus(ABC):
    """An opened source, whose observations are read by index: a table of units with a split, a group and labels."""

    speakers: Sequence[str] = ()  # names of the groups by their id, for messages; empty if groups have no names
    nouns: tuple[str, str] = ("speaker", "file")  # two nouns for messages: for a group, and for an item of the source
    splits: Sequence[str] = ()  # split of each item
    uniform: type[BatchStream] = UniformBatches  # class of the streams for sampler `uniform`

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Raise a ValueError that names a split which cannot be used, before anything is decoded; None: the corpus.

        With `needs_speakers` the speaker of every observation must be known.
        """
        item = self.nouns[1]
        if needs_speakers and not self.speakers:
            legal = "mixed, mixed_excluding or sequence_only"
            raise ValueError(f"{item}s have no speakers: set `loss.negatives` to {legal}")
        for split in splits:
            rows_of_split(self.splits, split, item)

    def prepare(self, *, is_training: bool = False) -> None:  # noqa: B027 - some corpora decode as they are read
        """Decode the observations, before any other method but `check`; see `Modality.prepare`."""

    @abstractmethod
    def windows(self, split: str | None, *, is_training: bool = False) -> Any:
        """Return the observations of a split (None: of all splits) as a data set, augmented if `is_training`.

        An index is a pair (row, start), which streams yield; `__getitems__` returns the `Batch` of some indices, and
        `num_valid` its field without reading. Further attributes are `split`; `sequence_ids` and `group_ids` `[n]`
        (-1: unknown) of the rows, where rows of one sequence may overlap; `draws`, the arguments `num_slots`,
        `num_starts` and `made_from` of `BatchStream`; `num_values`, the numbers in an observation; and `num_latents`,
        the latents of an observation without padding.
        """

    def rows(self, split: str | None) -> np.ndarray:
        """Return the rows of a split (None: of all), as `content` takes them; without rows it is a ValueError."""
        return np.unique(self.windows(split).sequence_ids)

    def num_sequences(self, split: str) -> int:
        """Return the number of sequences in the windows of a split."""
        return len(np.unique(self.windows(split).sequence_ids))

    def content(self, rows: np.ndarray) -> Content | None:
        """Return numbers that depend on the values of each row and on no path; None if they are not at hand."""
        return None

    def statistics(self, split: str | None) -> tuple[Any, ...]:
        """Return mean and standard deviation of the input over a split; None: over the whole corpus."""
        raise NotImplementedError

    def initialisation_windows(self, split: str | None, num_windows: int, seed: int) -> Tensor:
        """Return at most `num_windows` observations of a split, augmented as in training, to initialise a model."""
        windows = self.windows(split, is_training=True)
        num_windows = min(num_windows, len(windows.sequence_ids))
        return windows.__getitems__(self.batches(windows, "uniform", num_windows, seed).batch(0)).x

    @checked
    def batches(
        self,
        windows: Any,
        sampler: Sampler,
        batch_size: int,
        seed: int,
        *,
        speakers_per_batch: int = 1,
        require_distinct_files: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> BatchStream:
        """Return a stream of batches of indices. A batch of `same_speaker` has few groups, a `uniform` batch any."""
        stream: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "rank": rank, "world_size": world_size}
        with naming(windows.split):
            if sampler == "uniform":
                return self.uniform(**windows.draws, **stream)
            return SameGroupBatches(
                **windows.draws,
                **stream,
                group_ids=windows.group_ids,
                groups_per_batch=speakers_per_batch,
                require_distinct_items=require_distinct_files,
                group_names=self.speakers or None,
                nouns=self.nouns,
            )

    def held_out_batch_size(self, windows: Any, batch_size: int, world_size: int) -> int:
        """Return the size of a held-out batch of all ranks, by default the training size; short splits repeat rows."""
        return world_size * batch_size


@dataclass(kw_only=True)
class MapStyleModality(Modality):
    """A modality whose observations come in random order; see `Modality`. Its corpus is a `MapStyleCorpus`.

    Args:
        eval_batches: number of batches per device in a held-out evaluation; at most one pass. Every evaluation has the
            same batches.
        num_workers: loader processes; 0 loads in the training process.
        seed: seed of the batches.

    Attributes:
        sampler: sampler of the batches: `uniform`; or `same_speaker`, whose batches have `speakers_per_batch` speakers.
        size_option: the field that sets the size of an observation.
        num_initialisation: largest number of observations for the data-dependent initialisation.
    """

    are_rows_known: ClassVar[bool] = True
    sampler: ClassVar[Sampler] = "uniform"
    speakers_per_batch: ClassVar[int] = 1
    size_option: ClassVar[str] = "batch_size"
    num_initialisation: ClassVar[int] = 64

    eval_batches: Count = 16
    num_workers: Natural = 0
    seed: Seed = 0

    def prepare(self, corpus: MapStyleCorpus, *, is_training: bool = False) -> None:  # noqa: D102
        corpus.prepare(is_training=is_training)

    def standardise(self, encoder: Any, corpus: MapStyleCorpus) -> None:
        """Set the encoder's mean and standard deviation to those of the training split."""
        encoder.set_statistics(*corpus.statistics(self.train_split))

    def initialisation_batch(self, corpus: MapStyleCorpus) -> Tensor:  # noqa: D102
        return corpus.initialisation_windows(self.train_split, self.num_initialisation, self.seed)

    def usable(self, corpus: Any, split: str, model: Any) -> Any:
        """Return the corpus without windows of a split in which nothing is predicted; by default all are kept."""
        return corpus

    def check_reach(self, model: Any, num_latents: int, what: str) -> None:
        """Raise a ValueError if observations have too few latents for the model's furthest prediction."""
        if num_latents <= (furthest := model.steps[-1].k):
            advice = "raise it, or lower `predictor.num_steps` (or the last of `predictor.steps`) or `loss.skip_steps`"
            raise ValueError(f"{what}, but the model predicts {furthest} steps ahead: {advice}")

    def warn_of_overlap(self, model: Any, num_overlapping: int, noun: str, values: str) -> None:
        """Warn if the first predicted latents read values that the latest latent of a context has read."""
        if model.steps[0].k <= num_overlapping:
            shared = f"the next {num_overlapping} {noun} share {values} with the latest"
            seen = f"contexts predict {values} that they have seen, and the bound counts these"
            given = f"`loss.skip_steps`={model.loss_part.skip_steps}, but {shared}: {seen}"
            warnings.warn(f"{given}; set skip_steps to {num_overlapping} to predict only new {values}", stacklevel=3)

    def check_split(self, corpus: MapStyleCorpus, split: str, strategies: Sequence[str], own: str) -> None:
        """Also refuse a split that lacks the speakers or sequences which sampler or strategies need."""
        needs_speakers = any(
            name.startswith("same_speaker") or self.sampler_for(name, own) != "uniform" for name in strategies
        )
        corpus.check(split, needs_speakers=needs_speakers)
        others = [name for name in strategies if name.endswith("_excluding")]
        if others and corpus.num_sequences(split) == 1:
            found = f"split {split!r} has only one sequence (a file, or images of a scene)"
            raise ValueError(f"{found}, but {others[0]!r} (`loss.negatives`) takes negatives from other sequences")

    def measurable(self, corpus: MapStyleCorpus, split: str, strategies: Sequence[str]) -> tuple[str, ...]:
        """Return the strategies without the extra ones that the split has no negatives for, and print these."""
        corpus.check(split)
        extra = [name for name in strategies[1:] if name.endswith("_excluding")]
        if not extra or corpus.num_sequences(split) > 1:
            return tuple(strategies)
        why = f"whose negatives come from other sequences, since split {split!r} has only one"
        say(f"held-out log N - L: without {', '.join(extra)}, {why}")
        return tuple(name for name in strategies if name not in extra)

    def content(self, corpus: MapStyleCorpus, split: str) -> Content | None:  # noqa: D102
        return corpus.content(corpus.rows(split))

    def sampler_for(self, strategy: str, own: str) -> Sampler:
        """Return the sampler of a strategy's batches. The strategy of training (`own`) has the sampler of training."""
        if strategy == own:
            return self.sampler
        return "same_speaker" if strategy.startswith("same_speaker") else "uniform"

    def held_out_files(self, held_out: "HeldOut") -> dict[str, Any]:  # type: ignore[override]
        """Return the digests of the names and the content of the files."""
        return {name: each for name, each in held_out.windows.draws["made_from"].items() if is_of_files(name)}

    def unread_speakers(self, strategies: Sequence[str], own: str) -> str:  # noqa: D102
        if self.speakers_per_batch == 1 or any(self.sampler_for(name, own) != "uniform" for name in strategies):
            return ""
        names = ", ".join(dict.fromkeys(strategies))
        unread = f"`speakers_per_batch`={self.speakers_per_batch} has no effect without `sampler`=same_speaker"
        return f"{unread}: batches for {names} are drawn from all speakers"

    def training(self, corpus: MapStyleCorpus, model: Any, rank: int = 0, world_size: int = 1) -> Training:
        """Return an endless stream over the training split."""
        corpus = self.usable(corpus, self.train_split, model)
        windows = corpus.windows(self.train_split, is_training=True)
        batches = corpus.batches(
            windows,
            self.sampler,
            self.batch_size,
            self.seed,
            speakers_per_batch=self.speakers_per_batch,
            require_distinct_files="same_speaker_excluding" in model.loss_part.training_strategies,
            rank=rank,
            world_size=world_size,
        )
        return Training(windows, batches)

    def held_out(
        self,
        corpus: MapStyleCorpus,
        model: Any,
        *,
        num_batches: int | None = None,
        seed: int = EVALUATION_SEED,
        rank: int = 0,
        world_size: int = 1,
    ) -> "HeldOut":
        """Return the held-out batches, with one set of batches per sampler."""
        own = model.loss_part.training_strategies[0]
        num_batches = self.eval_batches if num_batches is None else num_batches
        corpus = self.usable(corpus, self.eval_split, model)
        return HeldOut(corpus, self, own, num_batches, seed, rank, world_size)


@dataclass
class HeldOut:
    """The held-out batches of a corpus, the same in every evaluation, with one set of batches per sampler.

    They are at most one pass over the split, since a repeated window would only lower the standard error. The strategy
    of training, `negatives`, is evaluated on batches of the sampler of training.
    """

    corpus: MapStyleCorpus
    options: MapStyleModality
    negatives: str
    num_batches: Count
    seed: int = EVALUATION_SEED
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        self.split, self.is_continuous = self.options.eval_split, False
        self.class_entropy_nats: float | None = None
        self.facts: dict[str, Any] = {}
        self.windows: Any = self.corpus.windows(self.split)
        self._indices: dict[tuple[str, bool], list[list[Draw]]] = {}

    def sampler_for(self, strategy: str) -> tuple[Sampler, bool]:
        """Return the sampler of a strategy, and whether a batch must hold two or more files per speaker."""
        return self.options.sampler_for(strategy, self.negatives), strategy == "same_speaker_excluding"

    def batches(self, strategy: str) -> Iterator[Batch]:
        """Yield the batches of this rank."""
        for indices in self.draws(strategy):
            yield self.windows.__getitems__(indices)

    def draws(self, strategy: str) -> list[list[Draw]]:
        """Return, for each batch, the indices of this rank; see `draws_of_all_ranks`."""
        batches = self.draws_of_all_ranks(strategy)
        first, end = (len(batches[0]) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return [indices[first:end] for indices in batches]

    def draws_of_all_ranks(self, strategy: str) -> list[list[Draw]]:
        """Return, for each batch, the indices of all ranks in the order of the ranks."""
        key = sampler, require_distinct_files = self.sampler_for(strategy)
        if key not in self._indices:
            size = self.corpus.held_out_batch_size(self.windows, self.options.batch_size, self.world_size)
            stream = self.corpus.batches(
                self.windows,
                sampler,
                size,
                self.seed,
                speakers_per_batch=self.options.speakers_per_batch,
                require_distinct_files=require_distinct_files,
            )
            pass_batches = max(1, stream.num_slots // size)
            if pass_batches < self.num_batches and self.rank == 0 and not is_quiet():
                found = f"split {self.split!r} has only {pass_batches} batches of {size}, instead of {self.num_batches}"
                print(f"held-out log N - L, {strategy}: {found}", flush=True)
            self._indices[key] = [stream.batch(index) for index in range(min(pass_batches, self.num_batches))]
        return self._indices[key]


def identities(
    encoder: Any, windows: Any, indices: list[Draw]
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Return the number of latents, the sequence and the group of each index, without reading the observations."""
    rows = [row for row, _ in indices]
    ids, groups = (torch.from_numpy(np.asarray(x)[rows]) for x in (windows.sequence_ids, windows.group_ids))
    num_latents = encoder.num_latents(windows.num_valid(indices))
    return torch.full_like(ids, windows.num_latents) if num_latents is None else num_latents, ids, groups
