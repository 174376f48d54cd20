"""`cpc evaluate` of a model of text: its perplexity, and the information that it certifies."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpc.bounds import Bound
from cpc.evaluation.held_out_text import HeldOutText, class_tally
from cpc.evaluation.protocol import TextProtocol
from cpc.losses.objectives import FULL_SOFTMAX
from cpc.model import CPC


def evaluate_text(
    model: CPC,
    config: dict[str, Any],
    protocol: TextProtocol,
    source: str | Path,
    *,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Measure a model on a whole split, and print what was found.

    Args:
        model: of text.
        config: that was saved with it.
        protocol: how the text is read.
        source: a file or folder of text, or `embedded`.
        cache_dir: where the packed tokens go; beside the text if None.
        skip_bad: go on without files that are not UTF-8, and say how many.

    Returns:
        The protocol, and `bounds` with the record of `Bound`, perplexity among it.
    """
    corpus = protocol.corpus(source, model.encoder, cache_dir=cache_dir, skip_bad=skip_bad)
    held_out = HeldOutText(corpus, protocol, model.steps[-1].k)
    tally = class_tally(model, held_out)
    bound = tally.compute(FULL_SOFTMAX, protocol.split).against_entropy(held_out.entropy_nats)
    unknown_share = float((held_out.stream[1:] == corpus.vocabulary.unknown).mean())
    print(_table(bound, held_out.entropy_nats, unknown_share))
    return {
        **asdict(protocol),
        "objective": model.loss_part.training_strategies[0],
        "num_tokens": len(corpus.vocabulary),
        "token_entropy_nats": held_out.entropy_nats,
        "unknown_share": unknown_share,
        "bounds": [bound.record(config["provenance"].get("step"))],
        "estimates": [],
    }


def _table(bound: Bound, token_entropy_nats: float, unknown_share: float) -> str:
    lines = [
        f"full softmax over {bound.num_candidates[0]:.0f} tokens on all of {bound.split!r}, contexts carried on, "
        f"{unknown_share:.1%} of it unknown; entropy of its tokens {token_entropy_nats:.3f} nats ({bound.reading})",
        f"{'k':>8} {'perplexity':>11} {'cross-entropy':>13} {'information':>11} {'+-':>6} {'accuracy':>8} {'rows':>8}",
    ]
    for k, step in enumerate(bound.steps):
        lines.append(
            f"{step:>8} {bound.perplexity[k]:>11.2f} {bound.loss_nats[k]:>13.4f} {bound.mi_bound_nats[k]:>11.4f} "
            f"{bound.standard_error_nats[k]:>6.3f} {bound.accuracy[k]:>8.1%} {bound.num_rows[k]:>8}"
        )
    return "\n".join(lines)
