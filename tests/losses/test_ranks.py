"""The same batch has the same loss, bound, gradients and training at any world size: with processes, Gloo and DDP."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "gloo_ranks.py"
TOLERANCE = 1e-10


def trained(folder: Path, most_steps: int, *splits: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), str(folder), str(most_steps), *splits]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{split}.pt") for split in splits]


def compare(one: dict[str, Any], several: dict[str, Any]) -> None:
    for name, expected in one.items():
        assert expected["gradients"], name
        assert max(each.abs().max() for each in expected["gradients"].values()) > 1e-3, name
        for what, value in expected.items():
            torch.testing.assert_close(
                several[name][what], value, rtol=0, atol=TOLERANCE, msg=lambda told, at=(name, what): f"{at}: {told}"
            )


def test_ranks_with_different_numbers_of_observations_train_as_one_process_does(tmp_path: Path) -> None:
    """Of every kind of loss; with padding, files on both ranks, unknown identities, and a rank that predicts nothing.

    A batch that no rank can use is refused on all of them, so that none waits for another.
    """
    one, several = trained(tmp_path, 2, "8", "3+5")
    compare(one, several)
    shapes, ids, alone = ([told[case] for told in several["refusals"]] for case in ("shapes", "ids", "alone"))
    assert ["sequences of the ranks have the shapes [10], [11] in latents" in told for told in shapes] == [True, True]
    assert ["some ranks have a sequence_id" in told for told in ids] == [True, True]
    assert ["leaves 2 of 2 sequences of a batch without a negative" in told for told in alone] == [True, True]
    assert several["collapsed"] == [True, True]
    assert several["apart"] == 2 * [[True, False, True, False, True, False, True]]


@pytest.mark.slow
def test_training_is_the_same_at_any_world_size(tmp_path: Path) -> None:
    one, *others = trained(tmp_path, 20, "8", "4+4", "2+2+2+2", "1+4+1+2")
    for several in others:
        compare(one, several)
