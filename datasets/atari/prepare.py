"""Record all three games at random: python datasets/atari/prepare.py DIR, as `cpc data record` does (see card.md).

Each game is recorded twice: for probes at every fourth frame, and for pretraining, with another seed, at every frame.
"""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.frames.record import record

NUM_EPISODES = {"Pong": 40, "Boxing": 40, "Breakout": 200}  # a random player's Breakout is over in about 200 frames
# To pretrain on: episodes, and steps of each at most. An action is repeated as often as it is in the others.
EVERY_FRAME = {"Pong": (30, 2400), "Boxing": (30, 2400), "Breakout": (90, 1000)}
STEPS = {"frameskip": 1, "repeat_action_probability": 0.75}


def prepare(folder: Path, *, max_steps: int = 1000, seed: int = 0) -> list[Path]:
    """Record episodes of Pong, Boxing and Breakout; games that are there already are left alone.

    Args:
        folder: where each game gets a folder, and one with `_every_frame` after its name.
        max_steps: of an episode, at most.
        seed: of the recordings for probes; those to pretrain on have the next one.
    """
    places = {game: folder / game.lower() for game in NUM_EPISODES}
    for game, place in list(places.items()):
        if not place.exists():
            record(f"ALE/{game}-v5", place, num_episodes=NUM_EPISODES[game], max_steps=max_steps, seed=seed)
        place = places[f"{game}, every frame"] = folder / f"{game.lower()}_every_frame"
        if not place.exists():
            episodes, steps = EVERY_FRAME[game]
            parts = {"valid_share": 0.1, "test_share": 0.0}
            record(
                f"ALE/{game}-v5", place, num_episodes=episodes, max_steps=steps, seed=seed + 1, **parts, options=STEPS
            )
    return list(places.values())


def describe(places: list[Path]) -> str:
    """Where the games are."""
    return "recorded: " + ", ".join(map(str, places))


if __name__ == "__main__":
    prepare_from_command_line(prepare, describe)
