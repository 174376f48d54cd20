"""`cpc agent`: the same agent with and without the CPC loss, over several seeds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentError, ArgumentParser
from scipy.stats import t as student

from cpc.agents.environments import Environment
from cpc.agents.training import A2C, train_agent
from cpc.config.argument_rules import Count, NonNegative, Range, checked
from cpc.data.figure_text import figure_text
from cpc.data.store.atomic import read_records, write_atomically, write_json
from cpc.data.store.untrusted import read_yaml
from cpc.pages.report import Table
from cpc.pretraining.run_lock import lock_run

SCHEMA = 1
FINAL_SHARE = 0.1  # the final return is the mean return over this share of the steps, at the end
SMOOTHED_RECORDS = 5  # number of consecutive records whose mean return must reach the threshold
CONFIDENCE = 0.95
VERDICTS = {
    None: "the difference cannot be resolved with one seed",
    False: "the difference is not resolved: neutral",
    True: "the difference is resolved",
}


@checked
def train_agents(
    config: str | Path,
    *,
    run_dir: str | Path,
    num_seeds: Count = 5,
    cpc_weights: Sequence[NonNegative] | None = None,
    num_steps: Count | None = None,
    threshold: float | None = None,
    trusted_packages: Sequence[str] = ("cpc",),
) -> dict[str, Any]:
    """Train an agent for every weight of the CPC loss and every seed, one after the other, and compare their returns.

    An interrupted call continues when it is repeated; finished runs are not run again. `cpc monitor` shows the runs.

    Args:
        config: a YAML file with `model` (encoder, context, predictor, loss), `environment` and `a2c`.
        run_dir: folder for the folders of the runs and for the comparison.
        num_seeds: number of seeds for each weight.
        cpc_weights: weights of the CPC loss; if not given, 0 and the weight in the config.
        num_steps: steps of each run, summed over its environments; if not given, the number in the config.
        threshold: a return; the numbers of steps until it is reached are also compared.
        trusted_packages: packages whose classes the config may name.

    Returns:
        The content of `comparison.json`: for each weight the final return and the steps to the threshold of every
        seed, their means and intervals, and their differences from the first weight.

    Raises:
        ValueError: if the config cannot be used, the folder holds runs with other settings, or another process trains
            in it.
    """
    run_dir, (architecture, environment, a2c) = Path(run_dir), read_config(Path(config))
    a2c = replace(a2c, num_steps=num_steps or a2c.num_steps)
    weights = tuple(dict.fromkeys((0.0, a2c.cpc_weight) if cpc_weights is None else cpc_weights))
    folders = {
        weight: [run_dir / f"cpc_{weight:g}" / f"seed_{seed}" for seed in range(num_seeds)] for weight in weights
    }
    with lock_run(run_dir):
        for seed in range(num_seeds):
            for weight in weights:
                weighted = replace(a2c, cpc_weight=weight)
                train_agent(folders[weight][seed], architecture, environment, weighted, seed, tuple(trusted_packages))
    curves = {weight: [_curve(folder) for folder in seed_folders] for weight, seed_folders in folders.items()}
    summaries = {f"{w:g}": _summary(seed_curves, a2c.num_steps, threshold) for w, seed_curves in curves.items()}
    comparison = {"schema": SCHEMA, "config": str(config), "environment": environment.name}
    comparison |= {"num_steps": a2c.num_steps, "num_seeds": num_seeds, "threshold": threshold, "confidence": CONFIDENCE}
    comparison |= {"by_cpc_weight": summaries, "differences": _differences(summaries, a2c.num_steps)}
    with write_atomically(run_dir / "comparison.png") as new:
        _figure(curves, a2c.num_steps, environment.name).savefig(new, format="png")
    write_json(comparison, run_dir / "comparison.json")
    print(f"{_table(comparison)}\nwritten to {run_dir / 'comparison.json'} and comparison.png")
    return comparison


def read_config(path: Path) -> tuple[dict[str, Any], Environment, A2C]:
    """Read the model, the environment and the options of training; a setting that cannot be used is a ValueError."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=dict, required=True)
    parser.add_class_arguments(Environment, "environment")
    parser.add_class_arguments(A2C, "a2c")
    try:
        config = parser.parse_object(read_yaml(path))
    except (ArgumentError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
    architecture = {"class_path": "cpc.model.CPC", "init_args": config.model}
    return architecture, Environment(**vars(config.environment)), A2C(**vars(config.a2c))


def _curve(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and mean returns of a run's records, each `[n]`."""
    records = read_records(folder / "returns.jsonl")
    return np.array([r["step"] for r in records]), np.array([r["mean_return"] for r in records], float)


def _summary(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], num_steps: int, threshold: float | None
) -> dict[str, Any]:
    """Return final returns and steps to the threshold of the seeds of one weight, with means and intervals."""
    final = []
    for record_steps, returns in curves:
        last = returns[record_steps > (1 - FINAL_SHARE) * num_steps]
        Range(1).check(f"the number of records in the last {FINAL_SHARE:.0%} of `num_steps`", len(last))
        final.append(float(last.mean()))
    summary: dict[str, Any] = {"final_returns": final, "mean_final_return": float(np.mean(final))}
    summary |= {"interval": _interval(final), "steps_to_threshold": None}
    if threshold is not None:
        summary["steps_to_threshold"] = [_steps_to_threshold(threshold, *curve) for curve in curves]
        steps = _censored_steps(summary, num_steps)
        summary |= {"mean_steps_to_threshold": float(np.mean(steps)), "interval_of_steps": _interval(steps)}
    return summary


def _differences(summaries: dict[str, dict[str, Any]], num_steps: int) -> dict[str, dict[str, Any]]:
    """Return the differences of each weight from the first, paired by seed: weights and episodes begin equal."""
    (_, first), *others = summaries.items()
    differences: dict[str, dict[str, Any]] = {}
    for weight, summary in others:
        differences[weight] = {"final_return": _difference(summary["final_returns"], first["final_returns"])}
        if first["steps_to_threshold"] is not None:
            steps = _difference(_censored_steps(summary, num_steps), _censored_steps(first, num_steps))
            differences[weight]["steps_to_threshold"] = steps
    return differences


def _difference(values: Sequence[int | float], first: Sequence[int | float]) -> dict[str, Any]:
    """Return mean and interval of a difference. The difference is resolved if the interval excludes zero."""
    differences = np.subtract(values, first)
    interval = _interval(differences)
    is_resolved = None if interval is None else not interval[0] <= 0 <= interval[1]
    return {"mean": float(differences.mean()), "interval": interval, "is_resolved": is_resolved}


def _censored_steps(summary: dict[str, Any], num_steps: int) -> list[int]:
    """Return the steps to the threshold; `num_steps` if it was never reached, so that the mean is a lower limit."""
    return [num_steps if steps is None else steps for steps in summary["steps_to_threshold"]]


def _interval(values: Sequence[float] | Sequence[int] | np.ndarray) -> list[float] | None:
    """Return the confidence interval of the mean by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    mean, half = float(np.mean(values)), float(_half_interval(np.asarray(values, float)))
    return [mean - half, mean + half]


def _half_interval(values: np.ndarray) -> np.ndarray:
    """Return half the width of the interval over the first axis, which has at least two values."""
    num = len(values)
    return np.asarray(student.ppf((1 + CONFIDENCE) / 2, num - 1) * values.std(0, ddof=1) / num**0.5)


def _steps_to_threshold(threshold: float, steps: np.ndarray, returns: np.ndarray) -> int | None:
    """Return the step at which the mean of consecutive records first reaches the threshold; None: never."""
    if len(returns) < SMOOTHED_RECORDS:
        return None
    smooth = np.convolve(returns, np.full(SMOOTHED_RECORDS, 1 / SMOOTHED_RECORDS), "valid")
    reached = np.flatnonzero(smooth >= threshold)
    return int(steps[reached[0] + SMOOTHED_RECORDS - 1]) if len(reached) else None


def _table(comparison: dict[str, Any]) -> Table:
    num_seeds, rows, notes = comparison["num_seeds"], list[list[str]](), list[str]()
    for weight, summary in comparison["by_cpc_weight"].items():
        row = [weight, f"{summary['mean_final_return']:.2f}", _range(summary["interval"], ".2f"), "", "", ""]
        if summary["steps_to_threshold"] is not None:
            num_reached = sum(steps is not None for steps in summary["steps_to_threshold"])
            mean_steps = f"{'>= ' * (num_reached < num_seeds)}{summary['mean_steps_to_threshold']:.0f}"
            row[3:] = mean_steps, _range(summary["interval_of_steps"], ".0f"), f"{num_reached} of {num_seeds}"
        rows.append(row)
    first = next(iter(comparison["by_cpc_weight"]))
    for weight, differences in comparison["differences"].items():
        for name, difference in differences.items():
            form = "+.2f" if name == "final_return" else "+.0f"
            change = f"{difference['mean']:{form}} ({_range(difference['interval'], form)})"
            label = f"{name.replace('_', ' ')}, weight {weight} minus weight {first}"
            notes.append(f"{label}: {change}: {VERDICTS[difference['is_resolved']]}")
    header = ["weight of CPC", "return", "95 % interval", "steps to threshold", "95 % interval", "reached"]
    title = f"{comparison['environment']}, {comparison['num_steps']} steps, {num_seeds} seeds: mean return of the last "
    return Table(header, rows, f"{title}{FINAL_SHARE:.0%} of the steps", notes)


def _range(interval: list[float] | None, form: str) -> str:
    return "-" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def _figure(curves: dict[float, list[tuple[np.ndarray, np.ndarray]]], num_steps: int, title: str) -> Any:
    """Plot the mean return over the seeds of each weight, with its interval as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(0, num_steps, 101)[1:]
    for weight, seed_curves in curves.items():
        values = np.stack([np.interp(grid, steps, returns) for steps, returns in seed_curves])
        mean, half = values.mean(0), _half_interval(values) if len(values) > 1 else 0.0
        line = axes.plot(grid, mean, label=f"weight of CPC {weight:g}")[0]
        axes.fill_between(grid, mean - half, mean + half, alpha=0.2, color=line.get_color())
    axes.set(title=figure_text(title), xlabel="steps", ylabel=f"mean return, {CONFIDENCE:.0%} interval over seeds")
    axes.legend()
    axes.grid(axis="y")
    return figure
