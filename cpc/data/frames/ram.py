"""Addresses of the state variables in the memory of Atari games, by category (Anand et al. 2019, arXiv:1906.08226)."""

from collections.abc import Mapping

LEAST_ENTROPY_NATS = 0.6  # a variable whose entropy over recorded frames is lower is nearly constant

CATEGORIES: Mapping[str, Mapping[str, Mapping[str, int]]] = {  # by category: variable and byte (0 to 127)
    "Boxing": {
        "agent_localisation": {"player_x": 32, "player_y": 34},
        "other_localisation": {"enemy_x": 33, "enemy_y": 35},
        "score_clock_lives_display": {"clock": 17, "player_score": 18, "enemy_score": 19},
    },
    "Breakout": {
        "agent_localisation": {"player_x": 72},
        "small_object_localisation": {"ball_x": 99, "ball_y": 101},
        "score_clock_lives_display": {"score": 84},
        "miscellaneous": {"blocks_hit_count": 77, **{f"block_bit_map_{byte}": byte for byte in range(30)}},
    },
    "Pong": {
        "agent_localisation": {"player_x": 46, "player_y": 51},
        "small_object_localisation": {"ball_x": 49, "ball_y": 54},
        "other_localisation": {"enemy_x": 45, "enemy_y": 50},
        "score_clock_lives_display": {"enemy_score": 13, "player_score": 14},
    },
}


def state_variables(environment: str) -> Mapping[str, Mapping[str, int]]:
    """Return the variables of an environment by category; empty if its game has no table.

    The game of `ALE/Pong-v5` is Pong.
    """
    return CATEGORIES.get(environment.rpartition("/")[2].partition("-")[0], {})
