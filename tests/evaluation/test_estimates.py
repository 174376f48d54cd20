"""Any estimator on a model's batches: in grids as in sequences, each step where `CPC.steps` says."""

import pytest
import torch

from cpc.bounds import BoundTally
from cpc.candidates import STRATEGIES
from cpc.contexts import PixelCNN
from cpc.data.batch import Batch
from cpc.encoders import PatchEncoder, TinyTrunk
from cpc.evaluation.estimates import SCORE_ESTIMATORS, HeldOutEstimates, interpret
from cpc.evaluation.tables import estimates_table
from cpc.losses import Contrastive, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear

MEASURE = EvalProtocol("mixed_excluding", None)


def test_directions_of_a_grid_follow_one_another(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    encoder = PatchEncoder(TinyTrunk(8, 1, (4,), (8,)), patch_size=8, stride=4)
    model = CPC(
        encoder, PixelCNN(8, 2, 8, ("down", "right")), Bilinear(2), Contrastive("mixed_excluding", skip_steps=1)
    )
    readings = HeldOutEstimates(model, ["info_nce"], {MEASURE: generator})
    tally = BoundTally(model.steps)
    for _ in range(2):
        x = torch.randn(3, 1, 24, 24, generator=generator)
        with torch.no_grad():
            output = model(x)
            tally.update(model.contrast(output, Batch.of(x)))
            readings(MEASURE, output, Batch.of(x))
    bound, record = tally.compute("mixed_excluding", "test"), readings.record(MEASURE, "info_nce", "test")
    assert record["directions"] == ["down", "down", "right", "right"]
    assert record["steps"] == [2, 3, 2, 3]
    assert record["estimate_nats"] == pytest.approx(bound.mi_bound_nats, abs=1e-5)
    assert record["standard_error_nats"] == pytest.approx(bound.standard_error_nats, rel=1e-3)
    assert record["reading"] == bound.reading
    assert "right 3" in str(estimates_table([record]))


@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SCORE_ESTIMATORS)
def test_only_bounds_are_called_bounds(name: str, strategy: str, on_grid: bool) -> None:
    words = interpret(name, strategy, on_grid)
    is_bound = name not in ("dv", "smile", "goodness_of_fit")
    if strategy == "mixed_excluding":
        assert words.startswith("lower bound on I(z; c)" if is_bound else "estimate of I(z; c)")
        assert ("plus up to log(H / (H - k))" in words) == on_grid
    else:
        assert words.endswith("not a bound on I(z; c)")


def test_a_step_without_rows_or_with_an_infinite_reading_says_so() -> None:
    record = {"estimator": "nwj", "strategy": "mixed", "num_negatives": 5, "steps": [1, 2], "directions": ["", ""]}
    record |= {"estimate_nats": [0.5, None], "standard_error_nats": [None, None], "reading": "words"}
    lines = str(estimates_table([record])).splitlines()
    assert "5 negatives" in lines[0]
    assert lines[2].split() == ["1", "0.500", "+-", "n/a"]
    assert lines[3].split() == ["2", "n/a"]
