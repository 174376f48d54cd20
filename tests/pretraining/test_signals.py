"""Signals through the real commands: trained, resumed, evaluated, probed in windows and per sample, embedded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpc.checkpoint import load_pretrained
from cpc.cli import main
from cpc.data.store.atomic import read_records
from cpc.quickstart.recipe import part

pytestmark = pytest.mark.usefixtures("unchecked_types")  # thousands of products in each fit of a probe

RATE_HZ = 20.0
NUM_PEOPLE, NUM_SAMPLES = 10, 900


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten people, each with stretches of a slow and of a fast oscillation."""
    rng = np.random.default_rng(0)
    label = np.stack([np.repeat(rng.permutation([0, 1, 0, 1, 0, 1]), NUM_SAMPLES // 6) for _ in range(NUM_PEOPLE)])
    phase = np.cumsum(np.where(label == 1, 1.4, 0.4) * rng.uniform(0.9, 1.1, label.shape), 1)
    x = np.stack([np.sin(phase), np.cos(phase), phase * 0], 2) + 0.3 * rng.normal(size=(*label.shape, 3))
    path = tmp_path_factory.mktemp("signals") / "signals.npz"
    facts: dict[str, Any] = {"group": np.arange(NUM_PEOPLE), "label": label, "sample_rate_hz": RATE_HZ}
    np.savez(path, x=x.astype(np.float32), channels=["sine", "cosine", "noise"], units=["mT", "", "g"], **facts)
    others = x[..., [2, 0, 1]] * (9.80665, 1e3, 1)  # the same in other units and in another order
    facts |= {"channels": ["noise", "sine", "cosine"], "units": ["m/s2", "uT", "V"]}
    np.savez(path.with_name("others.npz"), x=others, **facts)
    return path


@pytest.fixture(scope="module")
def config(source: Path) -> dict[str, Any]:
    layers, sampling = {"kernels": [4, 2], "strides": [2, 2]}, {"batch_size": 16, "eval_batches": 1, "valid_share": 0.2}
    trainer = {"max_steps": 60, "accelerator": "cpu", "enable_progress_bar": False, "logger": False}
    return {
        "model": {
            "encoder": part("encoders.SignalEncoder", channels=3, dim=16, sample_rate_hz=RATE_HZ, **layers),
            "context": part("contexts.GRU", dim=16),
            "predictor": part("predictors.Bilinear", num_steps=2),
            "loss": part("losses.Contrastive", skip_steps=1),
            "learning_rate": 3e-3,
        },
        "data": part("data.Signals", source=str(source), window_seconds=5.0, labels="label", **sampling),
        "trainer": trainer | {"callbacks": [part("probes.OnlineProbe", task="label")]},
        "eval_every_steps": 30,
        "checkpoint_every_steps": 30,
    }


def test_it_trains_and_resumes_bit_for_bit(
    run: Callable[..., Path], run_dir: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs that start from a model, on files of another order and other units, keep the model's."""
    losses = [line["loss_nats"][0] for line in read_records(run_dir / "bound.jsonl") if line["split"] == "valid"]
    assert losses[-1] < losses[0]
    assert read_records(run_dir / "probe.jsonl")[-1]["accuracy"] > 0.55
    others, initial = f"--data.source={source.with_name('others.npz')}", f"--init_from={run_dir}"
    whole = run(others, initial, "--trainer.max_steps=20", name="whole")
    parts = run(others, initial, "--trainer.max_steps=10", name="parts")
    run(others, "--ckpt_path=last", "--trainer.max_steps=20", name="parts")
    assert "converted sine from uT to mT (10 of 10 recordings), noise from m/s2 to g" in capsys.readouterr().err
    expected, found = (load_pretrained(folder).state_dict() for folder in (whole, parts))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    for folder in (run_dir, whole, parts):
        encoder = load_pretrained(folder).encoder
        assert (encoder.channel_names, encoder.units) == (("sine", "cosine", "noise"), ("mT", "", "g"))
    main(["evaluate", str(run_dir), "--data", str(source), "--negatives", "mixed_excluding", "--split", "valid"])
    (bound,) = json.loads((run_dir / "bound.json").read_text())["bounds"]
    assert bound["strategy"] == "mixed_excluding"
    assert np.all(np.array(bound["mi_bound_nats"]) <= bound["mi_ceiling_nats"])


def test_probe_judges_windows_and_recordings(run_dir: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["probe", str(run_dir), "--data", str(source), "--task", "label", "--folds", "group", "--num_folds", "2"]
    windows = ["--window_seconds", "2", "--hop_seconds", "1"]
    features = ["--features", "c", "z", "c_stream", "--baselines", "majority", "random", "hand", "hand_past"]
    main([*command, *windows, *features, "supervised", "--supervised_seconds", "0.5"])
    task = json.loads((run_dir / "probe.json").read_text())["tasks"]["label"]
    names = ["cpc", "cpc_z", "cpc_stream", "hand", "hand_past", "random", "random_z", "random_stream"]
    names += ["supervised", "majority"]
    assert list(task["results"]) == names
    assert task["protocol"]["unit"] == "window"
    assert min(task["results"][name]["accuracy_percent"] for name in names[:5]) > 85
    assert task["results"]["majority"]["accuracy_percent"] < 60 < task["results"]["supervised"]["accuracy_percent"]
    # Windows with two labels have none: 44 windows begin each second, and 5 changes of label are in 2 s each at most.
    assert NUM_PEOPLE * (44 - 5 * 2) <= task["protocol"]["num_test"] < NUM_PEOPLE * 44
    assert "mean_std over the window" in capsys.readouterr().out


def test_probe_judges_every_sample_of_recordings(run_dir: Path, source: Path) -> None:
    command = ["probe", str(run_dir), "--data", str(source), "--task", "label", "--folds", "group", "--num_folds", "2"]
    main([*command, "--features", "c", "--baselines", "majority", "supervised", "--supervised_seconds", "0.5"])
    task = json.loads((run_dir / "probe.json").read_text())["tasks"]["label"]
    assert (task["protocol"]["unit"], task["protocol"]["pool"]) == ("recording", "frames")
    assert task["results"]["cpc"]["num_test"] == NUM_PEOPLE * NUM_SAMPLES // 4
    assert task["results"]["cpc"]["accuracy_percent"] > 70
    with pytest.raises(SystemExit):
        main([*command, "--features", "hand"])
    with pytest.raises(SystemExit):
        main([*command[:4], "--task", "mood"])
