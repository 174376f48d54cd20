"""A far step only, `steps: [14]`, through the real commands."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.checkpoint import load_pretrained
from cpc.cli import main
from cpc.data.store.atomic import read_records


def test_a_far_step_is_trained_evaluated_and_recorded(oscillations: Path, run: Callable[..., Path]) -> None:
    run_dir = run()
    records = read_records(run_dir / "bound.jsonl")
    assert {record["split"] for record in records} == {"train", "valid"}
    assert all(record["steps"] == [14] and len(record["mi_bound_nats"]) == 1 for record in records)
    model = load_pretrained(run_dir)
    assert [step.k for step in model.steps] == [14]
    assert model.predictor.weights.shape == (1, 8, 8)
    options = ["--data", str(oscillations.with_name("signals.npz")), "--bank", "valid", "--num_batches", "1"]
    main(["evaluate", str(run_dir), *options, "--negatives", "mixed", "--estimators", "nwj"])
    found = json.loads((run_dir / "bound.json").read_text())
    for name in ("bounds", "estimates"):
        assert {(tuple(each["steps"]), *each["num_rows"]) for each in found[name]} == {((14,), 4 * (50 - 14))}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("steps=[50]", r"gives 50 latents, but the model predicts 50 steps .*model.predictor.init_args.steps"),
        ("steps=[2, 1]", r"model.predictor.init_args.steps=\[2, 1\] must be increasing"),
        ("num_steps=12", r"model.predictor.init_args.num_steps=12 is not one of None, 1"),
    ],
)
def test_wrong_steps_are_named(refused: Callable[..., str], option: str, words: str) -> None:
    assert re.search(words, refused(f"--model.predictor.init_args.{option}"))
