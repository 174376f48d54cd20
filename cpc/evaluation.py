"""The held-out bound of a model: same batches, same draws, every time, while it trains and ever after."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpc.bounds import Bound, BoundTally
from cpc.candidates import STRATEGIES
from cpc.checkpoint import load_pretrained, read_config
from cpc.data.atomic import write_json
from cpc.data.batch import Batch
from cpc.data.batches import Window
from cpc.data.corpus import Corpus, Sampler
from cpc.data.image_corpus import ImageCorpus
from cpc.data.image_sources import DEFAULT_VALID_SHARE
from cpc.model import CPC
from cpc.predictors import Step
from cpc.readings import HeldOutReadings, Measure, check_readable, readings_table

EVALUATION_SEED = 0
INFO_NCE = "info_nce"
OnBatch = Callable[[Batch, Tensor, Tensor], None]
OnMeasure = Callable[[Measure, Batch, Tensor, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How held-out batches are drawn: a run notes it beside its model, and `cpc evaluate` takes it up.

    Attributes:
        split: of the corpus.
        batch_size: windows or images per batch (and device).
        sampler: how training draws its batches.
        speakers_per_batch: of same-speaker batches.
    """

    split: str
    batch_size: int
    sampler: Sampler
    speakers_per_batch: int


@dataclass(frozen=True, kw_only=True)
class AudioProtocol(Protocol):
    """Of audio.

    Attributes:
        window_samples: length of a window.
    """

    window_samples: int

    def corpus(self, source: str | Path, encoder: Any, **options: Any) -> Corpus:
        """A manifest's audio, cut as this says."""
        return Corpus(source, encoder, self.window_samples, **options)


@dataclass(frozen=True, kw_only=True)
class ImageProtocol(Protocol):
    """Of images, which have no speakers.

    Attributes:
        image_size: side of the square that is cut out of the middle of each image.
        load_size: side that images are brought to before; None: `image_size`.
        augmentation: of training, which frames patches when they are not changed, too.
        flip: whether training mirrors images, as networks that learn labels then do; never when a bound is measured.
        valid_share: of the training images, where the source has no split `valid`: what was held out stays held out.
        valid_from: the split that they were drawn from, the one trained on; None, in runs that do not say it: `train`,
            or `unlabelled` where there is no `train`.
        packed: whether images are kept decoded; a corpus too large for that in training is too large ever after.
    """

    sampler: Sampler = field(default="uniform", init=False)
    speakers_per_batch: int = field(default=1, init=False)
    image_size: int
    load_size: int | None = None
    augmentation: str = "none"
    flip: bool = False
    valid_share: float = DEFAULT_VALID_SHARE
    valid_from: str | None = None
    packed: bool = True

    def corpus(
        self, source: str | Path, encoder: Any, *, cache_dir: str | Path | None = None, skip_bad: bool = False
    ) -> ImageCorpus:
        """A source's images, cut as this says."""
        return ImageCorpus(
            source,
            encoder,
            self.image_size,
            load_size=self.load_size,
            augmentation=self.augmentation,
            flip=self.flip,
            valid_share=self.valid_share,
            valid_from=self.valid_from,
            packed=self.packed,
            cache_dir=cache_dir,
            skip_bad=skip_bad,
        )


PROTOCOLS: dict[str, type[AudioProtocol] | type[ImageProtocol]] = {"audio": AudioProtocol, "image": ImageProtocol}


def recorded_image_protocol(config: Mapping[str, Any]) -> ImageProtocol:
    """How the run of a model cut its images, as the model's config.json says.

    Raises:
        ValueError: if it does not.
    """
    recorded = config["provenance"].get("evaluation", {})
    if "image_size" not in recorded:
        raise ValueError(
            "the model's config.json does not say the size of its images: it was not exported by cpc pretrain; add "
            "split, batch_size and image_size to its provenance.evaluation"
        )
    legal = _options_of(ImageProtocol)
    return ImageProtocol(**{name: value for name, value in recorded.items() if name in legal})


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
        protocol: Protocol,
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
        self._drawn: dict[tuple[Sampler, bool], list[list[Window]]] = {}

    def drawn_as(self, strategy: str) -> tuple[Sampler, bool]:
        """The sampler of a strategy's batches, and whether each speaker's part of one must hold two files."""
        sampler: Sampler = "same_speaker" if strategy.startswith("same_speaker") else "uniform"
        if strategy == self.negatives:
            sampler = self.protocol.sampler
        return sampler, strategy == "same_speaker_excluding"

    def batches(self, strategy: str) -> list[list[Window]]:
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
                    f"held-out bound, {strategy}: {of_one_pass} batches of {size} are one "
                    f"pass over split {self.protocol.split!r}, {self.num_batches} were asked for",
                    flush=True,
                )
            self._drawn[drawn_as] = [stream.batch(index) for index in range(min(of_one_pass, self.num_batches))]
        return self._drawn[drawn_as]


def held_out_tallies(
    model: CPC,
    held_out: HeldOut,
    strategies: Iterable[str],
    *,
    forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    on_batch: OnBatch | None = None,
) -> dict[str, BoundTally]:
    """Contrast this rank's held-out batches with each strategy, with as many negatives as the model trains with.

    Args:
        model: what is measured.
        held_out: the batches.
        strategies: names in `cpc.candidates.STRATEGIES`.
        forward_context: entered around the model's computation: autocast.
        on_batch: called with each batch of the training strategy, its latents and its contexts.

    Raises:
        ValueError: if a strategy leaves a row without negatives.
    """
    measures = [Measure(strategy, model.num_negatives) for strategy in strategies]
    tallies = measured_tallies(model, held_out, measures, forward_context=forward_context, on_batch=on_batch)
    return {measure.strategy: tally for measure, tally in tallies.items()}


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
        on_measure: called with each measure, each of its batches, latents and contexts.

    Raises:
        ValueError: if a strategy leaves a row without negatives.
    """
    tallies = {measure: BoundTally(model.steps) for measure in measures}
    draws = {measure: torch.Generator().manual_seed(held_out.seed) for measure in tallies}
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    for drawn_as in dict.fromkeys(held_out.drawn_as(measure.strategy) for measure in tallies):
        sharing = [measure for measure in tallies if held_out.drawn_as(measure.strategy) == drawn_as]
        for windows in held_out.batches(sharing[0].strategy):
            batch = Batch(*(field.to(device) for field in held_out.windows.__getitems__(windows)))
            with forward_context():
                latents, contexts, _ = model(batch.x)
                for measure in sharing:
                    contrast = model.contrast(
                        latents,
                        contexts,
                        num_valid=model.encoder.num_latents(batch.num_valid),
                        sequence_id=batch.sequence_id,
                        group_id=batch.group_id,
                        strategy=measure.strategy,
                        num_negatives=measure.num_negatives,
                        generator=draws[measure],
                    )
                    tallies[measure].update(contrast)
                    if on_measure is not None:
                        on_measure(measure, batch, latents, contexts)
            if on_batch is not None and any(measure.strategy == held_out.negatives for measure in sharing):
                on_batch(batch, latents, contexts)
    model.train(was_training)
    return tallies


def evaluate(
    model_folder: str | Path,
    source: str | Path,
    *,
    strategies: Iterable[str] | None = None,
    nums_negatives: Iterable[int | None] | None = None,
    estimators: Iterable[str] = (INFO_NCE,),
    num_batches: int = 64,
    seed: int = EVALUATION_SEED,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    out: str | Path | None = None,
    **protocol_options: Any,
) -> dict[str, Any]:
    """`cpc evaluate`: measure the held-out bound of a saved model, print it, write it as JSON.

    Args:
        model_folder: as written by `save_pretrained`.
        source: a manifest CSV or its folder; for images what `cpc.data.read_image_source` takes.
        strategies: the model's own and `mixed_excluding` if None.
        nums_negatives: drawn per row, one evaluation each, None among them for all candidates; as the model trained if
            the argument is None.
        estimators: further ones than InfoNCE, whose bound is always measured, names in `cpc.readings.READABLE`.
        num_batches: batches to average over, one pass over the split at most.
        seed: of batches and draws.
        cache_dir: where the packed corpus goes; beside the source if None.
        skip_bad: go on without files that cannot be used, and say how many.
        out: JSON file; `bound.json` in the model's folder if None.
        protocol_options: how batches are drawn, attributes of `AudioProtocol` or `ImageProtocol`; as the model's run
            drew them where not given, or None.

    Returns:
        What is written: the protocol, `bounds` with the record of `Bound` per N and strategy, and `estimates` with that
        of every other estimator.

    Raises:
        ValueError: on an unknown strategy, estimator, split or speaker column, named; if the model's config.json does
            not say how batches were drawn, naming what to give; on options of another modality.
    """
    config = read_config(model_folder)
    model = load_pretrained(model_folder)
    asked = tuple(dict.fromkeys(strategies or (model.negatives, "mixed_excluding")))
    unknown = [s for s in asked if s not in STRATEGIES]
    if unknown:
        raise ValueError(f"negatives={unknown[0]!r} is not one of {', '.join(STRATEGIES)}")
    nums = tuple(dict.fromkeys([model.num_negatives] if nums_negatives is None else nums_negatives))
    too_few = [num for num in nums if num is not None and num < 1]
    if too_few:
        raise ValueError(f"num_negatives={too_few[0]} must be at least 1, or all")
    others = tuple(dict.fromkeys(name for name in estimators if name != INFO_NCE))
    check_readable(others, asked)
    given = {name: value for name, value in protocol_options.items() if value is not None}
    protocol = _protocol(model_folder, model.encoder.modality, config["provenance"].get("evaluation", {}), given)
    corpus = protocol.corpus(source, model.encoder, cache_dir=cache_dir, skip_bad=skip_bad)
    held_out = HeldOut(corpus, protocol, model.negatives, num_batches, seed)
    if "sampler" in given and model.negatives not in asked:
        raise ValueError(
            f"sampler={given['sampler']!r} is about the batches of the model's own strategy, {model.negatives!r}, "
            f"which is not among those asked for ({', '.join(asked)}): leave it out"
        )
    corpus.check(protocol.split, needs_speakers=any(held_out.drawn_as(s)[0] == "same_speaker" for s in asked))
    draws = {Measure(strategy, num): torch.Generator().manual_seed(seed) for num in nums for strategy in asked}
    readings = HeldOutReadings(model, others, draws)
    tallies = measured_tallies(model, held_out, draws, on_measure=readings if others else None)
    bounds, estimates = [], []
    for measure, tally in tallies.items():
        bound = tally.compute(measure.strategy, protocol.split)
        change = "batch_size" if measure.num_negatives is None else "num_negatives"
        print(table(bound, change))
        of_measure = [readings.record(measure, name, protocol.split) for name in others]
        if of_measure:
            print(readings_table(of_measure))
        bounds.append(
            bound.record(config["provenance"].get("step"))
            | {
                "num_negatives": measure.num_negatives,
                "sampler": held_out.drawn_as(measure.strategy)[0],
                "information_for_gaussians_nats": bound.information_for_gaussians_nats,
                "advice": bound.advice(change),
            }
        )
        estimates += of_measure
    report = {
        "model": str(model_folder),
        "model_sha256": config["sha256"],
        "source": str(source),
        **asdict(protocol),
        "num_negatives": model.num_negatives,
        "seed": seed,
        "bounds": bounds,
        "estimates": estimates,
    }
    path = Path(model_folder) / "bound.json" if out is None else Path(out)
    write_json(report, path)
    print(f"written to {path}")
    return report


def _protocol(
    model_folder: str | Path, modality: str, of_the_run: dict[str, Any], given: dict[str, Any]
) -> AudioProtocol | ImageProtocol:
    """What is given, and beside that what the run noted."""
    if modality not in PROTOCOLS:
        raise ValueError(f"{model_folder} is a model of {modality}: evaluate measures models of {', '.join(PROTOCOLS)}")
    kind = PROTOCOLS[modality]
    legal = _options_of(kind)
    foreign = [name for name in given if name not in legal]
    if foreign:
        raise ValueError(f"--{', --'.join(foreign)}: {model_folder} is a model of {modality}, which has no such option")
    values = {name: value for name, value in of_the_run.items() if name in legal} | given
    missing = [name for name, option in legal.items() if option.default is MISSING and name not in values]
    if missing:
        raise ValueError(
            f"{model_folder} does not say how the batches of its run were drawn: give --{', --'.join(missing)}"
        )
    return kind(**values)


def _options_of(kind: type[Protocol]) -> dict[str, Field]:
    return {option.name: option for option in fields(kind) if option.init}


def table(bound: Bound, change: str) -> str:
    """A bound as text: one line per step, with the ceiling and what the number is.

    Args:
        bound: what was measured.
        change: the option that raises N.
    """
    lines = [
        f"log N - L in nats, {bound.strategy} on {bound.split!r}, {bound.num_batches} batches ({bound.reading})",
        f"{'k':>8} {'bound':>8} {'+-':>6} {'ceiling':>8} {'loss':>8} {'N':>8} {'accuracy':>9}",
    ]
    warnings = zip(bound.saturated, bound.biased, bound.advice(change), strict=True)
    names = [Step(direction, k).name for direction, k in zip(bound.directions, bound.steps, strict=True)]
    for k, (saturated, biased, told) in enumerate(warnings):
        word = "saturated" if saturated else "biased" if biased else ""
        warning = f"  {word}: {told}" if told else f"  {word}".rstrip()
        lines.append(
            f"{names[k]:>8} {bound.mi_bound_nats[k]:>8.3f} {bound.standard_error_nats[k]:>6.3f} "
            f"{bound.mi_ceiling_nats[k]:>8.3f} {bound.loss_nats[k]:>8.3f} {bound.num_candidates[k]:>8.0f} "
            f"{bound.accuracy[k]:>9.1%}{warning}"
        )
    lines.append(f"    mean {bound.mean('mi_bound_nats'):>8.3f} {'':>6} {bound.mean('mi_ceiling_nats'):>8.3f}")
    return "\n".join(lines)
