"""The benchmark's laws, after a run was interrupted."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.language import BASE, Dense, variants
from cpc.candidates.kernels import RandomFourier
from cpc.pretraining.command import parse


def test_a_restored_law_is_the_one_that_was_saved() -> None:
    laws = [Dense(7, RandomFourier(4, 32, nu=1.0, seed=3)) for _ in range(2)]
    laws[0].refresh(torch.nn.functional.normalize(torch.randn(7, 4), dim=1))
    laws[1].load_state_dict(laws[0].state_dict())
    queries = torch.nn.functional.normalize(torch.randn(5, 4), dim=1)
    assert torch.equal(laws[1].log_prob(queries), laws[0].log_prob(queries))


@pytest.mark.parametrize("name", [each for each in variants() if not each.startswith("rff") or each.endswith("_128")])
def test_every_variant_is_a_config(name: str, tmp_path: Path) -> None:
    (tmp_path / "classes.yaml").write_text(json.dumps({"model": {"loss": variants()[name]}}))
    command = parse([f"--config={BASE}", f"--config={tmp_path / 'classes.yaml'}", f"--run_dir={tmp_path / 'run'}"])
    classes = command.model.model.loss_part
    assert classes.table.is_normalised == (name != "full_unnormalised")
    assert (classes.sampler is None) == name.startswith("full")
