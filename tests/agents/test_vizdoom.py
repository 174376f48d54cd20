"""ViZDoom's games: exact to resume, and nothing left in the working folder."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vizdoom")

from cpc.agents.comparison import read_config
from cpc.agents.environments import Environments

BASIC = Path(__file__).parents[2] / "configs" / "agents" / "basic.yaml"


def test_a_game_goes_on_where_it_was_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    architecture, environment, _ = read_config(BASIC)
    first, second = (Environments(environment, 1, seed=3) for _ in range(2))
    assert list(first.observations.shape[2:]) == architecture["init_args"]["encoder"]["init_args"]["frame_size"]
    draws = np.random.default_rng(0)
    num_ends = 0
    while num_ends < 2 or len(first.state_dict()["actions"][0]) < 5:
        num_ends += first.step(draws.integers(first.num_actions, size=1))[1].sum()
    second.load_state_dict(first.state_dict())
    for _ in range(20):
        np.testing.assert_array_equal(second.observations, first.observations)
        actions = draws.integers(first.num_actions, size=1)
        there, here = second.step(actions), first.step(actions)
        assert [there[i] for i in (0, 1, 3)] == [here[i] for i in (0, 1, 3)]
    for each in (first, second):
        each.close()
    assert list(tmp_path.iterdir()) == []
