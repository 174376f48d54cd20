"""`cpc agent`: the same agent with and without the CPC loss, over several seeds."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from cpc.agents.environments import Environment
from cpc.agents.training import A2C, train_agent
from cpc.config.argument_rules import Count, NonNegative, checked
from cpc.config.yaml_rules import read_yaml
from cpc.data.figure_text import figure_text
from cpc.data.store.atomic import write_atomically, write_json
from cpc.data.store.records import read_records
from cpc.data.store.untrusted import read_limited_yaml
from cpc.pretraining.run_folder import lock_run

SCHEMA = 1
FINAL_SHARE = 0.1  # of the steps, whose mean return is the final one
SMOOTHED_RECORDS = 5  # whose mean return must reach the threshold
CONFIDENCE = 0.95
SECTIONS = ("model", "environment", "a2c")


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

    A call that was interrupted goes on where it was; runs that ended are not run again. `cpc monitor` shows them.

    Args:
        config: a YAML file with `model` (encoder, context, predictor, loss), `environment` and `a2c`.
        run_dir: every run is a folder in it; the comparison is written beside them.
        num_seeds: of each weight.
        cpc_weights: of the CPC loss; 0 and that of the config if not given.
        num_steps: of each run, in all its environments together; that of the config if not given.
        threshold: a return; how soon it is reached is compared too.
        trusted_packages: packages whose classes the config may name.

    Returns:
        What is written: by weight the final return of every seed and its steps to the threshold, their means and
        intervals, and how both differ from those of the first weight.

    Raises:
        ValueError: on a config that cannot be used, runs of other settings in the folder, or another process that
            trains there.
    """
    run_dir, (architecture, environment, a2c) = Path(run_dir), read_config(Path(config))
    a2c = a2c if num_steps is None else replace(a2c, num_steps=num_steps)
    weights = tuple(dict.fromkeys((0.0, a2c.cpc_weight) if cpc_weights is None else cpc_weights))
    folders = {
        weight: [run_dir / f"cpc_{weight:g}" / f"seed_{seed}" for seed in range(num_seeds)] for weight in weights
    }
    with lock_run(run_dir):
        for seed in range(num_seeds):
            for weight in weights:
                of_arm = replace(a2c, cpc_weight=weight)
                train_agent(folders[weight][seed], architecture, environment, of_arm, seed, tuple(trusted_packages))
    curves = {weight: [_curve(folder) for folder in of_weight] for weight, of_weight in folders.items()}
    summaries = {f"{weight:g}": _summary(each, a2c.num_steps, threshold) for weight, each in curves.items()}
    compared = {
        "schema": SCHEMA,
        "config": str(config),
        "environment": environment.name,
        "num_steps": a2c.num_steps,
        "num_seeds": num_seeds,
        "threshold": threshold,
        "confidence": CONFIDENCE,
        "by_cpc_weight": summaries,
        "differences": _differences(summaries, a2c.num_steps),
    }
    table = _table(compared)
    with write_atomically(run_dir / "comparison.png") as new:
        _picture(curves, a2c.num_steps, environment.name).savefig(new, format="png")
    write_json(compared, run_dir / "comparison.json")
    print(table)
    print(f"written to {run_dir / 'comparison.json'} and comparison.png")
    return compared


def read_config(path: Path) -> tuple[dict[str, Any], Environment, A2C]:
    """The architecture of the model, the environment and how it is played.

    Raises:
        ValueError: naming what cannot be used.
    """
    if not path.exists():
        raise ValueError(f"there is no config {path}")
    read_limited_yaml(path)  # before one without limits
    found = read_yaml(path)
    if not isinstance(found, dict) or set(found) != set(SECTIONS):
        raise ValueError(f"{path} must have the sections {', '.join(SECTIONS)}, and no others")
    for section, kind in (("environment", Environment), ("a2c", A2C)):
        legal = [field.name for field in fields(kind)]
        unknown = [name for name in found[section] if name not in legal]
        if unknown:
            raise ValueError(f"{path}: {section}.{unknown[0]} is not one of {', '.join(legal)}")
    if "name" not in found["environment"]:
        raise ValueError(f"{path}: environment.name must name a Gymnasium environment")
    architecture = {"class_path": "cpc.model.CPC", "init_args": found["model"]}
    kinds = {field.name: type(field.default) for field in fields(A2C)}
    try:
        a2c = {name: kinds[name](str(value)) for name, value in found["a2c"].items()}  # YAML reads 7e-4 as text
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: a2c must hold numbers: {error}") from error
    return architecture, Environment(**found["environment"]), A2C(**a2c)


def _curve(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """`[n]` steps and mean returns of a run's records."""
    records = read_records(folder / "returns.jsonl")
    return np.array([r["step"] for r in records]), np.array([r["mean_return"] for r in records], float)


def _summary(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], num_steps: int, threshold: float | None
) -> dict[str, Any]:
    """Over the seeds of a weight."""
    final = []
    for steps, returns in curves:
        last = returns[steps > (1 - FINAL_SHARE) * num_steps]
        if not len(last):
            raise ValueError(f"no episode ended in the last {FINAL_SHARE:.0%} of {num_steps} steps: raise num_steps")
        final.append(float(last.mean()))
    found: dict[str, Any] = {"final_returns": final, "mean_final_return": float(np.mean(final))}
    found |= {"interval": _interval(final), "steps_to_threshold": None}
    if threshold is not None:
        found["steps_to_threshold"] = [_steps_to(threshold, *curve) for curve in curves]
        of_seeds = _restricted(found, num_steps)
        found |= {"mean_steps_to_threshold": float(np.mean(of_seeds)), "interval_of_steps": _interval(of_seeds)}
    return found


def _differences(summaries: dict[str, dict[str, Any]], num_steps: int) -> dict[str, dict[str, Any]]:
    """Of each weight from the first, seed by seed: a seed's runs begin with equal weights and equal episodes."""
    (_, first), *others = summaries.items()
    found: dict[str, dict[str, Any]] = {}
    for weight, summary in others:
        of_weight = {"final_return": np.subtract(summary["final_returns"], first["final_returns"])}
        if first["steps_to_threshold"] is not None:
            of_weight["steps_to_threshold"] = np.subtract(
                _restricted(summary, num_steps), _restricted(first, num_steps)
            )
        found[weight] = {name: _difference(each) for name, each in of_weight.items()}
    return found


def _difference(of_seeds: np.ndarray) -> dict[str, Any]:
    """Resolved: its interval leaves zero out."""
    interval = _interval(of_seeds)
    is_resolved = None if interval is None else not interval[0] <= 0 <= interval[1]
    return {"mean": float(of_seeds.mean()), "interval": interval, "is_resolved": is_resolved}


def _restricted(summary: dict[str, Any], num_steps: int) -> list[int]:
    """Steps to the threshold, all the steps where it was never reached: the mean is then a lower limit of the true."""
    return [num_steps if each is None else each for each in summary["steps_to_threshold"]]


def _interval(values: Sequence[float] | Sequence[int] | np.ndarray) -> list[float] | None:
    """Of their mean; None of one."""
    half = _half_interval(np.asarray(values, float))
    return None if np.isnan(half) else [float(np.mean(values) - half), float(np.mean(values) + half)]


def _half_interval(values: np.ndarray) -> float:
    """Of Student's t over seeds; NaN of one."""
    num = len(values)
    if num < 2:
        return float("nan")
    return float(student.ppf((1 + CONFIDENCE) / 2, num - 1) * values.std(ddof=1) / num**0.5)


def _steps_to(threshold: float, steps: np.ndarray, returns: np.ndarray) -> int | None:
    """Where the mean of some records in a row first reaches the threshold; None: never."""
    if len(returns) < SMOOTHED_RECORDS:
        return None
    smooth = np.convolve(returns, np.full(SMOOTHED_RECORDS, 1 / SMOOTHED_RECORDS), "valid")
    over = np.flatnonzero(smooth >= threshold)
    return int(steps[over[0] + SMOOTHED_RECORDS - 1]) if len(over) else None


def _table(compared: dict[str, Any]) -> str:
    lines = [
        f"{compared['environment']}, {compared['num_steps']} steps, {compared['num_seeds']} seeds: mean return of the "
        f"last {FINAL_SHARE:.0%} of the steps",
        f"{'weight of CPC':>14} {'return':>9} {'95 % interval':>20} {'steps to threshold':>20} {'95 % interval':>20} "
        f"{'reached':>8}",
    ]
    for weight, found in compared["by_cpc_weight"].items():
        line = f"{weight:>14} {found['mean_final_return']:>9.2f} {_range(found['interval'], '.2f'):>20}"
        if found["steps_to_threshold"] is not None:
            num_reached = sum(each is not None for each in found["steps_to_threshold"])
            is_limit = num_reached < compared["num_seeds"]
            steps = f"{'>= ' if is_limit else ''}{found['mean_steps_to_threshold']:.0f}"
            reached = f"{num_reached} of {compared['num_seeds']}"
            line += f" {steps:>20} {_range(found['interval_of_steps'], '.0f'):>20} {reached:>8}"
        lines.append(line)
    first = next(iter(compared["by_cpc_weight"]))
    for weight, differences in compared["differences"].items():
        for name, found in differences.items():
            verdict = {
                None: "one seed tells nothing about the difference",
                False: "the difference is not resolved: neutral",
                True: "the difference is resolved",
            }[found["is_resolved"]]
            form = "+.2f" if name == "final_return" else "+.0f"
            lines.append(
                f"{name.replace('_', ' ')}, weight {weight} less weight {first}: {found['mean']:{form}} "
                f"({_range(found['interval'], form)}): {verdict}"
            )
    return "\n".join(lines)


def _range(interval: list[float] | None, form: str) -> str:
    return "-" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def _picture(curves: dict[float, list[tuple[np.ndarray, np.ndarray]]], num_steps: int, title: str) -> Any:
    """A `matplotlib.figure.Figure`: mean return over the seeds of each weight, and its interval as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    at = np.linspace(0, num_steps, 101)[1:]
    for weight, of_seeds in curves.items():
        values = np.stack([np.interp(at, steps, returns) for steps, returns in of_seeds])
        mean, half = values.mean(0), np.nan_to_num([_half_interval(column) for column in values.T])
        line = axes.plot(at, mean, label=f"weight of CPC {weight:g}")[0]
        axes.fill_between(at, mean - half, mean + half, alpha=0.2, color=line.get_color())
    axes.set(title=figure_text(title), xlabel="steps", ylabel=f"mean return, {CONFIDENCE:.0%} interval over seeds")
    axes.legend()
    axes.grid(axis="y")
    return figure
