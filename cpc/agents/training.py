"""Batched advantage actor-critic with CPC as an auxiliary loss (section 3.4 of arXiv:1807.03748): one run."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from cpc.agents.actor_critic import ActorCritic, actor_critic_losses, returns_of
from cpc.agents.environments import Environment, Environments
from cpc.bounds import BoundTally
from cpc.checkpoint import read_checkpoint, save_pretrained
from cpc.config.argument_rules import check_fields
from cpc.config.description import build
from cpc.data.store.atomic import write_atomically
from cpc.data.store.records import append_record, drop_records_after
from cpc.model import CPC
from cpc.probes.tracker import event_record

SCHEMA = 1
RECORDS = ("bound.jsonl", "returns.jsonl")
_SAVED = {"settings": dict, "update": int, "agent": dict, "optimiser": dict, "environments": dict}  # in a checkpoint
_MAY_CHANGE = ("num_steps", "save_every_updates")  # when a run goes on


@dataclass(kw_only=True)
class A2C:
    """How agents learn; defaults are those of Stable-Baselines3's A2C but for the length of a rollout.

    Args:
        num_environments: that are played side by side.
        rollout_steps: of each between two updates; CPC predicts within them.
        num_steps: steps of all environments together.
        learning_rate: of RMSProp.
        epsilon: RMSProp's.
        decay: of its mean of squares.
        discount: of rewards to come.
        reward_scale: of rewards as they are learnt from, not as they are recorded: returns of about 1 let policy and
            value share a network and a clipped gradient.
        value_weight: of the value's loss.
        entropy_weight: of the policy's entropy.
        cpc_weight: of the CPC loss; 0: not computed.
        gradient_clip: largest norm of the gradient.
        record_every_updates: how often returns and bound are recorded.
        save_every_updates: how often the run can be continued from.

    Raises:
        ValueError: if a number is out of range.
    """

    num_environments: int = 16
    rollout_steps: int = 20
    num_steps: int = 1_000_000
    learning_rate: float = 7e-4
    epsilon: float = 1e-5
    decay: float = 0.99
    discount: float = 0.99
    reward_scale: float = 1.0
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    cpc_weight: float = 0.1
    gradient_clip: float = 0.5
    record_every_updates: int = 20
    save_every_updates: int = 200

    def __post_init__(self) -> None:
        check_fields(self, "a2c.")
        for name, value in asdict(self).items():
            at_least = 0 if name.endswith(("weight", "discount")) else 1 if isinstance(value, int) else None
            if (at_least is None and value <= 0) or (at_least is not None and value < at_least):
                raise ValueError(
                    f"a2c.{name}={value} must be {'positive' if at_least is None else f'at least {at_least}'}"
                )

    @property
    def num_updates(self) -> int:
        """Of a whole run."""
        return math.ceil(self.num_steps / (self.num_environments * self.rollout_steps))


def train_agent(
    folder: Path,
    architecture: dict[str, Any],
    environment: Environment,
    a2c: A2C,
    seed: int,
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> None:
    """Train one agent with one seed, from the checkpoint in its folder if there is one; if it has ended, open nothing.

    Args:
        folder: of the run.
        architecture: of the model, as `cpc.config.description.build` takes it.
        environment: what is played.
        a2c: how.
        seed: of weights, episodes, actions and negatives.
        trusted_packages: whose classes the architecture may name.

    Raises:
        ValueError: on an environment that cannot be made, a model that does not fit its observations, or a checkpoint
            that is damaged, of other settings or of more steps.
    """
    settings = {"architecture": architecture, "environment": asdict(environment), "a2c": asdict(a2c)}
    saved = _saved(folder / "last.ckpt", settings, a2c.num_updates)
    if saved is not None and saved["update"] == a2c.num_updates:
        return
    run = AgentRun(folder, settings, environment, a2c, seed, trusted_packages)
    if saved is not None:
        run.load_state_dict(saved)
    try:
        run.train()
    finally:
        run.environments.close()


def _saved(path: Path, settings: dict[str, Any], num_updates: int) -> dict[str, Any] | None:
    """What a run of these settings can go on from; None if there is nothing."""
    if not path.exists():
        return None
    try:
        saved = read_checkpoint(path, entries=_SAVED, written_by="cpc agent")
    except ValueError as error:
        raise ValueError(f"{error}; delete it to start this run again") from error
    other = [
        f"{section}.{name}"
        for section, values in saved["settings"].items()
        for name in values
        if values[name] != settings[section].get(name) and name not in _MAY_CHANGE
    ]
    if other:
        raise ValueError(f"{path} was trained with another {', '.join(other)}: restore it, or name another folder")
    if saved["update"] > num_updates:
        raise ValueError(
            f"{path} is of update {saved['update']}, beyond the {num_updates} that a2c.num_steps="
            f"{settings['a2c']['num_steps']} asks for: raise it, or name another folder"
        )
    return saved


class AgentRun:
    """One agent, one seed, being trained; the arguments are those of `train_agent`."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        environment: Environment,
        a2c: A2C,
        seed: int,
        trusted_packages: tuple[str, ...] = ("cpc",),
    ) -> None:
        self.folder, self.a2c, self.seed, self._settings = folder, a2c, seed, settings
        self.environments = Environments(environment, a2c.num_environments, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: CPC = build(settings["architecture"], trusted_packages=trusted_packages)
            self._initialise(model)
            self.agent = ActorCritic(model, self.environments.num_actions)
        self.optimiser = torch.optim.RMSprop(
            self.agent.parameters(), a2c.learning_rate, alpha=a2c.decay, eps=a2c.epsilon
        )
        self.draws = torch.Generator().manual_seed(seed)  # of actions and negatives
        self.update = 0
        self.state: tuple[Tensor, ...] | None = None  # of the contexts
        self.begins = torch.ones(a2c.num_environments, dtype=torch.bool)
        self.returns: list[float] = []  # of episodes that ended since the last record
        self.tally = BoundTally(model.steps)

    def _initialise(self, model: CPC) -> None:
        """Statistics and data-dependent initialisation of the encoder, from a rollout of random actions.

        Raises:
            ValueError: if the encoder does not take such observations.
        """
        seen, draws = [], np.random.default_rng(self.seed)
        for _ in range(self.a2c.rollout_steps):
            seen.append(torch.tensor(self.environments.observations))
            self.environments.step(draws.integers(self.environments.num_actions, size=self.a2c.num_environments))
        x = torch.stack(seen, 1)
        if x.dtype == torch.uint8:
            model.encoder.set_statistics(float(x.float().mean()) / 255, float(x.float().std()) / 255)
        model.initialise_from(x)

    @property
    def num_steps(self) -> int:
        """Played so far, in all environments."""
        return self.update * self.a2c.num_environments * self.a2c.rollout_steps

    def train(self) -> None:
        """Play and learn to the end."""
        a2c = self.a2c
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in RECORDS:
            drop_records_after(self.folder / name, self.num_steps)
        self._tell("resumed" if self.update else "started")
        since, steps_before = time.perf_counter(), self.num_steps
        while self.update < a2c.num_updates:
            self._learn()
            self.update += 1
            is_last = self.update == a2c.num_updates
            if self.update % a2c.record_every_updates == 0 or is_last:
                rate = (self.num_steps - steps_before) / (time.perf_counter() - since)
                self._record(rate)
                since, steps_before = time.perf_counter(), self.num_steps
            if is_last:  # before the checkpoint says that nothing is left to do
                saved_settings = {"step": self.num_steps, "seed": self.seed}
                save_pretrained(self.agent.model, self.folder / "model", provenance=saved_settings)
            if self.update % a2c.save_every_updates == 0 or is_last:
                with write_atomically(self.folder / "last.ckpt") as new:
                    torch.save(self.state_dict(), new)
        self._tell("finished")

    def _tell(self, event: str) -> None:
        append_record(self.folder / "events.jsonl", event_record(self.num_steps, event))

    def _learn(self) -> None:
        """A rollout and an update."""
        a2c, before, first_begins = self.a2c, self.state, self.begins
        x, actions, rewards, is_end, begins = [], [], [], [], [first_begins]
        for _ in range(a2c.rollout_steps):
            x.append(torch.tensor(self.environments.observations))  # torch's memory: products depend on alignment
            with torch.no_grad():
                step = self.agent(rearrange(x[-1], "b ... -> b 1 ..."), rearrange(begins[-1], "b -> b 1"), self.state)
                action = torch.multinomial(step.logits[:, 0].softmax(-1), 1, generator=self.draws)[:, 0]
                self.state = step.state
                transition = self.environments.step(action.numpy())
                reward = a2c.reward_scale * torch.from_numpy(transition.rewards)
                for i, observation in transition.last.items():  # its future has a value, though it is not played
                    reward[i] += a2c.discount * self._value(torch.tensor(observation), i)
            actions.append(action)
            rewards.append(reward)
            is_end.append(torch.from_numpy(transition.is_end))
            begins.append(is_end[-1])
            self.returns += transition.returns
        self.begins = begins.pop()
        at_begin = torch.stack(begins, 1)
        with torch.no_grad():
            now = torch.tensor(self.environments.observations)
            ahead = self.agent(rearrange(now, "b ... -> b 1 ..."), rearrange(self.begins, "b -> b 1"), self.state)
        returns = returns_of(torch.stack(rewards, 1), torch.stack(is_end, 1), ahead.values[:, 0], a2c.discount)
        played = self.agent(torch.stack(x, 1), at_begin, before)
        of_policy, of_value, entropy = actor_critic_losses(played, torch.stack(actions, 1), returns)
        loss = of_policy + a2c.value_weight * of_value - a2c.entropy_weight * entropy
        if a2c.cpc_weight > 0:
            contrast = self.agent.contrast(played, at_begin, self.draws)
            loss = loss + a2c.cpc_weight * contrast.loss
            self.tally.update(contrast)
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"{self.folder}: the loss is {loss.item()} after {self.num_steps} steps; lower a2c.learning_rate"
            )
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.agent.parameters(), a2c.gradient_clip)
        self.optimiser.step()

    def _value(self, observation: Tensor, i: int) -> Tensor:
        """Of what environment i shows, its episode going on."""
        assert self.state is not None
        state = tuple(each[i : i + 1] for each in self.state)
        goes_on = torch.zeros(1, 1, dtype=torch.bool)
        value: Tensor = self.agent(rearrange(observation, "... -> 1 1 ..."), goes_on, state).values[0, 0]
        return value

    def _record(self, steps_per_second: float) -> None:
        if self.tally.sums:
            bound = self.tally.compute(self.agent.model.loss_part.training_strategies[0], "train")
            append_record(self.folder / "bound.jsonl", bound.record(self.num_steps))
        if self.returns:
            append_record(
                self.folder / "returns.jsonl",
                {
                    "schema": SCHEMA,
                    "step": self.num_steps,
                    "num_episodes": len(self.returns),
                    "mean_return": float(np.mean(self.returns)),
                    "steps_per_second": steps_per_second,
                },
            )
        self.returns, self.tally = [], BoundTally(self.agent.model.steps)

    def state_dict(self) -> dict[str, Any]:
        """All that an equal run needs to go on exactly."""
        return {
            "settings": self._settings,
            "update": self.update,
            "agent": self.agent.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "draws": self.draws.get_state(),
            "environments": self.environments.state_dict(),
            "state": self.state,
            "begins": self.begins,
            "returns": self.returns,
            "tally": self.tally.sums,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.update = saved["update"]
        self.agent.load_state_dict(saved["agent"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.draws.set_state(saved["draws"])
        self.environments.load_state_dict(saved["environments"])
        self.state = None if saved["state"] is None else tuple(saved["state"])
        self.begins = saved["begins"]
        self.returns, self.tally.sums = list(saved["returns"]), list(saved["tally"])
