"""The metrics across two real processes that gather through gloo: what each finds is that of all batches."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.metrics import BoundMetric, ReadingMetric
from cpc.losses import contrast
from cpc.predictors import Step

# Each rank has batches of its own sizes, and their numbers differ: 3 and 2.
SCRIPT = """
import json, sys
import torch
from tests_of_metrics import found_by

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
print(json.dumps(found_by([[0, 1, 2], [3, 4]][rank])))
torch.distributed.destroy_process_group()
"""
SHAPES = [(4, 6), (3, 4), (7, 5), (2, 6), (5, 4)]  # sequences, valid latents


def found_by(batches: list[int]) -> dict[str, list[float]]:
    """What the metrics say of these batches, and of those of other ranks if there are any."""
    bound, readings = BoundMetric([Step("", 1), Step("", 2)]), {"nwj": ReadingMetric(), "dv": ReadingMetric()}
    for batch in batches:
        generator = torch.Generator().manual_seed(batch)
        num_sequences, num_valid = SHAPES[batch]
        queries = torch.randn(2, num_sequences, 6, 4, generator=generator)
        latents = torch.randn(num_sequences, 6, 4, generator=generator)
        bound.update(contrast(queries, latents, num_valid=torch.full((num_sequences,), num_valid)))
        for name, metric in readings.items():
            metric.update(ESTIMATORS[name].read(torch.randn(num_valid, num_valid, generator=generator).double()))
    found = bound.bound("mixed", "valid")
    of_bound = {name: list(getattr(found, name)) for name in ("mi_bound_nats", "standard_error_nats", "num_rows")}
    return of_bound | {name: [value.item() for value in metric.compute()] for name, metric in readings.items()}


def test_each_rank_finds_what_one_process_finds_of_all_batches(tmp_path: Path) -> None:
    (tmp_path / "tests_of_metrics.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": paths}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    expected = found_by([0, 1, 2, 3, 4])
    for rank in ranks:
        out, error = rank.communicate(timeout=300)
        assert rank.returncode == 0, error.decode()
        found = json.loads(out.decode().splitlines()[-1])
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-9), name
