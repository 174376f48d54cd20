"""A game of Gymnasium's kind that is played in microseconds, and keeps its state where Atari's Pong does."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

NAME = "small_pong:small/Pong-v0"
HEIGHT, WIDTH = 24, 16
BALL_X, BALL_Y, PLAYER_Y = 49, 54, 51  # addresses


class SmallPong(gymnasium.Env):
    """A ball of 2 x 2 pixels bounces off the walls, a paddle follows the actions; it lasts `least` frames or more."""

    def __init__(self, least: int = 30) -> None:
        self.action_space, self.observation_space = Discrete(3), Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        self.least = least
        self.ale = self  # the console

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Serve from a random place."""
        super().reset(seed=seed)
        self.places = np.array([self.np_random.integers(0, 7), self.np_random.integers(0, 11), 5])
        self.speed = np.array([1, 1])
        self.num_left = self.least + int(self.np_random.integers(0, 10))
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move ball and paddle."""
        for axis, last in enumerate((6, 10)):
            if not 0 <= self.places[axis] + self.speed[axis] <= last:
                self.speed[axis] *= -1
            self.places[axis] += self.speed[axis]
        self.places[2] = np.clip(self.places[2] + action - 1, 0, 10)
        self.num_left -= 1
        return self._picture(), float(action), self.num_left == 0, False, {}

    def getRAM(self) -> np.ndarray:  # noqa: N802 - ale-py's
        """As of the console."""
        memory = np.zeros(128, np.uint8)
        memory[[BALL_X, BALL_Y, PLAYER_Y]] = self.places
        return memory

    def _picture(self) -> np.ndarray:
        picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        x, y, player_y = 2 * self.places
        picture[y : y + 2, x : x + 2] = 255
        picture[player_y : player_y + 4, -2:] = (0, 200, 0)
        return picture


class PongInADictionary(SmallPong):
    """Its picture has a key, and there is no console."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({"screen": self.observation_space, "speed": Box(-1, 1, (2,))})
        del self.ale

    def _picture(self) -> Any:
        return {"screen": super()._picture(), "speed": np.float32(getattr(self, "speed", (1, 1)))}


class Stubborn:
    """A policy that always chooses one action."""

    def __init__(self, action_space: Any) -> None:
        self.action = action_space.n - 1

    def begin(self, seed: int) -> None:
        """There is nothing to seed."""

    def __call__(self, observation: Any) -> int:
        """The last one."""
        return self.action


gymnasium.register("small/Pong-v0", SmallPong, disable_env_checker=True)
gymnasium.register("small/Keyed-v0", PongInADictionary, disable_env_checker=True)
