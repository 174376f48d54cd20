"""Our A2C without CPC against Stable-Baselines3's on CartPole-v1: same hyperparameters, steps and seeds.

uv run --extra agents --with stable-baselines3 python -m benchmarks.agents [--seeds 5] [--steps 60000]

Both have the hyperparameters of configs/agents/cart_pole.yaml. What differs is the network: a GRU that policy and value
share here, two layers of 64 for each of them there. Returns are those of episodes that end in the last tenth of steps.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from scipy.stats import ttest_ind

from benchmarks.machine import machine_state
from cpc.agents.comparison import CONFIDENCE, FINAL_SHARE, read_config, train_agents
from cpc.agents.training import A2C

CONFIG = Path(__file__).parents[1] / "configs" / "agents" / "cart_pole.yaml"


def ours(a2c: A2C, num_seeds: int) -> list[float]:
    """The final return of each seed."""
    with tempfile.TemporaryDirectory() as folder:
        compared = train_agents(CONFIG, run_dir=folder, num_seeds=num_seeds, cpc_weights=[0.0], num_steps=a2c.num_steps)
    found: list[float] = compared["by_cpc_weight"]["0"]["final_returns"]
    return found


def theirs(environment: str, a2c: A2C, seed: int) -> float:
    """The final return of a seed with Stable-Baselines3."""
    import stable_baselines3
    from gymnasium.wrappers import TransformReward
    from stable_baselines3.common.env_util import make_vec_env

    environments = make_vec_env(
        environment,
        a2c.num_environments,
        seed=seed,
        wrapper_class=lambda made: TransformReward(made, lambda reward: a2c.reward_scale * reward),
    )
    agent = stable_baselines3.A2C(
        "MlpPolicy",
        environments,
        learning_rate=a2c.learning_rate,
        n_steps=a2c.rollout_steps,
        gamma=a2c.discount,
        ent_coef=a2c.entropy_weight,
        vf_coef=a2c.value_weight,
        max_grad_norm=a2c.gradient_clip,
        rms_prop_eps=a2c.epsilon,
        seed=seed,
        device="cpu",
    )
    returns: list[float] = []

    def keep(seen: dict[str, Any], _: dict[str, Any]) -> bool:
        if agent.num_timesteps > (1 - FINAL_SHARE) * a2c.num_steps:
            returns.extend(info["episode"]["r"] for info in seen["infos"] if "episode" in info)
        return True

    agent.learn(a2c.num_steps, callback=keep)
    return float(np.mean(returns))


def summary(returns: Sequence[float]) -> dict[str, Any]:
    """Their mean over seeds and Student's t interval."""
    half = student.ppf((1 + CONFIDENCE) / 2, len(returns) - 1) * np.std(returns, ddof=1) / len(returns) ** 0.5
    mean = float(np.mean(returns))
    return {"final_returns": list(returns), "mean": mean, "interval": [float(mean - half), float(mean + half)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60000, help="of each run, in all environments together")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds={options.seeds} must be at least 2: intervals need them")
    try:
        import stable_baselines3
    except ImportError:
        parser.error("Stable-Baselines3 is missing: uv run --extra agents --with stable-baselines3 ...")
    torch.set_num_threads(1)
    _, environment, a2c = read_config(CONFIG)
    a2c = replace(a2c, num_steps=options.steps, cpc_weight=0.0)
    figures: dict[str, Any] = {}
    start = time.perf_counter()
    figures["cpc agent"] = summary(ours(a2c, options.seeds))
    between = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = [theirs(environment.name, a2c, seed) for seed in range(options.seeds)]
    figures["stable-baselines3"] = summary(found)
    seconds = {"cpc agent": between - start, "stable-baselines3": time.perf_counter() - between}
    print(f"{'':>18} {'return':>8} {f'{CONFIDENCE:.0%} interval':>18} {'seconds a seed':>15}")
    for name, each in figures.items():
        interval = "{:.1f} to {:.1f}".format(*each["interval"])
        each["seconds_a_seed"] = seconds[name] / options.seeds
        print(f"{name:>18} {each['mean']:>8.1f} {interval:>18} {each['seconds_a_seed']:>15.1f}")
    welch = ttest_ind(*(each["final_returns"] for each in figures.values()), equal_var=False)
    low, high = welch.confidence_interval(CONFIDENCE)
    agree = bool(low <= 0 <= high)
    print(
        f"difference {low:+.1f} to {high:+.1f} (Welch): "
        + ("they agree within the interval" if agree else "they do not agree")
    )
    facts = {
        "environment": environment.name,
        "num_steps": options.steps,
        "stable_baselines3": stable_baselines3.__version__,
        "difference_interval": [float(low), float(high)],
        "agree": agree,
        "machine": machine_state(allocator_keeps_memory=False),
    }
    print(json.dumps(figures | facts))


if __name__ == "__main__":
    main()
