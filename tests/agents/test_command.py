"""`cpc agent` on a game that is played in microseconds: runs, resumes, compares."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from refusals import refuses
from scipy.stats import ttest_rel

pytest.importorskip("gymnasium")

from small_pong import NAME

import cpc
from cpc.agents.comparison import _differences, _steps_to_threshold, _summary, _table, train_agents
from cpc.agents.environments import Environment, Environments
from cpc.cli import main
from cpc.data.store.atomic import read_records
from cpc.quickstart.recipe import part

pytestmark = pytest.mark.usefixtures("unchecked_types")  # hundreds of equal updates

CONFIGS = Path(__file__).parents[2] / "configs" / "agents"
CONFIG: dict[str, Any] = {
    "model": {
        "encoder": part("encoders.FrameEncoder", frame_size=[12, 8], dim=8, kernels=[4], strides=[2], widths=[4]),
        "context": part("contexts.GRU", dim=8),
        "predictor": part("predictors.Bilinear", num_steps=2),
    },
    "environment": {"name": NAME, "shrink": 2},
    "a2c": {"num_environments": 3, "rollout_steps": 5, "num_steps": 600, "record_every_updates": 4},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path / "config.yaml")


def written(path: Path, **changes: dict[str, Any]) -> Path:
    content = {section: values | changes.get(section, {}) for section, values in CONFIG.items()}
    path.write_text(yaml.safe_dump(content))
    return path


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "last.ckpt")["agent"]


def test_arms_and_seeds_are_compared(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    main(["agent", str(config), "--run_dir", str(out), "--num_seeds", "2", "--threshold", "-100"])
    compared = json.loads((out / "comparison.json").read_text())
    assert list(compared["by_cpc_weight"]) == ["0", "0.1"]
    assert all(len(each["final_returns"]) == 2 for each in compared["by_cpc_weight"].values())
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "2 of 2" in capsys.readouterr().out
    cpc_run, plain_run = (out / f"cpc_{weight}" / "seed_1" for weight in ("0.1", "0"))
    assert [r["step"] for r in read_records(cpc_run / "bound.jsonl")] == [*range(60, 601, 60)]
    assert not (plain_run / "bound.jsonl").exists()
    assert [r["event"] for r in read_records(plain_run / "events.jsonl")] == ["started", "finished"]
    assert cpc.load_pretrained(cpc_run).encoder.frame_size == (12, 8)
    first, second = (cpc.load_pretrained(run).predictor.linear.weight for run in (cpc_run, plain_run))
    assert (first != second).any()  # the loss has trained the predictors of only one run
    difference = compared["differences"]["0.1"]
    assert difference["steps_to_threshold"]["is_resolved"] is False  # both reach it with the first records


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = written(tmp_path / "config.yaml", a2c={"save_every_updates": 7})
    options: dict[str, Any] = {"num_seeds": 1, "cpc_weights": [0.1]}
    train_agents(config, run_dir=tmp_path / "whole", **options)
    real, played = Environments.step, []

    def step(self: Environments, actions: np.ndarray) -> Any:
        played.append(actions)
        if len(played) == 62:  # in the middle of an update after the save of the seventh, initialisation included
            raise KeyboardInterrupt
        return real(self, actions)

    monkeypatch.setattr(Environments, "step", step)
    with pytest.raises(KeyboardInterrupt):
        train_agents(config, run_dir=tmp_path / "broken", **options)
    monkeypatch.undo()
    train_agents(config, run_dir=tmp_path / "broken", **options)
    whole, broken = (tmp_path / name / "cpc_0.1" / "seed_0" for name in ("whole", "broken"))
    torch.testing.assert_close(weights_of(broken), weights_of(whole), rtol=0, atol=0)
    assert (broken / "bound.jsonl").read_text() == (whole / "bound.jsonl").read_text()
    returns = [[r["mean_return"] for r in read_records(run / "returns.jsonl")] for run in (whole, broken)]
    assert returns[0] == returns[1]
    assert [r["event"] for r in read_records(broken / "events.jsonl")] == ["started", "resumed", "finished"]


def test_a_run_that_ended_opens_nothing(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path / "runs", "num_seeds": 1}
    compared = train_agents(config, **options)
    events = tmp_path / "runs" / "cpc_0" / "seed_0" / "events.jsonl"
    before = events.read_text()
    monkeypatch.setattr(Environment, "make", lambda self: pytest.fail("an environment was opened"))
    assert train_agents(config, **options) == compared
    assert events.read_text() == before
    refuses(r"=40 must be at least 0 and at most 20", train_agents, config, num_steps=300, **options)


def test_every_byte_of_a_checkpoint_counts_and_every_setting(config: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path / "runs", "num_seeds": 1, "cpc_weights": [0.0]}
    train_agents(config, **options)
    refuses("values of a2c.discount", train_agents, written(tmp_path / "other.yaml", a2c={"discount": 0.5}), **options)
    (tmp_path / "bad.yaml").write_text("model: {}")
    refuses(r"bad.yaml: .* arguments are required: environment.name", train_agents, tmp_path / "bad.yaml", **options)
    path = tmp_path / "runs" / "cpc_0" / "seed_0" / "last.ckpt"
    whole = path.read_bytes()
    weight = torch.load(path)["agent"]["policy.weight"].numpy().tobytes()
    place = whole.index(weight)
    flipped = bytearray(whole)
    flipped[place] ^= 1
    for damaged in (bytes(flipped), whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        refuses(r"last.ckpt cannot be read: cut off, damaged", train_agents, config, **options)
    torch.save({"settings": {}}, path)
    refuses(r"was not written by cpc agent: it lacks update, agent, optimiser", train_agents, config, **options)


def test_differences_are_those_of_the_seeds() -> None:
    """Against scipy's paired t-test, whose interval leaves zero out where its p-value is below 0.05."""
    draws = np.random.default_rng(0)
    steps = np.arange(10.0, 110, 10)
    for gain in (0.0, 3.0):
        ends = draws.normal(size=(2, 5)) + np.array([[0.0], [gain]])
        arms = [[(steps, np.r_[np.zeros(9), end]) for end in arm_ends] for arm_ends in ends]
        summaries = {str(number): _summary(arm, 100, None) for number, arm in enumerate(arms)}
        found = _differences(summaries, 100)["1"]["final_return"]
        tested = ttest_rel(ends[1], ends[0])
        assert found["interval"] == pytest.approx(list(tested.confidence_interval(0.95)))
        assert found["is_resolved"] == (tested.pvalue < 0.05) == (gain > 0)


def test_a_threshold_that_a_seed_never_reaches_is_a_limit() -> None:
    steps = np.arange(10, 110, 10)
    curves = [(steps, np.full(10, value)) for value in (1.0, 0.0)]
    found = _summary(curves, 100, 1.0)
    assert found["steps_to_threshold"] == [50, None]
    assert found["mean_steps_to_threshold"] == 75
    summaries = {"0": found, "0.1": _summary([curves[0], curves[0]], 100, 1.0)}
    comparison = {"environment": "e", "num_steps": 100, "num_seeds": 2, "by_cpc_weight": summaries}
    table = str(_table(comparison | {"differences": _differences(summaries, 100)}))
    assert re.search(r"^ +0 .*>= 75 .* 1 of 2$", table, re.MULTILINE)
    assert re.search(r"^ +0\.1 .* 50 .* 2 of 2$", table, re.MULTILINE)
    assert "steps to threshold, weight 0.1 minus weight 0: -25 (-343 to +293): the difference is not resolved" in table


def test_environments_are_where_they_were() -> None:
    first, second = (Environments(Environment(name=NAME), 2, seed=3) for _ in range(2))
    draws = np.random.default_rng(0)
    ends = 0
    for _ in range(90):
        ends += first.step(draws.integers(3, size=2))[1].sum()
    assert ends >= 4
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(second.observations, first.observations)
    for _ in range(50):
        actions = draws.integers(3, size=2)
        (_, is_end_there, _, there), (_, is_end, _, here) = second.step(actions), first.step(actions)
        np.testing.assert_array_equal(is_end_there, is_end)
        assert there == here
        np.testing.assert_array_equal(second.observations, first.observations)


def test_an_episode_cut_by_time_has_a_future() -> None:
    made = Environments(Environment(name=NAME, options={"max_episode_steps": 4}), 1, seed=0)
    for number in range(1, 5):
        _, is_end, last, returns = made.step(np.array([1]))
        assert (is_end[0], list(last)) == (number == 4, [0] * (number == 4))
    assert returns == [4.0]
    assert (last[0] != made.observations[0]).any()  # another episode has begun


def test_steps_to_a_threshold() -> None:
    steps, returns = np.arange(10, 110, 10), np.array([0, 0, 9, 0, 0, 0, 5, 5, 5, 5.0])
    assert _steps_to_threshold(4.0, steps, returns) == 100
    assert _steps_to_threshold(1.8, steps, returns) == 50
    assert _steps_to_threshold(4.1, steps, returns) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": {"name": "nothing:Here-v0"}}, "'nothing:Here-v0' cannot be made: No module"),
        ({"environment": {"size": 3}}, "does not accept option .size."),
        ({"environment": {"name": "MountainCarContinuous-v0"}}, "must be Discrete"),
        ({"environment": {"shrink": 1}}, "frames is torch.uint8 of the shape"),
        ({"a2c": {"learning_rate": 0}}, "a2c.learning_rate.=0.0 must be positive"),
        ({"a2c": {"learning_rate": "fast"}}, r"(?s)a2c\.learning_rate.*Got value: fast"),
    ],
)
def test_what_cannot_be_played_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refuses(message, train_agents, written(tmp_path / "config.yaml", **changes), run_dir=tmp_path / "runs", num_seeds=1)
