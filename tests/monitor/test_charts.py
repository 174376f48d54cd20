"""Which records a chart draws, decoded from the figure, against the records themselves."""

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from benchmarks.synthetic_runs import NUM_CANDIDATES, bound_record, write_run
from cpc.data.store.atomic import append_record, read_records
from cpc.monitor.charts import NAMES, charts
from cpc.monitor.figure import Chart
from cpc.monitor.library import Library
from cpc.monitor.view import MAX_POINTS, View


def drawn(library: Library, **settings: Any) -> dict[str, Chart]:
    names = settings.pop("runs", tuple(library.runs))
    view = View(**({"focus": names[0] if names else None} | settings))
    found = charts([library.runs[name] for name in names], view)
    assert tuple(chart.name for chart in found) == NAMES
    json.dumps([chart.figure for chart in found], allow_nan=False)  # what a browser can read
    return {chart.name: chart for chart in found}


def decoded(array: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["bdata"]), f"<{array['dtype']}")


def lines(chart: Chart) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        trace["name"]: (decoded(trace["x"]), decoded(trace["y"]))
        for trace in chart.figure["data"]
        if "fill" not in trace
    }


def run_records(library: Library, name: str, split: str = "train", strategy: str = "mixed") -> list[dict[str, Any]]:
    records = read_records(library.runs[name].folder / "bound.jsonl")
    return [record for record in records if (record["split"], record["strategy"]) == (split, strategy)]


def test_the_bound_is_the_mean_over_k_with_its_ceiling_and_band(library: Library) -> None:
    chart = drawn(library)["bound"]
    records = run_records(library, "first")
    x, y = lines(chart)["first"]
    assert x.tolist() == [record["step"] for record in records]
    np.testing.assert_allclose(y, [np.mean(record["mi_bound_nats"]) for record in records], rtol=1e-5)
    assert set(lines(chart)) == {"first", "deeper/second", "ceiling log N = 4.85"}
    np.testing.assert_allclose(lines(chart)["ceiling log N = 4.85"][1], math.log(NUM_CANDIDATES), rtol=1e-6)
    band = next(trace for trace in chart.figure["data"] if trace["name"] == "first, standard error")
    upper, lower = np.split(decoded(band["y"]), 2)
    np.testing.assert_allclose(upper - y, 0.05, atol=1e-6)
    np.testing.assert_allclose(y - lower[::-1], 0.05, atol=1e-6)
    assert "an estimate, not a bound" in chart.caption


def test_bits_are_nats_over_ln_2(library: Library) -> None:
    nats, bits = drawn(library), drawn(library, unit="bits")
    for name in ("bound", "steps", "loss", "information"):
        for (_, y), (_, z) in zip(lines(nats[name]).values(), lines(bits[name]).values(), strict=True):
            np.testing.assert_allclose(z, y / math.log(2), rtol=1e-5)
    assert lines(nats["accuracy"])["first"][1].tolist() == lines(bits["accuracy"])["first"][1].tolist()
    assert bits["bound"].figure["layout"]["yaxis"]["title"]["text"] == "log N - L (bits)"


def test_steps_are_lines_and_rows_of_the_heat_map(library: Library) -> None:
    found = drawn(library, focus="deeper/second")
    records = run_records(library, "deeper/second")
    bounds = np.array([record["mi_bound_nats"] for record in records])
    for k in range(4):
        np.testing.assert_allclose(lines(found["steps"])[f"k = {k + 1}"][1], bounds[:, k], rtol=1e-5)
    (cells,) = found["heat"].figure["data"]
    assert cells["y"] == ["k = 1", "k = 2", "k = 3", "k = 4"]
    np.testing.assert_allclose(np.array(cells["z"]), bounds.T, atol=1e-4)
    assert found["heat"].table.rows[0][0] == "k = 1"


def test_steps_with_gaps_keep_their_names(library: Library) -> None:
    path, steps = library.runs["first"].folder / "bound.jsonl", [1, 3, 9, 14]
    records = [json.loads(line) | {"steps": steps} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    library.runs["first"].refresh()
    found, labels = drawn(library, focus="first"), [f"k = {k}" for k in steps]
    assert found["heat"].figure["data"][0]["y"] == labels
    assert lines(found["steps"])["k = 9"][1][-1] == pytest.approx(records[-3]["mi_bound_nats"][2], rel=1e-5)
    assert all(trace["x"] == labels for trace in found["profile"].figure["data"])


def test_the_profile_has_ceilings_and_what_gaussians_would_hold(library: Library) -> None:
    run = library.runs["first"]
    changes = {"strategy": "mixed_excluding", "information_for_gaussians_nats": [5.0, None, 2.5, 1.1]}
    record = bound_record(2050, "valid", 4, level=0.9, **changes)
    append_record(run.folder / "bound.jsonl", record)
    run.refresh()
    chart = drawn(library, focus="first", unit="bits", x_range=(100.0, 200.0), log=["x"])["profile"]
    by_name = {trace["name"]: trace for trace in chart.figure["data"]}
    curves = ["train mixed", "valid mixed", "valid mixed_excluding"]
    ceilings = [f"{curve}: ceiling" for curve in curves]
    assert set(by_name) == {*curves, *ceilings, "valid mixed_excluding: Gaussians"}
    np.testing.assert_allclose(np.array(by_name[curves[2]]["y"]) * math.log(2), record["mi_bound_nats"])
    np.testing.assert_allclose(np.array(by_name[ceilings[0]]["y"]) * math.log(2), math.log(NUM_CANDIDATES))
    gaussian_information = by_name["valid mixed_excluding: Gaussians"]["y"]
    assert gaussian_information[1] is None
    assert gaussian_information[0] == pytest.approx(5 / math.log(2))
    axis = chart.figure["layout"]["xaxis"]
    assert (axis["type"], axis["fixedrange"]) == ("category", True)
    assert "range" not in axis
    assert chart.table.rows[1][0] == "k = 2"
    assert chart.table.rows[1][chart.table.header.index("valid mixed_excluding: Gaussians")] == "n/a"


def test_held_out_records_and_other_strategies(library: Library) -> None:
    found = drawn(library, split="held-out", strategy="mixed_excluding")["bound"]
    records = run_records(library, "first", "valid", "mixed_excluding")
    assert lines(found)["first"][0].tolist() == [record["step"] for record in records] == [500, 1000, 1500, 2000]
    np.testing.assert_allclose(lines(found)["first"][1][-1], np.mean(records[-1]["mi_bound_nats"]), rtol=1e-5)
    as_trained = drawn(library, split="held-out")["bound"]
    last = run_records(library, "first", "valid")[-1]
    np.testing.assert_allclose(lines(as_trained)["first"][1][-1], np.mean(last["mi_bound_nats"]), rtol=1e-5)
    assert drawn(library, strategy="sequence_only")["bound"].is_empty


def test_accuracy_has_chance_and_probes_have_their_references(library: Library) -> None:
    found = drawn(library, runs=("first",))
    np.testing.assert_allclose(lines(found["accuracy"])["chance 1/N = 0.781 %"][1], 100 / NUM_CANDIDATES, rtol=1e-5)
    probe = lines(found["probe"])
    np.testing.assert_allclose(probe["majority = 12 %"][1], 12, rtol=1e-5)
    information = lines(found["information"])
    np.testing.assert_allclose(information["H(Y) = 3.4"][1], 3.4, rtol=1e-5)
    np.testing.assert_allclose(information["first: phones from c"][1][-1], 2 * (1 - math.exp(-4)), rtol=1e-5)
    assert set(lines(found["rank"])) == {"first: z", "first: c"}


def test_smoothing_averages_neighbours_and_leaves_ceilings_alone(library: Library) -> None:
    raw, smooth = drawn(library)["bound"], drawn(library, smoothing=5)["bound"]
    expected = lines(raw)["first"][1][8:13].astype(float).mean()
    np.testing.assert_allclose(lines(smooth)["first"][1][10], expected, rtol=1e-5)
    assert not [trace for trace in smooth.figure["data"] if "fill" in trace]  # their error is not that of a mean
    ceiling = "ceiling log N = 4.85"
    assert lines(smooth)[ceiling][1].tolist() == lines(raw)[ceiling][1].tolist()


def test_the_range_in_view_is_drawn_with_a_neighbour_at_each_end(library: Library) -> None:
    chart = drawn(library, x_range=(500.0, 700.0))["bound"]
    assert lines(chart)["first"][0].tolist() == [450, 500, 550, 600, 650, 700, 750]
    assert chart.figure["layout"]["xaxis"]["range"] == [500.0, 700.0]
    log = drawn(library, x_range=(100.0, 1000.0), log=["x"])["bound"].figure["layout"]["xaxis"]
    assert (log["type"], log["range"]) == ("log", [2.0, 3.0])
    # A zoom between two records draws the line through it, and hides nothing.
    found = drawn(library, x_range=(510.0, 520.0))
    assert lines(found["bound"])["first"][0].tolist() == [500, 550]
    assert lines(found["steps"])["k = 1"][0].tolist() == [500, 550]
    assert [name for name, chart in found.items() if chart.is_empty] == ["return"]  # no agent
    beyond = drawn(library, x_range=(9000.0, 9100.0))
    assert lines(beyond["bound"])["first"][0].tolist() == []
    assert [name for name, chart in beyond.items() if chart.is_empty] == ["return"]


def test_what_is_last_is_the_last_record_whatever_is_in_view(library: Library) -> None:
    records = run_records(library, "first")
    last = f"{np.mean(records[-1]['mi_bound_nats']):.4g}"
    for settings in ({}, {"x_range": (100.0, 200.0)}, {"smoothing": 21}, {"x_range": (9000.0, 9100.0)}):
        chart = drawn(library, runs=("first",), **settings)["bound"]
        assert chart.table.rows[0][1:3] == ["2000", last]
        assert f"At the end: first: {last};" in chart.alt
    zoomed = drawn(library, runs=("first",), x_range=(100.0, 200.0), smoothing=5)
    assert zoomed["bound"].table.header[3] == "lowest (in view, smoothed)"
    assert zoomed["heat"].table.rows[3][1:3] == ["2000", f"{records[-1]['mi_bound_nats'][3]:.4g}"]


def test_only_positive_quantities_take_a_logarithmic_axis(library: Library) -> None:
    found = drawn(library, log=["y"])
    kinds = {name: chart.figure["layout"]["yaxis"]["type"] for name, chart in found.items()}
    assert {name for name in kinds if kinds[name] == "log"} == {*"loss rank variance gradient speed rate".split()}


def test_the_table_holds_ends_extremes_and_values_on_the_way(library: Library) -> None:
    chart = drawn(library, runs=("first",))["loss"]
    records = run_records(library, "first")
    losses = [float(np.mean(record["loss_nats"])) for record in records]
    (row,) = chart.table.rows
    cells = dict(zip(chart.table.header, row, strict=True))
    assert (cells["curve"], cells["last step"]) == ("first", "2000")
    assert float(cells["last"]) == pytest.approx(losses[-1], rel=1e-3)
    assert float(cells["highest (in view)"]) == pytest.approx(max(losses), rel=1e-3)
    assert float(cells["step 440"]) == pytest.approx(losses[7], rel=1e-3)  # of step 400, the last before


def test_many_long_runs_stay_few_points_and_keep_their_spikes(tmp_path: Path, read: Callable[..., Library]) -> None:
    write_run(tmp_path / "spiky", num_records=3000)
    spike = bound_record(150_050, loss_nats=[9.0] * 4)
    for record in (spike, *(bound_record(step) for step in range(150_100, 151_000, 50))):
        append_record(tmp_path / "spiky" / "bound.jsonl", record)
    (line,) = lines(drawn(read(tmp_path))["loss"]).values()
    assert len(line[0]) < MAX_POINTS / 10
    assert line[1].max() == 9


def test_names_cannot_smuggle_markup_and_nothing_to_draw_is_empty(tmp_path: Path, read: Callable[..., Library]) -> None:
    write_run(tmp_path / "<img src=x>")
    library = read(tmp_path)
    assert "&lt;img src=x&gt;" in lines(drawn(library)["bound"])
    assert all(chart.is_empty for chart in drawn(library, runs=()).values())


def test_curves_of_different_strategies_say_which_is_which(library: Library) -> None:
    other = bound_record(2050, strategy="mixed_excluding", reading="a lower bound")
    append_record(library.runs["first"].folder / "bound.jsonl", other)
    library.read_all()
    found = drawn(library)
    for name in ("bound", "loss", "accuracy"):
        assert {"first (mixed_excluding)", "deeper/second (mixed)"} <= set(lines(found[name]))
    assert [row[0] for row in found["bound"].table.rows][:2] == ["deeper/second (mixed)", "first (mixed_excluding)"]
    assert "negatives mixed_excluding (first): a lower bound." in found["bound"].caption
    assert "negatives mixed (deeper/second): an estimate, not a bound." in found["bound"].caption
    assert "first (" not in " ".join(lines(drawn(library, runs=("first",))["bound"]))


def test_a_run_keeps_its_colour(library: Library) -> None:
    both, alone = (
        {trace["name"]: trace["line"]["color"] for trace in drawn(library, runs=runs)["loss"].figure["data"]}
        for runs in (tuple(library.runs), ("first",))
    )
    assert alone["first"] == both["first"]
    assert len(set(both.values())) == 2
