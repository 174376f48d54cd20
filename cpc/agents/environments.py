"""Environments side by side, whose every episode can be played again: that is how a stopped run goes on exactly.

N environments, S H W frames of an observation, their rows and columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from einops import rearrange, reduce

from cpc.config.argument_rules import Count, check_fields
from cpc.data.frames.environments import open_environment, picture_in, resize_frame


class Transition(NamedTuple):
    """What a step of all environments brought.

    Attributes:
        rewards: `[N]` float32.
        is_end: `[N]` whether the step ended the episode; the next observation is then the first of another.
        last: by environment whose episode was ended by a limit of time alone, and would have had a future: what was to
            be seen then.
        returns: sums of rewards of the episodes that ended.
    """

    rewards: np.ndarray
    is_end: np.ndarray
    last: dict[int, np.ndarray]
    returns: list[float]


@dataclass(kw_only=True)
class Environment:
    """A Gymnasium environment, and how its observations become those of an encoder.

    Args:
        name: as `cpc data record` takes it: `ALE/Pong-v5`, or `MODULE:NAME` of a module that registers it.
        options: further arguments of `gymnasium.make`, such as `{frame_skip: 4}`.
        shrink: average the pixels of squares of that side; 1: as they are.
        is_grey: whether a picture becomes one frame of luminance; otherwise each of its channels is one.

    Raises:
        ValueError: if `shrink` is below 1.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    shrink: Count = 1
    is_grey: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "environment.")

    def make(self) -> Any:
        """Open one.

        Raises:
            ValueError: if it is not installed, its actions cannot be counted, or it shows no picture and no vector.
        """
        made = open_environment(self.name, **self.options)
        if type(made.action_space).__name__ != "Discrete":
            raise ValueError(
                f"environment.name={self.name!r} has actions {made.action_space}: Discrete ones are needed"
            )
        if not _is_vector(made.observation_space):
            picture_in(made.observation_space)
        return made

    def observe(self, found: Any, space: Any) -> np.ndarray:
        """An observation as encoders take it: a float32 vector, or frames `[S, H, W]` of bytes.

        Args:
            found: what the environment gave.
            space: its observations'.
        """
        if _is_vector(space):
            return np.asarray(found, np.float32)
        key = picture_in(space)
        picture = np.asarray(found if key is None else found[key])
        if self.is_grey:
            return rearrange(resize_frame(picture, self.shrink), "h w s -> s h w")
        size = {"p": self.shrink, "q": self.shrink}
        means = reduce(picture.astype(np.float32), "(h p) (w q) s -> s h w", "mean", **size)
        return np.rint(means).astype(np.uint8)


def _is_vector(space: Any) -> bool:
    return len(getattr(space, "shape", None) or ()) == 1


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
        self.num_actions = int(self._made[0].action_space.n)
        self._numbers = [0] * num
        self._actions: list[list[int]] = [[] for _ in range(num)]
        self._returns = np.zeros(num)
        self.observations = np.stack([self._begin(i) for i in range(num)])

    def step(self, actions: np.ndarray) -> Transition:
        """Act in all environments; `observations` moves on."""
        num = len(self._made)
        rewards, is_end = np.zeros(num, np.float32), np.zeros(num, bool)
        last, returns = {}, []
        for i, action in enumerate(actions.tolist()):
            found, reward, is_over, is_out_of_time, _ = self._made[i].step(action)
            self._actions[i].append(action)
            self._returns[i] += float(reward)
            rewards[i], is_end[i] = reward, is_over or is_out_of_time
            self.observations[i] = self._observe(i, found)
            if is_end[i]:
                if not is_over:
                    last[i] = self.observations[i].copy()
                returns.append(float(self._returns[i]))
                self._numbers[i] += 1
                self.observations[i] = self._begin(i)
        return Transition(rewards, is_end, last, returns)

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
                self.observations[i] = self._observe(i, found)

    def close(self) -> None:
        """Let go of the environments."""
        for each in self._made:
            each.close()

    def _begin(self, i: int) -> np.ndarray:
        seed = int(np.random.SeedSequence((self._seed, i, self._numbers[i])).generate_state(1)[0] >> 1)
        self._actions[i], self._returns[i] = [], 0.0
        found, _ = self._made[i].reset(seed=seed)
        return self._observe(i, found)

    def _observe(self, i: int, found: Any) -> np.ndarray:
        return self._environment.observe(found, self._made[i].observation_space)
