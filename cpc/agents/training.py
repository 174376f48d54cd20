"""One run of batched advantage actor-critic with CPC as an auxiliary loss (section 3.4 of arXiv:1807.03748)."""

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

from cpc.agents.actor_critic import ActorCritic, AgentOutput, actor_critic_losses, discounted_returns
from cpc.agents.environments import Environment, Environments
from cpc.bounds import BoundTally
from cpc.checkpoint import read_checkpoint, save_pretrained
from cpc.config.argument_rules import Count, NonNegative, Positive, Range, check_fields
from cpc.config.description import build
from cpc.data.store.atomic import append_record, drop_records_after, write_atomically
from cpc.model import CPC
from cpc.probes.tracker import event_record

SCHEMA = 1
_ENTRIES = {"settings": dict, "update": int, "agent": dict, "optimiser": dict, "environments": dict}  # for checkpoints
_MAY_CHANGE = ("num_steps", "save_every_updates")  # settings that a resumed run may change


@dataclass(kw_only=True)
class A2C:
    """Options of advantage actor-critic; defaults are those of Stable-Baselines3's A2C, except the rollout's length.

    Args:
        num_environments: number of environments that are played in parallel.
        rollout_steps: steps of each environment between two updates; CPC predictions lie within these steps.
        num_steps: steps of all environments together.
        learning_rate: learning rate of RMSProp.
        epsilon: epsilon of RMSProp.
        decay: decay of RMSProp's mean of squares.
        discount: discount of future rewards.
        reward_scale: factor of rewards in the losses, but not in the records. With scaled returns of about 1, policy
            and value can share a network and a clipped gradient.
        value_weight: weight of the value loss.
        entropy_weight: weight of the policy's entropy.
        cpc_weight: weight of the CPC loss; if 0, the loss is not computed.
        gradient_clip: largest norm of the gradient.
        record_every_updates: updates between two records of returns and bound.
        save_every_updates: updates between two checkpoints.
    """

    num_environments: Count = 16
    rollout_steps: Count = 20
    num_steps: Count = 1_000_000
    learning_rate: Positive = 7e-4
    epsilon: Positive = 1e-5
    decay: Positive = 0.99
    discount: NonNegative = 0.99
    reward_scale: Positive = 1.0
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 0.01
    cpc_weight: NonNegative = 0.1
    gradient_clip: Positive = 0.5
    record_every_updates: Count = 20
    save_every_updates: Count = 200

    def __post_init__(self) -> None:
        check_fields(self, "a2c.")

    @property
    def num_updates(self) -> int:
        """Number of updates of a whole run."""
        return math.ceil(self.num_steps / (self.num_environments * self.rollout_steps))


def train_agent(
    folder: Path,
    architecture: dict[str, Any],
    environment: Environment,
    a2c: A2C,
    seed: int,
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> None:
    """Train one agent with one seed; resume from the checkpoint in the folder, and do nothing if the run has ended."""
    settings = {"architecture": architecture, "environment": asdict(environment), "a2c": asdict(a2c)}
    saved = _read_saved(folder / "last.ckpt", settings, a2c.num_updates)
    if saved is not None and saved["update"] == a2c.num_updates:
        return
    environments = Environments(environment, a2c.num_environments, seed)
    try:
        run = _AgentRun(folder, settings, environments, a2c, seed, trusted_packages)
        if saved is not None:
            run.load_state_dict(saved)
        run.train()
    finally:
        environments.close()


def _read_saved(path: Path, settings: dict[str, Any], num_updates: int) -> dict[str, Any] | None:
    """Return the checkpoint of a run with these settings; None if there is none."""
    if not path.exists():
        return None
    saved = read_checkpoint(path, entries=_ENTRIES, written_by="cpc agent")
    changed = [
        f"{section}.{name}"
        for section, values in saved["settings"].items()
        for name in values
        if values[name] != settings[section].get(name) and name not in _MAY_CHANGE
    ]
    if changed:
        raise ValueError(f"{path} was trained with other values of {', '.join(changed)}: restore them")
    Range(0, num_updates).check(f"{path}: the update (a2c.num_steps limits it)", saved["update"])
    return saved


@dataclass(eq=False)
class _AgentRun:
    """The training of one agent with one seed."""

    folder: Path
    settings: dict[str, Any]
    environments: Environments
    a2c: A2C
    seed: int
    trusted_packages: tuple[str, ...]

    def __post_init__(self) -> None:
        a2c = self.a2c
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model: CPC = build(self.settings["architecture"], trusted_packages=self.trusted_packages)
            self._initialise(model)
            self.agent = ActorCritic(model, self.environments.num_actions)
        self.optimiser = torch.optim.RMSprop(
            self.agent.parameters(), a2c.learning_rate, alpha=a2c.decay, eps=a2c.epsilon
        )
        self.generator = torch.Generator().manual_seed(self.seed)  # generator of actions and negatives
        self.update = 0
        self.state: tuple[Tensor, ...] | None = None  # state of the context
        self.begins = torch.ones(a2c.num_environments, dtype=torch.bool)
        self.returns: list[float] = []  # returns of the episodes that ended since the last record
        self.tally = BoundTally(model.steps)

    def _initialise(self, model: CPC) -> None:
        """Set the encoder's statistics and data-dependent initialisation from a rollout of random actions."""
        observations, rng = [], np.random.default_rng(self.seed)
        for _ in range(self.a2c.rollout_steps):
            observations.append(torch.tensor(self.environments.observations))
            self.environments.step(rng.integers(self.environments.num_actions, size=self.a2c.num_environments))
        x = torch.stack(observations, 1)
        if x.dtype == torch.uint8:
            model.encoder.set_statistics(float(x.float().mean()) / 255, float(x.float().std()) / 255)
        model.initialise_from(x)

    @property
    def num_steps(self) -> int:
        """Number of steps so far, of all environments together."""
        return self.update * self.a2c.num_environments * self.a2c.rollout_steps

    def train(self) -> None:
        """Train until the last update."""
        a2c = self.a2c
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("bound.jsonl", "returns.jsonl"):
            drop_records_after(self.folder / name, self.num_steps)
        events = self.folder / "events.jsonl"
        append_record(events, event_record(self.num_steps, "resumed" if self.update else "started"))
        since, steps_before = time.perf_counter(), self.num_steps
        while self.update < a2c.num_updates:
            self._learn()
            self.update += 1
            is_last = self.update == a2c.num_updates
            if self.update % a2c.record_every_updates == 0 or is_last:
                rate = (self.num_steps - steps_before) / (time.perf_counter() - since)
                self._record(rate)
                since, steps_before = time.perf_counter(), self.num_steps
            if is_last:  # the records first, because the last checkpoint marks the run as finished
                provenance = {"step": self.num_steps, "seed": self.seed}
                save_pretrained(self.agent.model, self.folder / "model", provenance=provenance)
            if self.update % a2c.save_every_updates == 0 or is_last:
                with write_atomically(self.folder / "last.ckpt") as new:
                    torch.save(self.state_dict(), new)
        append_record(events, event_record(self.num_steps, "finished"))

    def _learn(self) -> None:
        """Play a rollout and update the weights."""
        a2c, first_state = self.a2c, self.state
        x, actions, rewards, is_end, begins = [], [], [], [], [self.begins]
        no_beginning = torch.zeros(1, 1, dtype=torch.bool)
        for _ in range(a2c.rollout_steps):
            # torch allocates a copy, because the results of matrix products depend on the alignment of memory.
            x.append(torch.tensor(self.environments.observations))
            with torch.no_grad():
                step = self._play(x[-1], begins[-1])
                action = torch.multinomial(step.logits[:, 0].softmax(-1), 1, generator=self.generator)[:, 0]
                self.state = step.state
                step_rewards, ended, last_observations, returns_of_ended = self.environments.step(action.numpy())
                reward = a2c.reward_scale * torch.from_numpy(step_rewards)
                for i, observation in last_observations.items():  # a truncated episode would have had further rewards
                    state = tuple(each[i : i + 1] for each in step.state)
                    last = self.agent(torch.tensor(observation)[None, None], no_beginning, state)
                    reward[i] += a2c.discount * last.values[0, 0]
            actions.append(action)
            rewards.append(reward)
            is_end.append(torch.from_numpy(ended))
            begins.append(is_end[-1])
            self.returns += returns_of_ended
        self.begins = begins.pop()
        rollout_begins = torch.stack(begins, 1)
        with torch.no_grad():
            final = self._play(torch.tensor(self.environments.observations), self.begins)
        returns = discounted_returns(torch.stack(rewards, 1), torch.stack(is_end, 1), final.values[:, 0], a2c.discount)
        output = self.agent(torch.stack(x, 1), rollout_begins, first_state)
        policy_loss, value_loss, entropy = actor_critic_losses(output, torch.stack(actions, 1), returns)
        loss = policy_loss + a2c.value_weight * value_loss - a2c.entropy_weight * entropy
        if a2c.cpc_weight > 0:
            contrast = self.agent.contrast(output, rollout_begins, self.generator)
            loss = loss + a2c.cpc_weight * contrast.loss
            self.tally.update(contrast)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"{self.folder}: the loss is {loss.item()} after {self.num_steps} steps")
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.agent.parameters(), a2c.gradient_clip)
        self.optimiser.step()

    def _play(self, x: Tensor, begins: Tensor) -> AgentOutput:
        """Return the output for one step of all environments."""
        output: AgentOutput = self.agent(rearrange(x, "b ... -> b 1 ..."), rearrange(begins, "b -> b 1"), self.state)
        return output

    def _record(self, steps_per_second: float) -> None:
        if self.tally.sums:
            bound = self.tally.compute(self.agent.model.loss_part.training_strategies[0], "train")
            append_record(self.folder / "bound.jsonl", bound.record(self.num_steps))
        if self.returns:
            record: dict[str, Any] = {"schema": SCHEMA, "step": self.num_steps, "num_episodes": len(self.returns)}
            record |= {"mean_return": float(np.mean(self.returns)), "steps_per_second": steps_per_second}
            append_record(self.folder / "returns.jsonl", record)
        self.returns, self.tally = [], BoundTally(self.agent.model.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a run with the same settings continues exactly."""
        return {
            "settings": self.settings,
            "update": self.update,
            "agent": self.agent.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "draws": self.generator.get_state(),
            "environments": self.environments.state_dict(),
            "state": self.state,
            "begins": self.begins,
            "returns": self.returns,
            "tally": self.tally.sums,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self.update = saved["update"]
        self.agent.load_state_dict(saved["agent"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.generator.set_state(saved["draws"])
        self.environments.load_state_dict(saved["environments"])
        self.state = None if saved["state"] is None else tuple(saved["state"])
        self.begins = saved["begins"]
        self.returns, self.tally.sums = list(saved["returns"]), list(saved["tally"])
