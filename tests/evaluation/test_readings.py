"""Any estimator on a model's batches: in grids as in sequences, each step where `CPC.steps` says."""

import pytest
import torch

from cpc.bounds import BoundTally
from cpc.candidates import STRATEGIES
from cpc.candidates.class_table import ClassTable
from cpc.contexts import Identity, PixelCNN
from cpc.data.batch import Batch
from cpc.encoders import TinyTrunk, VectorEncoder
from cpc.encoders.patches import PatchEncoder
from cpc.evaluation import READABLE, HeldOutReadings, check_readable, interpretation, readings_table
from cpc.evaluation.readings import readable_from
from cpc.losses import ClassTableLoss, Contrastive, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear

MEASURE = EvalProtocol("mixed_excluding", None)


def test_directions_of_a_grid_follow_one_another(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    encoder = PatchEncoder(TinyTrunk(8, 1, (4,), (8,)), patch_size=8, stride=4)
    model = CPC(
        encoder, PixelCNN(8, 2, 8, ("down", "right")), Bilinear(2), Contrastive("mixed_excluding", skip_steps=1)
    )
    readings = HeldOutReadings(model, ["info_nce"], {MEASURE: generator})
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
    assert "right 3" in readings_table([record])


@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", READABLE)
def test_only_bounds_are_called_bounds(name: str, strategy: str, on_grid: bool) -> None:
    words = interpretation(name, strategy, on_grid)
    is_bound = name not in ("dv", "smile", "js_kl", "goodness_of_fit", "anchor")
    if strategy == "mixed_excluding":
        assert words.startswith("lower bound on I(z; c)" if is_bound else "estimate of I(z; c)")
        assert ("plus up to log(H / (H - k))" in words) == on_grid
    else:
        assert words.endswith("not a bound on I(z; c)")


def test_a_step_without_rows_or_with_an_infinite_reading_says_so() -> None:
    record = {"estimator": "nwj", "strategy": "mixed", "num_negatives": 5, "steps": [1, 2], "directions": ["", ""]}
    record |= {"estimate_nats": [0.5, None], "standard_error_nats": [None, None], "reading": "words"}
    lines = readings_table([record]).splitlines()
    assert "5 negatives" in lines[0]
    assert lines[2].split() == ["1", "0.500", "+-", "n/a"]
    assert lines[3].split() == ["2", "n/a"]


@pytest.mark.parametrize("name", ["mine", "leave_one_out", "knn"])
def test_what_a_model_cannot_be_read_with(name: str) -> None:
    with pytest.raises(ValueError, match=f"estimators names '{name}': choose from info_nce"):
        check_readable(["tuba", name], Contrastive(anchor=True))


def test_the_mean_score_of_positives_needs_the_anchor() -> None:
    assert set(READABLE) - {"anchor"} == set(readable_from(Contrastive()))
    check_readable(READABLE, Contrastive(anchor=True))
    for loss in (Contrastive(), ClassTableLoss(ClassTable(4, 2), "full_softmax")):
        with pytest.raises(ValueError, match=r"'anchor', .* train with `loss.anchor`=true, or leave"):
            check_readable(["nwj", "anchor"], loss)


@pytest.mark.parametrize(("auxiliary", "ending"), [({}, "estimate of I(z; c)"), ({"mixed": 0.5}, "in-sequence cand")])
@pytest.mark.parametrize("protocol", [MEASURE, EvalProtocol("sequence_only", 2)])
def test_the_anchored_reading_is_the_mean_score_of_positives(
    protocol: EvalProtocol, auxiliary: dict[str, float], ending: str, generator: torch.Generator
) -> None:
    """Whatever the negatives of the protocol: those of training decide which ratio was learned."""
    torch.manual_seed(0)
    loss = Contrastive("mixed_excluding", auxiliary_negatives=auxiliary, anchor=True)
    model = CPC(VectorEncoder(3, 4), Identity(), Bilinear(2), loss)
    readings = HeldOutReadings(model, ["anchor"], {protocol: generator})
    scores: list[list[float]] = [[], []]
    for num in (3, 5):
        x = torch.randn(num, 6, 3, generator=generator)
        with torch.no_grad():
            output = model(x)
            readings(protocol, output, Batch.of(x))
        for k, queries in enumerate(output.queries[""].double(), 1):
            for b in range(num):
                scores[k - 1] += [float(queries[b, t] @ output.latents[b, t + k].double()) for t in range(6 - k)]
    record = readings.record(protocol, "anchor", "test")
    assert record["estimate_nats"] == pytest.approx([sum(each) / len(each) for each in scores], abs=1e-6)
    assert record["side"] == "neither"
    negatives = ", ".join(["mixed_excluding", *auxiliary])
    start = f"mean score of positives after training with negatives={negatives}: {ending}"
    assert record["reading"].startswith(start)
