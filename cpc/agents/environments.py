"""Environments side by side, whose every episode can be played again: that is how a stopped run goes on exactly.

N environments, C H W channels, rows and columns of a frame.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange


class Transition(NamedTuple):
    """What a step of all environments brought.

    Attributes:
        rewards: `[N]` float32.
        is_end: `[N]` whether the step ended the episode; the next observation is then the first of another.
        is_cut: `[N]` whether it was ended by a limit of time alone, and would have had a future.
        last: by environment whose episode was cut, what was to be seen then.
        returns: sums of rewards of the episodes that ended.
    """

    rewards: np.ndarray
    is_end: np.ndarray
    is_cut: np.ndarray
    last: dict[int, np.ndarray]
    returns: list[float]


@dataclass(kw_only=True)
class Environment:
    """A Gymnasium environment, and how its observations become those of an encoder.

    Args:
        id: as `gymnasium.make` takes it, such as `VizdoomBasic-v1`.
        module: imported before, so that it registers its environments, such as `vizdoom.gymnasium_wrapper`.
        options: further arguments of `gymnasium.make`, such as `{frame_skip: 4}`.
        part: of observations that are dictionaries, such as `screen`.
        frame_size: rows and columns that frames are scaled to; null: observations are vectors, or stay as large.
        is_grey: whether colours are averaged.
    """

    id: str
    module: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    part: str | None = None
    frame_size: tuple[int, int] | None = None
    is_grey: bool = False

    def make(self) -> gymnasium.Env:
        """Open one.

        Raises:
            ValueError: if it is not installed, or its actions are not some few.
        """
        try:
            if self.module is not None:
                __import__(self.module)
            made = gymnasium.make(self.id, **self.options)
        except (ImportError, gymnasium.error.Error) as error:
            raise ValueError(
                f"environment.id={self.id!r} cannot be made: {error}; install it (the extra `agents` has vizdoom and "
                "minigrid), and name the module that registers it in environment.module"
            ) from error
        if not isinstance(made.action_space, gymnasium.spaces.Discrete):
            raise ValueError(f"environment.id={self.id!r} has the actions {made.action_space}: Discrete ones are needed")
        parts = getattr(made.observation_space, "spaces", None)
        if (parts is None) != (self.part is None) or (parts is not None and self.part not in parts):
            names = "no parts: leave environment.part out" if parts is None else f"the parts {', '.join(parts)}: name one"
            raise ValueError(f"environment.part={self.part!r}, but observations of {self.id!r} have {names}")
        return made

    def observe(self, found: Any) -> np.ndarray:
        """An observation as encoders take it: float32 vectors, or uint8 frames `[C, H, W]`."""
        found = np.asarray(found if self.part is None else found[self.part])
        if found.ndim < 2:
            return found.astype(np.float32)
        frame = rearrange(found, "h w -> 1 h w") if found.ndim == 2 else rearrange(found, "h w c -> c h w")
        if self.is_grey:
            frame = frame.mean(0, keepdims=True)
        if self.frame_size is not None:
            pixels = torch.from_numpy(frame.astype(np.float32))
            frame = F.interpolate(rearrange(pixels, "c h w -> 1 c h w"), tuple(self.frame_size), mode="area")[0].numpy()
        return np.round(frame).astype(np.uint8)


class Environments:
    """N environments, each of which begins another episode where one has ended.

    Episode n of environment i is a function of (seed, i, n) and of the actions: the state is their numbers and the
    actions of those that are not over, which are played again when it is loaded.

    Args:
        environment: which.
        num: N.
        seed: of all episodes.

    Attributes:
        observations: `[N, ...]` what is to be seen now.
        num_actions: that there are.
    """

    def __init__(self, environment: Environment, num: int, seed: int) -> None:
        if num < 1:
            raise ValueError(f"num_environments={num} must be at least 1")
        self._environment, self._seed = environment, seed
        self._made = [environment.make() for _ in range(num)]
        self.num_actions = int(self._made[0].action_space.n)  # type: ignore[attr-defined]
        self._numbers = [0] * num
        self._actions: list[list[int]] = [[] for _ in range(num)]
        self._returns = np.zeros(num)
        self.observations = np.stack([self._begin(i) for i in range(num)])

    def step(self, actions: np.ndarray) -> Transition:
        """Act in all environments; `observations` moves on."""
        num = len(self._made)
        rewards, is_end, is_cut = np.zeros(num, np.float32), np.zeros(num, bool), np.zeros(num, bool)
        last, returns = {}, []
        for i, action in enumerate(actions.tolist()):
            found, reward, is_over, is_out_of_time, _ = self._made[i].step(action)
            self._actions[i].append(action)
            self._returns[i] += float(reward)
            rewards[i], is_end[i], is_cut[i] = reward, is_over or is_out_of_time, is_out_of_time and not is_over
            self.observations[i] = self._environment.observe(found)
            if is_end[i]:
                if is_cut[i]:
                    last[i] = self.observations[i].copy()
                returns.append(float(self._returns[i]))
                self._numbers[i] += 1
                self.observations[i] = self._begin(i)
        return Transition(rewards, is_end, is_cut, last, returns)

    def state_dict(self) -> dict[str, Any]:
        """Which episodes are being played, and what was done in them."""
        return {"numbers": list(self._numbers), "actions": [list(each) for each in self._actions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the episodes that had begun once more, up to where they were."""
        for i, (number, actions) in enumerate(zip(state["numbers"], state["actions"], strict=True)):
            self._numbers[i] = number
            self.observations[i] = self._begin(i)
            for action in actions:
                found, reward, *_ = self._made[i].step(action)
                self._actions[i].append(action)
                self._returns[i] += float(reward)
                self.observations[i] = self._environment.observe(found)

    def close(self) -> None:
        """Let go of the environments."""
        for each in self._made:
            each.close()

    def _begin(self, i: int) -> np.ndarray:
        seed = int(np.random.SeedSequence((self._seed, i, self._numbers[i])).generate_state(1)[0] >> 1)
        self._actions[i], self._returns[i] = [], 0.0
        found, _ = self._made[i].reset(seed=seed)
        return self._environment.observe(found)
