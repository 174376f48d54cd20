"""The held-out bound of a model: same batches, same draws, every time."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpc.bounds import Bound, BoundTally
from cpc.candidates import STRATEGIES, reading_of
from cpc.checkpoint import load_pretrained, read_config
from cpc.data.batch import Batch
from cpc.data.corpus import Corpus, Sampler
from cpc.losses import Contrast
from cpc.model import CPC

EVALUATION_SEED = 20180710


@torch.no_grad()
def contrast_by_strategy(
    model: CPC, batch: Batch, strategies: Iterable[str], generators: dict[str, torch.Generator]
) -> tuple[dict[str, Contrast], Tensor, Tensor]:
    """Encode a batch once and contrast it with every strategy; also gives its latents and contexts."""
    latents, contexts, _ = model(batch.x)
    contrasts = {
        strategy: model.contrast(
            latents,
            contexts,
            num_valid=model.encoder.num_latents(batch.num_valid),
            sequence_id=batch.sequence_id,
            group_id=batch.group_id,
            strategy=strategy,
            generator=generators[strategy],
        )
        for strategy in strategies
    }
    return contrasts, latents, contexts


def fixed_generators(strategies: Iterable[str], seed: int = EVALUATION_SEED) -> dict[str, torch.Generator]:
    """Generators that repeat the same draws at every evaluation, one per strategy."""
    return {strategy: torch.Generator().manual_seed(seed) for strategy in strategies}


def held_out_bound(
    model: CPC, batches: Iterable[Batch], strategies: Iterable[str], split: str, seed: int = EVALUATION_SEED
) -> dict[str, Bound]:
    """Measure the bound with each strategy over the same batches.

    The model is put in eval mode for the duration. Draws come from generators of their own, seeded anew by each call.

    Raises:
        ValueError: if there is no batch, or a strategy leaves a row without negatives.
    """
    strategies = tuple(strategies)
    device = next(model.parameters()).device
    generators = fixed_generators(strategies, seed)
    tallies = {strategy: BoundTally() for strategy in strategies}
    was_training = model.training
    model.eval()
    for batch in batches:
        contrasts, _, _ = contrast_by_strategy(model, Batch(*(t.to(device) for t in batch)), strategies, generators)
        for strategy, result in contrasts.items():
            tallies[strategy].update(result)
    model.train(was_training)
    return {strategy: tally.compute(strategy, split) for strategy, tally in tallies.items()}


def evaluate(
    model_folder: str | Path,
    manifest: str | Path,
    *,
    strategies: Iterable[str] | None = None,
    split: str = "valid",
    num_batches: int = 64,
    batch_size: int = 8,
    window_samples: int = 20480,
    seed: int = 0,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """`cpc evaluate`: measure the held-out bound of a saved model, print it, write it as JSON.

    Strategies that need several sequences of a speaker get same-speaker batches, the others uniform ones.

    Args:
        model_folder: as written by `save_pretrained`.
        manifest: manifest CSV or its folder.
        strategies: the model's own and `mixed_excluding` if None.
        split: value of the manifest's split column.
        num_batches: batches to average over.
        batch_size: windows per batch.
        window_samples: length of a window.
        seed: of batches and draws.
        out: JSON file; `bound.json` in the model's folder if None.

    Returns:
        What is written: the protocol, and per strategy the record of `Bound`.

    Raises:
        ValueError: on an unknown strategy, split or speaker column, named.
    """
    model = load_pretrained(model_folder)
    asked = tuple(dict.fromkeys(strategies or (model.negatives, "mixed_excluding")))
    unknown = [s for s in asked if s not in STRATEGIES]
    if unknown:
        raise ValueError(f"negatives={unknown[0]!r} is not one of {', '.join(STRATEGIES)}")
    corpus = Corpus(manifest, model.encoder, window_samples)
    windows = corpus.windows(split)
    bounds: dict[str, Bound] = {}
    for strategy in asked:
        sampler: Sampler = "same_speaker" if strategy.startswith("same_speaker") else "uniform"
        excluding = strategy == "same_speaker_excluding"
        keys = corpus.batches(windows, sampler, batch_size, num_batches, seed, require_distinct_files=excluding)
        batches = (windows.__getitems__(key) for key in keys)
        bounds |= held_out_bound(model, batches, [strategy], split, seed)
    report = {
        "model": str(model_folder),
        "model_sha256": read_config(model_folder)["sha256"],
        "manifest": str(manifest),
        "num_batches": num_batches,
        "batch_size": batch_size,
        "window_samples": window_samples,
        "num_negatives": model.num_negatives,
        "seed": seed,
        "bounds": [bound.record(step=0) | {"reading": reading_of(s)} for s, bound in bounds.items()],
    }
    for bound in bounds.values():
        print(table(bound))
    path = Path(model_folder) / "bound.json" if out is None else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {path}")
    return report


def table(bound: Bound) -> str:
    """A bound as text: one line per step, with the ceiling and what the number is."""
    lines = [
        f"log N - L in nats, {bound.strategy} on {bound.split!r} ({reading_of(bound.strategy)})",
        f"{'k':>4} {'bound':>8} {'+-':>6} {'ceiling':>8} {'loss':>8} {'N':>8} {'accuracy':>9}",
    ]
    for k in range(len(bound.loss_nats)):
        lines.append(
            f"{k + 1:>4} {bound.mi_bound_nats[k]:>8.3f} {bound.standard_error_nats[k]:>6.3f} "
            f"{bound.mi_ceiling_nats[k]:>8.3f} {bound.loss_nats[k]:>8.3f} {bound.num_candidates[k]:>8.0f} "
            f"{bound.accuracy[k]:>9.1%}{'  saturated: more candidates would show more' if bound.saturated[k] else ''}"
        )
    lines.append(f"mean {bound.mean('mi_bound_nats'):>8.3f} {'':>6} {bound.mean('mi_ceiling_nats'):>8.3f}")
    return "\n".join(lines)
