"""Record three games with random actions, like `cpc data record`: python datasets/atari/prepare.py DIR (see card.md).

Each game is recorded twice: for probes at every fourth frame, and for pretraining, with another seed, at every frame.
"""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.frames.record import record

NUM_EPISODES = {"Pong": 40, "Boxing": 40, "Breakout": 200}  # a random player's Breakout is over in about 200 frames
# For pretraining: number of episodes, and their largest number of steps. Actions are repeated as often as for probes.
EVERY_FRAME = {"Pong": (30, 2400), "Boxing": (30, 2400), "Breakout": (90, 1000)}
STEPS = {"frameskip": 1, "repeat_action_probability": 0.75}


def prepare(folder: Path, *, max_steps: int = 1000, seed: int = 0) -> list[Path]:
    """Record episodes of Pong, Boxing and Breakout; games whose folder exists are left out.

    Args:
        folder: each game is recorded into a folder GAME and a folder GAME_every_frame below this folder.
        max_steps: largest number of steps of an episode.
        seed: seed of the recordings for probes; the recordings for pretraining have the next seed.
    """
    folders = {game: folder / game.lower() for game in NUM_EPISODES}
    for game, path in list(folders.items()):
        if not path.exists():
            record(f"ALE/{game}-v5", path, num_episodes=NUM_EPISODES[game], max_steps=max_steps, seed=seed)
        path = folders[f"{game}, every frame"] = folder / f"{game.lower()}_every_frame"
        if not path.exists():
            episodes, steps = EVERY_FRAME[game]
            shares = {"valid_share": 0.1, "test_share": 0.0}
            record(
                f"ALE/{game}-v5", path, num_episodes=episodes, max_steps=steps, seed=seed + 1, **shares, options=STEPS
            )
    return list(folders.values())


def describe(folders: list[Path]) -> str:
    """Return a line with the folders of all games."""
    return "recorded: " + ", ".join(map(str, folders))


if __name__ == "__main__":
    prepare_from_command_line(prepare, describe)
