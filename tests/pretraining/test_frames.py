"""Frames through the real commands: trained, resumed exactly, measured, probed, embedded, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from small_pong import NAME

from cpc.checkpoint import load_pretrained
from cpc.cli import main
from cpc.data.frames.corpus import FrameStacks, Recording
from cpc.data.frames.record import record
from cpc.data.store.atomic import read_records
from cpc.quickstart.recipe import part

LAYERS = {"widths": [8], "kernels": [3], "strides": [1]}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    shares: dict[str, Any] = {"valid_share": 0.3, "test_share": 0.2}
    return record(NAME, tmp_path_factory.mktemp("frames") / "pong", num_episodes=12, progress=False, **shares)


@pytest.fixture(scope="module")
def source(recording: Recording) -> Path:
    return recording.folder.parent


@pytest.fixture(scope="module")
def config(source: Path) -> dict[str, Any]:
    return {
        "model": {
            "encoder": part("encoders.FrameEncoder", frame_size=[12, 8], dim=12, num_frames=2, **LAYERS),
            "context": part("contexts.GRU", dim=12),
            "predictor": part("predictors.Bilinear", num_steps=2),
            "learning_rate": 3e-3,
        },
        "data": part("data.Frames", source=str(source), window_frames=12, stack=2, batch_size=6, eval_batches=1),
        "trainer": {"max_steps": 40, "accelerator": "cpu", "enable_progress_bar": False, "logger": False},
        "eval_every_steps": 20,
        "checkpoint_every_steps": 20,
    }


def test_it_learns_and_evaluate_measures_other_episodes(run_dir: Path, source: Path) -> None:
    losses = [line["loss_nats"][0] for line in read_records(run_dir / "bound.jsonl") if line["split"] == "valid"]
    assert losses[-1] < losses[0]
    main(["evaluate", str(run_dir), "--data", str(source), "--split", "test", "--negatives", "mixed_excluding"])
    (bound,) = json.loads((run_dir / "bound.json").read_text())["bounds"]
    assert bound["split"] == "test"
    assert (np.array(bound["num_candidates"]) <= 1 + 5 * 12).all()


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_probe_reads_the_state(
    run_dir: Path, source: Path, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["probe", str(run_dir), "--data", str(source), "--task", "state", "--supervised_seconds", "0.2"]
    main(command)
    report = json.loads((run_dir / "probe.json").read_text())
    assert list(report["tasks"]) == ["player_y", "ball_x", "ball_y"]  # all that ever moves
    printed = capsys.readouterr().out
    assert "agent_localisation: left out, entropy below 0.6 nats: player_x" in printed
    assert "state: mean F1 over agent_localisation, small_object_localisation" in printed
    results = report["tasks"]["ball_x"]["results"]
    assert set(results) == {"cpc", "cpc_z", "random", "random_z", "supervised", "majority"}
    assert results["cpc_z"]["f1_percent"] > 30 > results["majority"]["f1_percent"]
    families = report["families"]
    of_ball = np.mean([report["tasks"][name]["results"]["cpc"]["f1_percent"] for name in ("ball_x", "ball_y")])
    assert families["small_object_localisation"]["f1_percent"]["cpc"] == pytest.approx(of_ball)
    of_player = report["tasks"]["player_y"]["results"]["cpc"]["f1_percent"]
    assert families["state"]["f1_percent"]["cpc"] == pytest.approx((of_ball + of_player) / 2)
    # Test frames that training has, too, are left out.
    train, test = (
        [frame.tobytes() for row in recording.rows(split).tolist() for frame in recording.read(row)]
        for split in ("train", "test")
    )
    known = set(train)
    assert results["cpc"]["num_test"] == sum(frame not in known for frame in test) < len(test)


def test_what_cannot_be_probed(run_dir: Path, source: Path, refusal: Callable[..., str]) -> None:
    for task, message in (
        ("lives", "is not one of state, agent_localisation"),
        ("other_localisation", "no variable of the category changes enough"),
    ):
        assert message in refusal(["probe", str(run_dir), "--data", str(source), "--task", task])
    keyed = source.parent / "keyed"
    record("small_pong:small/Keyed-v0", keyed, num_episodes=4, progress=False)
    assert "the state of small_pong:small/Keyed-v0 is not known" in refusal(
        ["probe", str(run_dir), "--data", str(keyed), "--task", "state"]
    )


def test_embed_reads_episodes_from_files(
    run_dir: Path, source: Path, recording: Recording, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    frames = recording.read(0)
    (tmp_path / "files").mkdir()
    np.save(tmp_path / "files" / "first.npy", frames)
    main(["embed", str(run_dir), str(tmp_path / "files"), "--out", str(tmp_path / "out"), "--features", "c"])
    model = load_pretrained(run_dir)
    with torch.no_grad():
        _, contexts, _ = model.encode(torch.from_numpy(FrameStacks(recording, 2).read(0, 0, 99))[None])
    np.testing.assert_allclose(np.load(tmp_path / "out" / "first.npy"), contexts[0], atol=1e-5)
    np.save(tmp_path / "files" / "first.npy", frames[:, :4])
    assert "an episode is uint8 [T, 12, 8]" in refusal(
        ["embed", str(run_dir), str(tmp_path / "files"), "--out", str(tmp_path / "other")]
    )


def test_what_cannot_be_trained_on(source: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    brief = source.parent / "brief"
    record(NAME, brief, num_episodes=6, max_steps=2, progress=False)
    for folder, options, message in (
        (source, ["--data.window_frames", "2"], "the model predicts 2 steps ahead: raise it"),
        (brief, ["--model.extra_strategies", "[]"], "longest episode has 2 frames, but the model predicts 2 steps"),
        (tmp_path, [], "holds no recorded episodes"),
        (source, ["--data.train_split", "dev"], "no episode is of split 'dev'"),
        (source, ["--model.loss.negatives", "same_speaker"], "episodes have no speakers"),
    ):
        assert message in refused(f"--data.source={folder}", *options)
