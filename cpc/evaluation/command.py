"""`cpc evaluate`: the held-out bound of a saved model, and what other estimators read of it."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cpc.bounds import Bound
from cpc.candidates import BANK, STRATEGIES
from cpc.candidates.strategies import Strategy
from cpc.checkpoint import load_pretrained, read_config
from cpc.data.store.atomic import write_json
from cpc.evaluation.bank import bank_of_split, bank_tally
from cpc.evaluation.held_out import EVALUATION_SEED, HeldOut, measured_tallies
from cpc.evaluation.protocol import AudioProtocol, ImageProtocol, TextProtocol, protocol_of
from cpc.evaluation.readings import HeldOutReadings, check_readable, readings_table
from cpc.evaluation.text_report import evaluate_text
from cpc.losses import Measure
from cpc.model import CPC
from cpc.predictors import Step

INFO_NCE = "info_nce"


def evaluate(
    model_folder: str | Path,
    data: str | Path,
    *,
    negatives: Iterable[Strategy] | None = None,
    num_negatives: Iterable[int | None] | None = None,
    estimators: Iterable[str] = (INFO_NCE,),
    num_batches: int | None = None,
    bank: str | None = None,
    bank_latents: int | None = None,
    seed: int | None = None,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    out: str | Path | None = None,
    **data_options: Any,
) -> dict[str, Any]:
    """`cpc evaluate`: measure the held-out bound of a saved model, print it, write it as JSON.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: manifest CSV, or the folder that holds it; for images a folder, npz or NAME:ROOT; for text a file, a
            folder or 'embedded'.
        negatives: where negatives come from; the model's own strategy and mixed_excluding if not given.
        num_negatives: negatives drawn per row, N = R + 1, or all (None in Python); several are evaluated one by one;
            as the model was trained if not given.
        estimators: further readings beside the bound of info_nce, which is always measured: nwj, tuba, interpolated,
            dv, js, smile.
        num_batches: batches, one pass over the split at most; 64 if not given; text is read whole.
        bank: measure also against latents of this split, all at once: a far higher ceiling. Costs a pass over the
            bank for every 1024 rows.
        bank_latents: how many of them, at most; 1,000,000 if not given.
        seed: of batches and draws; 0 if not given.
        cache_dir: where packed data go; beside the data if not given.
        skip_bad: go on without files that cannot be used, and say how many.
        out: JSON file; bound.json in the model's folder if not given.
        data_options: how batches are drawn, attributes of `AudioProtocol`, `ImageProtocol` or `TextProtocol`; as in
            the model's run if not given, or None.

    Returns:
        What is written: the protocol, `bounds` with the record of `Bound` per N and strategy, and `estimates` with that
        of every other estimator.

    Raises:
        ValueError: on an unknown strategy, estimator, split or speaker column, named; if the model's config.json does
            not say how batches were drawn, naming what to give; on options of another modality; if a loss is not
            finite.
    """
    config = read_config(model_folder)
    model = load_pretrained(model_folder)
    given = {name: value for name, value in data_options.items() if value is not None}
    protocol = protocol_of(model_folder, model.encoder.modality, config["provenance"].get("evaluation", {}), given)
    others = tuple(dict.fromkeys(name for name in estimators if name != INFO_NCE))
    of_draws = {
        "negatives": negatives,
        "num_negatives": num_negatives,
        "estimators": others,
        "num_batches": num_batches,
        "bank": bank,
        "bank_latents": bank_latents,
        "seed": seed,
    }
    if isinstance(protocol, TextProtocol):
        without_meaning = [name for name, value in of_draws.items() if value is not None and value != ()]
        if without_meaning:
            raise ValueError(
                f"`{'`, `'.join(without_meaning)}`: {model_folder} is a model of text, which is read from end to end "
                "against all classes; leave this out"
            )
        found = evaluate_text(model, config, protocol, data, cache_dir=cache_dir, skip_bad=skip_bad)
    else:
        found = _evaluate_draws(
            model,
            config,
            protocol,
            data,
            asked=tuple(dict.fromkeys(negatives or model.loss_part.held_out_strategies(("mixed_excluding",)))),
            nums=tuple(dict.fromkeys([model.loss_part.num_negatives] if num_negatives is None else num_negatives)),
            others=others,
            num_batches=64 if num_batches is None else num_batches,
            bank=bank,
            bank_latents=1_000_000 if bank_latents is None else bank_latents,
            seed=EVALUATION_SEED if seed is None else seed,
            is_sampler_given="sampler" in given,
            cache_dir=cache_dir,
            skip_bad=skip_bad,
        )
    for bound in found["bounds"]:
        of_steps = zip(bound["steps"], bound["loss_nats"], bound["num_rows"], strict=True)
        broken = [str(k) for k, loss, num_rows in of_steps if loss is None and num_rows > 0]
        if broken:
            raise ValueError(
                f"{model_folder}: the loss of {bound['strategy']} is not finite for k = {', '.join(broken)}: the "
                "model's products overflow; nothing is written"
            )
    report = {"model": str(model_folder), "model_sha256": config["sha256"], "source": str(data), **found}
    path = Path(model_folder) / "bound.json" if out is None else Path(out)
    write_json(report, path)
    print(f"written to {path}")
    return report


def _evaluate_draws(
    model: CPC,
    config: dict[str, Any],
    protocol: AudioProtocol | ImageProtocol,
    source: str | Path,
    *,
    asked: tuple[str, ...],
    nums: tuple[int | None, ...],
    others: tuple[str, ...],
    num_batches: int,
    bank: str | None,
    bank_latents: int,
    seed: int,
    is_sampler_given: bool,
    **files: Any,
) -> dict[str, Any]:
    """Contrast held-out windows or images with each strategy and number of negatives, and print what was found."""
    unknown = [s for s in asked if s not in STRATEGIES]
    if unknown:
        raise ValueError(f"negatives={unknown[0]!r} is not one of {', '.join(STRATEGIES)}")
    too_few = [num for num in nums if num is not None and num < 1]
    if too_few:
        raise ValueError(f"num_negatives={too_few[0]} must be at least 1, or all")
    check_readable(others, asked)
    corpus = protocol.corpus(source, model.encoder, **files)
    own = model.loss_part.training_strategies[0]
    held_out = HeldOut(corpus, protocol, own, num_batches, seed)
    if is_sampler_given and own not in asked:
        raise ValueError(
            f"sampler={protocol.sampler!r} is about the batches of the model's own strategy, {own!r}, "
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
                "advice": bound.advice(change),
            }
        )
        estimates += of_measure
    if bank is not None:
        stored = bank_of_split(model, corpus, bank, bank_latents, protocol.batch_size, seed)
        bound = bank_tally(model, held_out, stored).compute(BANK, protocol.split)
        print(table(bound, "bank_latents"))
        bounds.append(
            bound.record(config["provenance"].get("step"))
            | {
                "num_negatives": None,
                "sampler": held_out.drawn_as("mixed_excluding")[0],
                "bank": bank,
                "bank_latents": len(stored),
                "information_for_gaussians_nats": bound.information_for_gaussians_nats,
                "advice": bound.advice("bank_latents"),
            }
        )
    return {
        **asdict(protocol),
        "num_negatives": model.loss_part.num_negatives,
        "seed": seed,
        "bounds": bounds,
        "estimates": estimates,
    }


def table(bound: Bound, change: str) -> str:
    """A bound as text: one line per step, with the ceiling and what the number is.

    Args:
        bound: what was measured.
        change: the option that raises N.
    """
    lines = [
        f"log N - L in nats, {bound.strategy} on {bound.split!r}, {bound.num_batches} batches ({bound.reading})",
        f"{'k':>8} {'log N - L':>9} {'+-':>6} {'ceiling':>8} {'loss':>8} {'N':>8} {'accuracy':>9}",
    ]
    warnings = zip(bound.saturated, bound.biased, bound.advice(change), strict=True)
    names = [Step(direction, k).name for direction, k in zip(bound.directions, bound.steps, strict=True)]
    for k, (saturated, biased, told) in enumerate(warnings):
        word = "saturated" if saturated else "biased" if biased else ""
        warning = f"  {word}: {told}" if told else f"  {word}".rstrip()
        lines.append(
            f"{names[k]:>8} {bound.mi_bound_nats[k]:>9.3f} {bound.standard_error_nats[k]:>6.3f} "
            f"{bound.mi_ceiling_nats[k]:>8.3f} {bound.loss_nats[k]:>8.3f} {bound.num_candidates[k]:>8.0f} "
            f"{bound.accuracy[k]:>9.1%}{warning}"
        )
    lines.append(f"    mean {bound.mean('mi_bound_nats'):>9.3f} {'':>6} {bound.mean('mi_ceiling_nats'):>8.3f}")
    return "\n".join(lines)
