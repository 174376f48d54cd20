"""`cpc data record`: play episodes of an environment and write them to a folder."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np

from cpc.config.argument_rules import Count, NewFolder, Seed, Share, checked
from cpc.data.frames.corpus import FRAMES_NAME, STEPS_NAME, Recording
from cpc.data.frames.environments import open_environment, open_policy, picture_key, read_ram, resize_frame
from cpc.data.store.atomic import build_atomically
from cpc.data.store.contents import draw_splits
from cpc.data.store.packed import PackedRows, RowSource, pack_rows


@checked
def record(
    env: str,
    folder: NewFolder,
    *,
    num_episodes: Count = 40,
    max_steps: Count = 1000,
    policy: str = "random",
    shrink: Count = 2,
    valid_share: Share = 0.1,
    test_share: Share = 0.2,
    seed: Seed = 0,
    options: dict[str, Any] | None = None,
    progress: bool = True,
) -> Recording:
    """Play episodes of an environment, and write frames, actions, rewards and Atari's memory.

    Frames are grey. An episode depends only on the seed and on the index of the episode. The folder appears when all
    episodes are written.

    Args:
        env: name of a Gymnasium environment, such as ALE/Pong-v5, or MODULE:NAME if a module registers it.
        folder: folder to write; it must not exist yet.
        num_episodes: number of episodes to play.
        max_steps: largest number of steps of an episode; longer episodes are cut.
        policy: random, or the class path of your own policy (`cpc.data.frames.environments.RandomPolicy` is one).
        shrink: side of the squares of pixels that are averaged.
        valid_share: share of the episodes, drawn at random, in the split valid.
        test_share: share of the episodes, drawn at random, in the split test.
        seed: seed of environment, policy and splits.
        options: further arguments of `gymnasium.make`, such as {frameskip: 1} for every frame of Atari instead of every
            fourth.
        progress: show a progress bar.
    """
    names = [f"episode {number}" for number in range(num_episodes)]
    splits = draw_splits(names, valid_share=valid_share, test_share=test_share, seed=seed)
    episodes = _EpisodeRows(env, options or {}, policy, splits, max_steps, shrink, seed)
    folder = Path(folder)
    with build_atomically(folder, lambda path: (path / STEPS_NAME).is_file()) as unfinished:
        frames_folder = unfinished / FRAMES_NAME
        pack_rows(episodes, frames_folder, PackedRows, skip_bad=False, num_workers=1, progress=progress)
        np.savez(unfinished / STEPS_NAME, **episodes.steps)  # type: ignore[arg-type]
    recording = Recording(folder)
    num_frames, (height, width, _) = int(recording.lengths.sum()), recording.shape
    counts = ", ".join(f"{split} {count}" for split, count in Counter(splits).items())
    print(f"{num_episodes} episodes ({counts}) of {num_frames} frames, {height} x {width} pixels, written to {folder}")
    return recording


class _EpisodeRows(RowSource):
    """Episodes as rows of frames, played when they are read; `steps` collects actions, rewards and memory."""

    noun, dtype = "episode", "|u1"

    def __init__(
        self, env: str, options: dict[str, Any], policy: str, splits: list[str], max_steps: int, side: int, seed: int
    ) -> None:
        self._environment = open_environment(env, **options)
        self._policy = open_policy(policy, self._environment.action_space)
        self._key = picture_key(self._environment.observation_space)
        self._num_episodes, self._max_steps, self._side, self._seed = len(splits), max_steps, side, seed
        space = self._environment.observation_space
        height, width = (space if self._key is None else space[self._key]).shape[:2]
        if height % side or width % side:
            raise ValueError(f"`shrink` {side} must divide both sides of frames of {height} x {width} pixels")
        self.shape = (height // side, width // side, 1)
        self._steps: defaultdict[str, list[Any]] = defaultdict(list)
        self.about = {
            "environment": env,
            "options": options,
            "policy": policy,
            "seed": seed,
            "max_steps": max_steps,
            "splits": splits,
            "versions": {**{name: version(name) for name in ("gymnasium", "numpy")}, "python": python_version()},
        }

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """Actions, rewards and memory at every frame, one episode after the other."""
        return {name: np.array(values) for name, values in self._steps.items()}

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        """Return an upper limit of every episode's length, because the length is known only after playing."""
        return [self._max_steps] * self._num_episodes

    def decode(self, row: int) -> Iterator[np.ndarray]:
        """Play an episode and yield its frames; each frame is stored with the action that follows."""
        environment, policy = self._environment, self._policy
        seed = int(np.random.SeedSequence((self._seed, row)).generate_state(1)[0])
        policy.begin(seed)
        observation, _ = environment.reset(seed=seed)
        for _ in range(self._max_steps):
            picture, memory = observation if self._key is None else observation[self._key], read_ram(environment)
            frame, action = resize_frame(picture, self._side), policy(observation)
            observation, reward, is_over, is_cut, _ = environment.step(action)
            self._steps["actions"].append(action)
            self._steps["rewards"].append(np.float32(reward))
            if memory is not None:
                self._steps["ram"].append(memory)
            yield frame[None]
            if is_over or is_cut:
                break
