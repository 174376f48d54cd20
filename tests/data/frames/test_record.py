"""`cpc data record`: the written episodes are compared with a game that the test plays itself."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_pong import BALL_X, BALL_Y, HEIGHT, NAME, PLAYER_Y, WIDTH, SmallPong

from cpc.cli import main
from cpc.data.frames.corpus import FRAMES_NAME, STEPS_NAME, FrameStacks, Recording
from cpc.data.frames.environments import resize_frame
from cpc.data.frames.record import record


def test_an_episode_is_the_game_that_its_seed_plays(recording: Recording) -> None:
    for row in (0, 7):
        seed = int(np.random.SeedSequence((0, row)).generate_state(1)[0])
        game = SmallPong()
        picture, _ = game.reset(seed=seed)
        actions = recording.episode_frames("actions", row)
        frames = recording.read(row)
        assert len(frames) == len(actions) == recording.lengths[row]
        for time, action in enumerate(actions):
            grey = picture.astype(float) @ [0.299, 0.587, 0.114]
            means = grey.reshape(HEIGHT // 2, 2, WIDTH // 2, 2).mean((1, 3))
            np.testing.assert_allclose(frames[time], means, atol=0.51)
            memory = recording.episode_frames("ram", row)[time]
            assert memory[[BALL_X, BALL_Y, PLAYER_Y]].tolist() == game.places.tolist()
            picture, reward, is_over, _, _ = game.step(int(action))
            assert recording.episode_frames("rewards", row)[time] == reward
        assert is_over or len(actions) == 36


def test_the_same_seed_records_the_same_and_another_does_not(recording: Recording, tmp_path: Path) -> None:
    how = dict(num_episodes=4, max_steps=36, progress=False)
    again, other = (record(NAME, tmp_path / str(seed), seed=seed, **how) for seed in (0, 1))
    for row in range(4):
        np.testing.assert_array_equal(again.read(row), recording.read(row))
    assert not np.array_equal(again.read(0)[:20], other.read(0)[:20])


def test_policies_and_pictures_under_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keyed"
    main(["data", "record", "small_pong:small/Keyed-v0", str(folder), "--policy", "small_pong.Stubborn", "--seed", "3"])
    found = Recording(folder)
    assert (found.steps["actions"] == 2).all()
    assert "ram" not in found.steps
    assert found.splits.count("train") == 40 - found.splits.count("valid") - found.splits.count("test")
    assert f"written to {folder}" in capsys.readouterr().out


def test_a_stack_begins_with_the_first_frame_and_ends_with_the_episode(recording: Recording) -> None:
    frames, stacked = recording.read(3), FrameStacks(recording, 3)
    stacks = stacked.read(3, 0, 99)
    for time in range(len(frames)):
        for place, before in enumerate((2, 1, 0)):
            np.testing.assert_array_equal(stacks[time, place], frames[max(time - before, 0)])
    assert len(stacked.read(3, len(frames) - 2, 10)) == 2


def test_grey_is_luminance() -> None:
    assert resize_frame(np.full((4, 2, 3), (255, 0, 0), np.uint8), 2).tolist() == [[[76]], [[76]]]
    assert resize_frame(np.array([[0, 1], [2, 4]], np.uint8), 2).item() == 2  # 1.75


def test_what_cannot_be_recorded(tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: str | Path) -> str:
        return refusal(["data", "record", *map(str, arguments)])

    folder = tmp_path / "new"
    assert "environment 'ALE/Nothing-v5' cannot be made" in refused("ALE/Nothing-v5", folder)
    assert "No module named 'no_such_module'" in refused("no_such_module:Game-v0", folder)
    assert "one picture of bytes" in refused("CartPole-v1", folder)
    assert "--shrink 5 must divide both sides of frames of 24 x 16" in refused(NAME, folder, "--shrink", "5")
    assert "--policy 'small_pong.Nobody'" in refused(NAME, folder, "--policy", "small_pong.Nobody")
    assert "has no begin(seed)" in refused(NAME, folder, "--policy", "small_pong.Silent")
    assert "too few" in refused(NAME, folder, "--num_episodes", "2")
    assert "already exists" in refused(NAME, tmp_path)
    assert not folder.exists()
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert "uv sync --extra frames" in refused(NAME, folder)


def test_a_recording_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: SmallPong, action: int) -> None:
        raise RuntimeError("the game crashed")

    monkeypatch.setattr(SmallPong, "step", fail)
    with pytest.raises(RuntimeError, match="crashed"):
        record(NAME, tmp_path / "broken", num_episodes=4, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_recording_that_is_cut_off_is_named(recording: Recording, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(recording.folder.parent, folder)
    content = (folder / STEPS_NAME).read_bytes()
    (folder / STEPS_NAME).write_bytes(content[:-100])
    with pytest.raises(ValueError, match=rf"^{folder / STEPS_NAME}: cannot be read"):
        _ = Recording(folder).steps
    np.savez(folder / STEPS_NAME, actions=recording.steps["actions"][:-3])
    with pytest.raises(ValueError, match=rf"steps\.npz: .* actions for {recording.lengths.sum()} frames"):
        _ = Recording(folder).steps
    with (folder / FRAMES_NAME / "rows.bin").open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(ValueError, match=rf"^{folder / FRAMES_NAME} holds no complete pack"):
        Recording(folder)


def test_options_of_the_environment(tmp_path: Path) -> None:
    """With frameskip 1 every fourth frame equals a frame with frameskip 4; the policy always moves in one direction."""
    pytest.importorskip("ale_py")
    steady: dict[str, Any] = {"repeat_action_probability": 0.0}
    how: dict[str, Any] = {"num_episodes": 3, "policy": "small_pong.Stubborn", "progress": False}
    fine = record("ALE/Pong-v5", tmp_path / "fine", max_steps=13, options=steady | {"frameskip": 1}, **how)
    coarse = record("ALE/Pong-v5", tmp_path / "coarse", max_steps=4, options=steady, **how)
    assert fine.read(0)[::4].tolist() == coarse.read(0).tolist()
    assert (coarse.shape, coarse.lengths.tolist()) == ((105, 80, 1), [4, 4, 4])
    assert coarse.steps["ram"].shape == (12, 128)
    with pytest.raises(ValueError, match=r"does not take options \{'frame_skip': 1\}"):
        record("ALE/Pong-v5", tmp_path / "none", options={"frame_skip": 1}, **how)
