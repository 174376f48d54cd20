"""The figure shows the measured values."""

import math

from cpc.bounds.calibration.calibrate import estimates_figure


def a_row(critic: str, estimator: str, true_nats: float, mean: float | None) -> dict:
    row = {"task": "gaussian", "dim": 20, "num_candidates": 16, "critic": critic, "estimator": estimator}
    return row | {"true_nats": true_nats, "mean_nats": mean, "standard_deviation_nats": 0.5}


def test_each_setting_is_a_panel_with_its_estimates_the_truth_and_the_ceiling() -> None:
    rows = [a_row("exact", "info_nce", 2.0, 1.5), a_row("exact", "info_nce", 4.0, 2.0), a_row("exact", "dv", 2.0, None)]
    exact, trained = estimates_figure([*rows, a_row("separable", "nwj", 2.0, 1.3)]).axes
    assert [axes.get_title() for axes in (exact, trained)] == [
        f"gaussian, D = 20, N = 16, {critic} critic" for critic in ("exact", "separable")
    ]
    lines = {tuple(map(float, line.get_ydata())) for line in exact.get_lines()}
    assert {(1.5, 2.0), (2.0, 4.0), (math.log(16),) * 2} <= lines
    assert {text.get_text() for text in exact.get_legend().get_texts()} >= {"info_nce", "truth", "log N"}
