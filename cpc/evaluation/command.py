"""`cpc evaluate`: the held-out bound of a saved model, and the estimates of other estimators."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpc.bounds import Bound
from cpc.candidates import BANK
from cpc.candidates.strategies import Strategy
from cpc.checkpoint import load_pretrained, place_of_results, read_config
from cpc.config.argument_rules import Count, Device, OutFile, Seed, checked
from cpc.data.modality import EVALUATION_SEED
from cpc.data.store.atomic import write_json
from cpc.data.store.fingerprints import describe_copies
from cpc.data.tensors import find_device
from cpc.evaluation.bank import bank_of_split, bank_tally
from cpc.evaluation.estimates import INFO_NCE, HeldOutEstimates, check_estimators
from cpc.evaluation.held_out import check_memory, held_out_bounds
from cpc.evaluation.recorded import recorded_data
from cpc.evaluation.tables import bound_table, draw_bounds, estimates_table
from cpc.losses import EvalProtocol
from cpc.model import CPC
from cpc.pages.report import Report, Table

_NUM_BATCHES = 64
_BANK_LATENTS = 1_000_000


@checked
def evaluate(
    model_folder: str | Path,
    data: str | Path,
    *,
    negatives: Iterable[Strategy] | None = None,
    num_negatives: Iterable[Count | None] | None = None,
    estimators: Iterable[str] = (INFO_NCE,),
    split: str | None = None,
    num_batches: Count | None = None,
    bank: str | None = None,
    bank_latents: Count | None = None,
    seed: Seed | None = None,
    device: Device = "auto",
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    out: OutFile | None = None,
    trusted_packages: Iterable[str] = ("cpc",),
    **data_options: Any,
) -> Report:
    """Measure the held-out bound of a saved model, and write it as JSON.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: the source, as in the `data` section of the run's config: a manifest CSV or its folder; a folder of
            images, npz or NAME:ROOT; a text file, a folder or 'embedded'.
        negatives: strategies of the negatives; the model's own strategy and mixed_excluding if not given.
        num_negatives: number R of negatives sampled per row (N = R + 1), or all (None in Python). Several numbers are
            evaluated one by one. If not given, the number of training.
        estimators: further estimators (nwj, tuba, interpolated, dv, js, smile, goodness_of_fit); info_nce is
            always measured.
        split: split of the data; if not given, the split that the run held out.
        num_batches: largest number of batches, at most one pass over the split; 64 if not given. Of text the whole
            split is read.
        bank: also measure the bound against a bank of latents of this split, which raises the ceiling. It costs a pass
            over the bank for every 1024 rows.
        bank_latents: maximum number of latents in the bank; 1,000,000 if not given.
        seed: seed of batches and negatives; 0 if not given.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        cache_dir: folder of packed data; next to the data if not given.
        skip_bad: leave out files that cannot be used, and print how many.
        out: JSON file; bound.json in the model's folder if not given.
        trusted_packages: packages whose classes the model and its data may name.
        data_options: fields of the run's `data` to change (see `cpc.data.Modality`). Fields that are missing or None
            stay as in the run.

    Returns:
        The report, which shows itself as a table: the options of the batches; `bounds`, with a record of `Bound` for
        each N and strategy; and `estimates`, with a record for each other estimator (docs/records.md).

    Raises:
        ValueError: if a strategy, estimator, split or speaker column is unknown (the message names it), the model's
            config.json does not describe its data, the data do not have an option, the device cannot be used, or a loss
            is not finite.
    """
    device = find_device(device)
    path = place_of_results(model_folder, "bound.json", out)
    config, trusted_packages = read_config(model_folder), tuple(trusted_packages)
    model = load_pretrained(model_folder, device=device, trusted_packages=trusted_packages)
    others = tuple(dict.fromkeys(name for name in estimators if name != INFO_NCE))
    modality = recorded_data(
        config,
        data,
        trusted_packages=trusted_packages,
        eval_split=split,
        cache_dir=None if cache_dir is None else str(cache_dir),
        skip_bad=skip_bad,
        **data_options,
    )
    modality.check_encoder(model.encoder)
    if modality.is_continuous:
        _refuse_options(
            f"{model_folder} is a model of {modality.name}, which is always read whole and against all classes",
            negatives=negatives,
            num_negatives=num_negatives,
            estimators=others or None,
            num_batches=num_batches,
            bank=bank,
            bank_latents=bank_latents,
            seed=seed,
        )
    loss = model.loss_part
    training_strategy, step = loss.training_strategies[0], config["provenance"].get("step")
    strategies = _strategies(model, negatives, data_options.get("sampler"))
    nums = tuple(dict.fromkeys([loss.num_negatives] if num_negatives is None else num_negatives))
    if bank is None:
        _refuse_options("without `bank` there is no bank", bank_latents=bank_latents)
    is_given = data_options.get("speakers_per_batch") is not None
    if is_given and (error_message := modality.unread_speakers(strategies, training_strategy)):
        raise ValueError(error_message)
    check_estimators(others, strategies)
    corpus = modality.open(model.encoder)
    if not negatives:
        strategies = modality.measurable(corpus, modality.eval_split, strategies)
    modality.check_split(corpus, modality.eval_split, strategies, training_strategy)
    modality.prepare(corpus)
    held_out = modality.held_out(
        corpus,
        model,
        num_batches=_NUM_BATCHES if num_batches is None else num_batches,
        seed=EVALUATION_SEED if seed is None else seed,
    )
    sampled_nums = [num for num in nums if num is not None]
    if sampled_nums and modality.predicts == "latents":
        check_memory(model, held_out, max(sampled_nums))
    latent_bank = None
    if bank is not None:
        num_latents = _BANK_LATENTS if bank_latents is None else bank_latents
        latent_bank = bank_of_split(model, corpus, bank, num_latents, modality.batch_size, held_out.seed)
    generators = {
        EvalProtocol(name, num): torch.Generator().manual_seed(held_out.seed) for num in nums for name in strategies
    }
    estimates = HeldOutEstimates(model, others, generators)
    bounds: list[dict[str, Any]] = []
    estimate_records: list[dict[str, Any]] = []
    tables: list[Table] = []

    def add(bound: Bound, change: str, **facts: Any) -> None:
        bounds.append(bound.record(step) | facts | {"advice": bound.advice(change)})
        tables.append(bound_table(bounds[-1]))

    for protocol, bound in held_out_bounds(
        model, held_out, generators, on_protocol=estimates if others else None
    ).items():
        sampler, num = held_out.sampler_for(protocol.strategy)[0], protocol.num_negatives
        add(bound, "batch_size" if num is None else "num_negatives", num_negatives=num, sampler=sampler)
        if others:
            estimate_records += (records := [estimates.record(protocol, name, held_out.split) for name in others])
            tables.append(estimates_table(records))
    if latent_bank is not None:
        bound = bank_tally(model, held_out, latent_bank).compute(BANK, held_out.split)
        sampler = held_out.sampler_for("mixed_excluding")[0]
        add(bound, "bank_latents", num_negatives=None, sampler=sampler, bank=bank, bank_latents=len(latent_bank))
    _check_finite(bounds, model_folder)
    pretrained_on = modality.held_out_copies(corpus, config["provenance"].get("trained_on"))
    notes = []
    if pretrained_on is not None:
        notes.append(f"training has used {describe_copies(pretrained_on)} of split {held_out.split!r}")
    if held_out.facts:
        notes.append(", ".join(f"{name} {value:.6g}" for name, value in held_out.facts.items()))
    tables[-1] = tables[-1]._replace(notes=(*tables[-1].notes, *notes))
    report = {
        "model": str(model_folder),
        "model_sha256": config["sha256"],
        "source": str(data),
        **modality.held_out_protocol,
        "training_strategy": training_strategy,
        "num_negatives": loss.num_negatives,
        "seed": held_out.seed,
        "device": device,
        **held_out.facts,
        "pretrained_on": pretrained_on,
        "bounds": bounds,
        "estimates": estimate_records,
    }
    write_json(report, path)
    return Report(report, tables, partial(draw_bounds, bounds), path)


def _refuse_options(reason: str, **options: Any) -> None:
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise ValueError(f"`{'`, `'.join(names)}`: {reason}; leave this out")


def _strategies(model: CPC, negatives: Iterable[str] | None, sampler: str | None) -> tuple[str, ...]:
    """Return the strategies of `negatives`, or the model's own and `mixed_excluding` if none are given."""
    training_strategy = model.loss_part.training_strategies[0]
    strategies = tuple(dict.fromkeys(negatives or model.loss_part.held_out_strategies(("mixed_excluding",))))
    if sampler is not None and training_strategy not in strategies:
        others = ", ".join(strategies)
        raise ValueError(f"`sampler` applies only to the model's own strategy, {training_strategy!r}, not to {others}")
    return strategies


def _check_finite(bounds: list[dict[str, Any]], model_folder: str | Path) -> None:
    for bound in bounds:
        steps = zip(bound["steps"], bound["loss_nats"], bound["num_rows"], strict=True)
        broken = [str(k) for k, loss, num_rows in steps if loss is None and num_rows > 0]
        if broken:
            raise ValueError(f"{model_folder}: loss of {bound['strategy']} is not finite for k = {', '.join(broken)}")
