"""A batch of environments. Episodes can be replayed, so that an interrupted run continues exactly.

N environments, S H W frames of an observation, their rows and columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from einops import rearrange, reduce

from cpc.config.argument_rules import Choices, Count, check_fields, checked
from cpc.data.frames.environments import open_environment, picture_key, resize_frame


@dataclass(kw_only=True)
class Environment:
    """A Gymnasium environment, and the conversion of its observations for an encoder.

    Args:
        name: name as for `cpc data record`: `ALE/Pong-v5`, or `MODULE:NAME` of a module that registers it.
        options: further arguments of `gymnasium.make`, such as `{frame_skip: 4}`.
        shrink: side of the squares of pixels that are averaged; 1: pixels are unchanged.
        is_grey: True: a picture becomes one frame of luminance. False: each channel of a picture becomes a frame.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    shrink: Count = 1
    is_grey: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "environment.")

    def make(self) -> Any:
        """Make an environment; it must have Discrete actions, and observations that are a vector or hold a picture."""
        environment = open_environment(self.name, **self.options)
        Choices(("Discrete",)).check(f"the actions of {self.name}", type(environment.action_space).__name__)
        if not _is_vector(environment.observation_space):
            picture_key(environment.observation_space)
        return environment

    def observe(self, observation: Any, space: Any) -> np.ndarray:
        """Convert an observation of a space to a float32 vector, or to frames `[S, H, W]` of bytes."""
        if _is_vector(space):
            return np.asarray(observation, np.float32)
        key = picture_key(space)
        picture = np.asarray(observation if key is None else observation[key])
        if self.is_grey:
            return rearrange(resize_frame(picture, self.shrink), "h w s -> s h w")
        size = {"p": self.shrink, "q": self.shrink}
        means = reduce(picture.astype(np.float32), "(h p) (w q) s -> s h w", "mean", **size)
        return np.rint(means).astype(np.uint8)


def _is_vector(space: Any) -> bool:
    return len(getattr(space, "shape", None) or ()) == 1


class Environments:
    """N environments. Each environment begins a new episode when the previous episode has ended.

    Episode n of environment i is a function of (seed, i, n) and of the actions. So the state consists of the indices n
    and the actions of unfinished episodes, which are replayed when the state is loaded. `observations` `[N, ...]` are
    the current ones.
    """

    @checked
    def __init__(self, environment: Environment, num: Count, seed: int) -> None:
        self._environment, self._seed = environment, seed
        self._instances = [environment.make() for _ in range(num)]
        self.num_actions = int(self._instances[0].action_space.n)
        self._episodes = [0] * num
        self._actions: list[list[int]] = [[] for _ in range(num)]
        self._returns = np.zeros(num)
        self.observations = np.stack([self._begin(i) for i in range(num)])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray], list[float]]:
        """Take one action in every environment and update `observations`, the first of an episode after an end.

        Returns:
            `[N]` float32 rewards; `[N]`, whether the step ended the episode; by environment, the last observation of an
            episode that only a time limit ended; and the sum of rewards of each ended episode.
        """
        num = len(self._instances)
        rewards, is_end = np.zeros(num, np.float32), np.zeros(num, bool)
        last, returns = {}, []
        for i, action in enumerate(actions.tolist()):
            rewards[i], is_terminated, is_truncated = self._step(i, action)
            is_end[i] = is_terminated or is_truncated
            if is_end[i]:
                if not is_terminated:
                    last[i] = self.observations[i].copy()
                returns.append(float(self._returns[i]))
                self._episodes[i] += 1
                self.observations[i] = self._begin(i)
        return rewards, is_end, last, returns

    def state_dict(self) -> dict[str, Any]:
        """Return the index of each current episode, and its actions so far."""
        return {"numbers": list(self._episodes), "actions": [list(actions) for actions in self._actions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replay the actions of the episodes that were unfinished."""
        for i, (episode, actions) in enumerate(zip(state["numbers"], state["actions"], strict=True)):
            self._episodes[i] = episode
            self.observations[i] = self._begin(i)
            for action in actions:
                self._step(i, action)

    def close(self) -> None:
        """Close the environments."""
        for instance in self._instances:
            instance.close()

    def _step(self, i: int, action: int) -> tuple[Any, bool, bool]:
        observation, reward, is_terminated, is_truncated, _ = self._instances[i].step(action)
        self._actions[i].append(action)
        self._returns[i] += float(reward)
        self.observations[i] = self._observe(i, observation)
        return reward, is_terminated, is_truncated

    def _begin(self, i: int) -> np.ndarray:
        seed = int(np.random.SeedSequence((self._seed, i, self._episodes[i])).generate_state(1)[0] >> 1)
        self._actions[i], self._returns[i] = [], 0.0
        observation, _ = self._instances[i].reset(seed=seed)
        return self._observe(i, observation)

    def _observe(self, i: int, observation: Any) -> np.ndarray:
        return self._environment.observe(observation, self._instances[i].observation_space)
