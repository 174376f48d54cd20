"""`cpc calibrate`: measure every estimator on every task, over the reachable part of a grid of informations."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch

from cpc.bounds.calibration.training import (
    CRITICS,
    LEARNING_RATE,
    MOST_GRADIENT,
    Measured,
    measure_exact,
    train,
    trainable,
)
from cpc.bounds.critic_losses import DEFAULT_ANCHOR
from cpc.bounds.estimators import DEFAULT_ALPHA, DEFAULT_CLIP, DEFAULT_DECAY, ESTIMATORS
from cpc.bounds.gaussian import optimal_bound_nats
from cpc.bounds.tasks import DEFAULT_FREEDOM, TASKS, KnownPairs, make_task
from cpc.config.argument_rules import Choices, Count, Device, OutFolder, Positive, Range, Seed, checked
from cpc.data.store.atomic import finite, write_atomically, write_json
from cpc.data.tensors import find_device
from cpc.pages.report import Table

SCHEMA = 1
_NUM_STEPS = 300
EXACT = "exact"
CONSTANTS = {
    "learning_rate": LEARNING_RATE,
    "most_gradient_norm": MOST_GRADIENT,
    "interpolated_alpha": DEFAULT_ALPHA,
    "smile_clip": DEFAULT_CLIP,
    "mine_decay": DEFAULT_DECAY,
    "anchor_weight": DEFAULT_ANCHOR,
    "student_degrees_of_freedom": DEFAULT_FREEDOM,
}
Row = dict[str, Any]


@checked
def calibrate(
    out: OutFolder = "runs/calibration",
    *,
    tasks: Sequence[Annotated[str, Choices(tuple(TASKS))]] = tuple(TASKS),
    estimators: Sequence[Annotated[str, Choices(tuple(ESTIMATORS))]] = tuple(ESTIMATORS),
    critics: Sequence[Annotated[str, Choices((EXACT, *CRITICS))]] = (EXACT, "separable"),
    mi: Sequence[Positive] = (2.0, 4.0, 6.0, 8.0, 10.0),
    dim: Sequence[Count] = (20,),
    num_candidates: Sequence[Annotated[int, Range(2)]] = (129,),
    steps: Count | None = None,
    num_matrices: Annotated[int, Range(2)] = 100,
    seed: Seed = 0,
    device: Device = "auto",
) -> dict[str, Any]:
    """Measure, print a table, and write `calibration.json` and `calibration.png`.

    Args:
        out: folder for JSON and PNG.
        tasks: tasks with known information.
        estimators: estimators of information.
        critics: critics that score the pairs: exact, the log density ratio, or the networks separable, concatenated and
            bilinear, which are trained while the information rises from level to level.
        mi: true informations in nats.
        dim: dimensions (letters of the channel).
        num_candidates: N, pairs of each matrix, and of a training batch.
        steps: training steps at each information, for critics that are trained; 300 if not given.
        num_matrices: matrices for each bias and variance.
        seed: seed of pairs and weights.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.

    Returns:
        The content of the JSON file: the options, `constants`, `rows` (one per task, dim, N, critic, estimator and
        information), and descriptions of the points of the grid that were `left_out` and the trainings that
        `diverged`.

    Raises:
        ValueError: if a name is unknown, a number is out of range, no task reaches any point of the grid, or the device
            cannot be used.
    """
    device, start = find_device(device), time.monotonic()
    grid: dict[str, list[Any]] = {  # keys of the record, with distinct values
        "tasks": list(dict.fromkeys(tasks)),
        "estimators": list(dict.fromkeys(estimators)),
        "critics": list(dict.fromkeys(critics)),
        "dims": list(dict.fromkeys(dim)),
        "nums_candidates": list(dict.fromkeys(num_candidates)),
        "mi": sorted(set(mi)),
    }
    if steps is not None and not set(grid["critics"]) - {EXACT}:
        raise ValueError(f"`steps`={steps} applies only to critics that are trained, and exact is not")
    steps = _NUM_STEPS if steps is None else steps
    left_out: list[str] = []
    diverged: list[str] = []
    rows: list[Row] = []
    for name, num_dims in product(grid["tasks"], grid["dims"]):
        levels = _reachable(name, grid["mi"], num_dims, left_out)
        for size, critic in product(grid["nums_candidates"] if levels else (), grid["critics"]):
            setting = {"task": name, "dim": num_dims, "num_candidates": size, "critic": critic}
            measured = _measure(levels, critic, grid["estimators"], size, steps, num_matrices, seed, device, diverged)
            setting_rows = [finite(setting | row) for row in measured]
            if setting_rows:
                print(_table(setting, setting_rows), flush=True)
            rows += setting_rows
    if not rows:
        given = f"{', '.join(map(str, mi))} nats with the chosen `estimators` and `dim`"
        raise ValueError(f"the tasks {', '.join(tasks)} reach none of {given}; leave_one_out needs the exact critic")
    report = {
        "schema": SCHEMA,
        **grid,
        "steps": steps,
        "num_matrices": num_matrices,
        "seed": seed,
        "device": device,
        "seconds": round(time.monotonic() - start, 1),
        "constants": CONSTANTS,
        "left_out": left_out,
        "diverged": diverged,
        "rows": rows,
    }
    out = Path(out)
    with write_atomically(out / "calibration.png") as new:
        estimates_figure(rows).savefig(new, format="png")
    write_json(report, out / "calibration.json")
    print(f"{report['seconds']:.0f} s; written to {out / 'calibration.json'} and {out / 'calibration.png'}")
    return report


def _reachable(name: str, informations_nats: Sequence[float], dim: int, left_out: list[str]) -> list[KnownPairs]:
    levels = []
    for information in informations_nats:
        try:
            levels.append(make_task(name, information, dim))
        except ValueError as error:
            print(f"left out: {error}", flush=True)
            left_out.append(str(error))
    return levels


def _measure(
    tasks: Sequence[KnownPairs],
    critic: str,
    names: Sequence[str],
    num_candidates: int,
    num_steps: int,
    num_matrices: int,
    seed: int,
    device: str,
    diverged: list[str],
) -> list[Row]:
    """Return the results at each information, up to a divergence of training."""
    rows: list[Row] = []
    for group in [names] if critic == EXACT else trainable(names):
        if critic != EXACT:
            levels = train(tasks, group, critic, num_candidates, num_steps, num_matrices, seed, device)
        else:
            exact = partial(measure_exact, names=names, num_candidates=num_candidates, num_matrices=num_matrices)
            levels = (exact(task, generator=torch.Generator().manual_seed(seed), device=device) for task in tasks)
        try:
            for task, level in zip(tasks, levels, strict=True):
                rows += _rows(task.mutual_information_nats, level, num_candidates)  # kept also before a divergence
        except FloatingPointError as error:
            print(f"diverged: {error}; this and all higher levels are left out", flush=True)
            diverged.append(f"{critic} critic, N = {num_candidates}: {error}")
    return rows


def _rows(true_nats: float, level: dict[str, Measured], num_candidates: int) -> list[Row]:
    return [
        {
            "estimator": name,
            "side": ESTIMATORS[name].side,
            "true_nats": true_nats,
            **asdict(measured),
            "mi_ceiling_nats": math.log(num_candidates) if name == "info_nce" else None,
            "gaussian_optimum_nats": optimal_bound_nats(true_nats, num_candidates) if name == "info_nce" else None,
        }
        for name, measured in level.items()
    ]


def _table(setting: Row, rows: Sequence[Row]) -> Table:
    """Return a table of mean and standard deviation of an estimate, one line per estimator."""
    names, informations = (list(dict.fromkeys(row[key] for row in rows)) for key in ("estimator", "true_nats"))
    cells = {}
    for row in rows:
        spread = "not finite" if row["mean_nats"] is None else "{mean_nats:.4g} ({standard_deviation_nats:.2g})"
        cells[row["estimator"], row["true_nats"]] = spread.format(**row)
    lines = [[name, *(cells.get((name, each), "-") for each in informations), ESTIMATORS[name].side] for name in names]
    title = "{task}, D = {dim}, N = {num_candidates}, {critic} critic: mean (standard deviation) in nats"
    return Table(["true", *(f"{each:.2f}" for each in informations), ""], lines, title.format(**setting))


def estimates_figure(rows: Sequence[dict[str, Any]]) -> Any:
    """Return a matplotlib figure of the rows of calibration.json; a whisker is one standard deviation of an estimate.

    The dotted line is the truth, the dashed line the ceiling log N of InfoNCE.
    """
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys((row["task"], row["dim"], row["num_candidates"], row["critic"]) for row in rows))
    num_columns = math.ceil(math.sqrt(len(settings)))
    num_lines = math.ceil(len(settings) / num_columns)
    figure = Figure(figsize=(5.0 * num_columns, 4.0 * num_lines), layout="constrained")
    for index, setting in enumerate(settings, start=1):
        axes = figure.add_subplot(num_lines, num_columns, index)
        own = [row for row in rows if (row["task"], row["dim"], row["num_candidates"], row["critic"]) == setting]
        for name in dict.fromkeys(row["estimator"] for row in own):
            points = [row for row in own if row["estimator"] == name and row["mean_nats"] is not None]
            values = ([row[key] for row in points] for key in ("true_nats", "mean_nats", "standard_deviation_nats"))
            x, y, deviations = values
            axes.errorbar(x, y, deviations, label=name, marker="o", markersize=3, linewidth=1)
        truths = sorted({row["true_nats"] for row in own})
        axes.plot(truths, truths, color="grey", linestyle=":", label="truth")
        axes.axhline(math.log(setting[2]), color="grey", linestyle="--", label="log N")
        task, dim, num_candidates, critic = setting
        axes.set(title=f"{task}, D = {dim}, N = {num_candidates}, {critic} critic", ylim=(-0.5, 1.5 * truths[-1]))
        axes.set(xlabel="true information (nats)", ylabel="estimate (nats)")
    figure.axes[0].legend(fontsize="small")
    return figure
