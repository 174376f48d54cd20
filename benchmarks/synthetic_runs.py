"""Synthetic runs: records in the format of `cpc pretrain`, of known curves."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.store.atomic import append_record

NUM_CANDIDATES = 128


def bound_record(
    step: int, split: str = "train", num_steps: int = 4, level: float = 1.0, **changes: Any
) -> dict[str, Any]:
    """Return a record with log N - L = level (1 - exp(-step / 300)) / k, exactly."""
    bound = [level * (1 - math.exp(-step / 300)) / k for k in range(1, num_steps + 1)]
    ceiling = math.log(NUM_CANDIDATES)
    return {
        "schema": 1,
        "step": step,
        "steps": list(range(1, num_steps + 1)),
        "directions": [""] * num_steps,
        "strategy": "mixed",
        "split": split,
        "num_batches": 50,
        "num_rows": [1000] * num_steps,
        "loss_nats": [ceiling - value for value in bound],
        "num_candidates": [float(NUM_CANDIDATES)] * num_steps,
        "mi_ceiling_nats": [ceiling] * num_steps,
        "mi_bound_nats": bound,
        "standard_error_nats": [0.05] * num_steps,
        "accuracy": [min(1.0, (1 + value) / NUM_CANDIDATES * 10) for value in bound],
        "saturated": [ceiling - value < 0.3 for value in bound],
        "biased": [False] * num_steps,
        "reading": "an estimate, not a bound",
        **changes,
    }


def health_record(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "step": step,
        "time_unix_seconds": time.time(),
        "trained_seconds": step / 10,
        "windows_per_second": 80.0 + 5 * math.sin(step / 200),
        "learning_rate": 2e-4,
        "gradient_norm": 1 + 3 * math.exp(-step / 200),
        "gradient_norm_max": 2 + 6 * math.exp(-step / 200),
        "z_variance": 0.9,
        "z_effective_rank": 20 + step / 100,
        "c_variance": 0.2,
        "c_effective_rank": 10 + step / 100,
        "z_dim": 256,
        "c_dim": 256,
        "collapsed": [],
        **changes,
    }


def probe_record(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "step": step,
        "task": "phones",
        "features": "c",
        "accuracy": 0.6 * (1 - math.exp(-step / 500)),
        "majority_accuracy": 0.12,
        "label_entropy_nats": 3.4,
        "cross_entropy_nats": 3.4 - 2 * (1 - math.exp(-step / 500)),
        "label_information_nats": 2 * (1 - math.exp(-step / 500)),
        "num_examples": 5000,
        "mi_bound_nats": [1.0] * 4,
        **changes,
    }


def event_record(event: str, step: int = 0, message: str = "") -> dict[str, Any]:
    return {"schema": 1, "step": step, "time_unix_seconds": time.time(), "event": event, "message": message}


def add_step(folder: Path, step: int, level: float = 1.0, num_steps: int = 4) -> None:
    """Append the records that `cpc pretrain` appends at a step."""
    append_record(folder / "bound.jsonl", bound_record(step, level=level, num_steps=num_steps))
    append_record(folder / "health.jsonl", health_record(step))


def write_run(
    folder: Path,
    num_records: int = 40,
    level: float = 1.0,
    every: int = 50,
    num_steps: int = 4,
    seed: int | None = None,
) -> Path:
    """Write a run that has not ended; with a seed, its curves are noisy."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"model:\n  learning_rate: {level / 1000}\n  negatives: mixed\n")
    append_record(folder / "events.jsonl", event_record("started"))
    rng = np.random.default_rng(seed)
    bounds, healths = [], []
    for step in range(every, every * num_records + 1, every):
        noise = 0.0 if seed is None else 0.05 * rng.standard_normal()
        bounds.append(bound_record(step, level=level + noise, num_steps=num_steps))
        healths.append(health_record(step))
        if step % (10 * every) == 0:
            bounds.append(bound_record(step, "valid", num_steps, level=0.95 * level))
            bounds.append(bound_record(step, "valid", num_steps, level=0.9 * level, strategy="mixed_excluding"))
            append_record(folder / "probe.jsonl", probe_record(step))
    (folder / "bound.jsonl").write_text("".join(json.dumps(record) + "\n" for record in bounds))
    (folder / "health.jsonl").write_text("".join(json.dumps(record) + "\n" for record in healths))
    return folder
