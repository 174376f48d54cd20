"""Record all three games at random: python datasets/atari/prepare.py DIR, as `cpc data record` does (see card.md)."""

from pathlib import Path

from cpc.data.frames.record import record
from cpc.options import prepare_from_command_line

NUM_EPISODES = {"Pong": 40, "Boxing": 40, "Breakout": 200}  # a random player's Breakout is over in about 200 frames


def prepare(folder: Path, *, max_steps: int = 1000, seed: int = 0) -> list[Path]:
    """Record episodes of Pong, Boxing and Breakout; games that are there already are left alone.

    Args:
        folder: where each game gets a folder.
        max_steps: of an episode, at most.
        seed: of the recordings.
    """
    places = {game: folder / game.lower() for game in NUM_EPISODES}
    for game, place in places.items():
        if not place.exists():
            record(f"ALE/{game}-v5", place, num_episodes=NUM_EPISODES[game], max_steps=max_steps, seed=seed)
    return list(places.values())


def describe(places: list[Path]) -> str:
    """Where the games are."""
    return "recorded: " + ", ".join(map(str, places))


if __name__ == "__main__":
    prepare_from_command_line(prepare, describe)
