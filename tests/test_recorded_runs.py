"""Twenty steps of every kind of shipped config, in float64 on one thread, against what was recorded before.

A change of the code's shape must not change what it computes: losses, bounds and weights agree to 1e-10. Where numbers
are meant to change, record them again, `python tests/test_recorded_runs.py`, and say so in the commit.
"""

import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml

from cpc.cli import main
from cpc.data.store.atomic import read_records
from cpc.native.processor import prepare_processor
from cpc.pretraining.pretrain import pretrain

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "recorded_runs.json"
RATE_HZ = 16000
TOLERANCE = 1e-10
# Images are augmented and initialise their encoder in float32, by convolutions that add in another order on processors
# of another kind than the one that recorded.
RECORDED_ON, TOLERANCE_OF_IMAGES_ELSEWHERE = "AVX512", 1e-6


def _arguments(part: str, **values: Any) -> dict[str, Any]:
    return {f"{part}.init_args.{name}": value for name, value in values.items()}


_SMALL_AUDIO = _arguments("model.encoder", dim=12) | _arguments("model.context", dim=10)
_SMALL_AUDIO |= _arguments("model.predictor", num_steps=3)
_SMALL_AUDIO |= _arguments("data", manifest="speech", window_samples=3200, batch_size=4)
_SMALL_IMAGES = _arguments("model.context", width=12, num_blocks=2, hidden_dim=8) | _arguments("data", batch_size=4)
_SMALL_RESNET = _arguments("model.encoder.init_args.trunk", depth=18, stem="imagenet", width=8)
_SMALL_RESNET |= _arguments("model.encoder", patch_size=16, stride=8)
_SMALL_RESNET |= _arguments("data", source="gratings.npz", image_size=40, load_size=48, batch_size=2)
_SMALL_RESNET |= _arguments("data", eval_batches=2, valid_share=0.2, num_workers=0)
_SMALL_TEXT = _arguments("model.encoder", num_tokens=300, dim=12) | _arguments("model.context", dim=12)
_SMALL_TEXT |= _arguments("model.loss.init_args.table", num_classes=300, dim=12)
_SMALL_TEXT |= _arguments("model.loss.init_args.sampler", num_classes=300)
_SMALL_TEXT |= _arguments("data", source="embedded", tokens="words", batch_size=4, valid_share=0.05)
SMALLER: dict[str, dict[str, Any]] = {  # of each shipped kind: its config, and what makes it small
    "cpu_small": _SMALL_AUDIO,
    "cpc_audio_modified": _SMALL_AUDIO
    | _arguments("model.encoder", dim=16)
    | _arguments("model.context", dim=16)
    | _arguments("model.predictor", feedforward_dim=32)
    | _arguments("model.loss", num_negatives=16)
    | _arguments("data", speakers_per_batch=2),
    "fsdd": _SMALL_AUDIO | _arguments("data", window_samples=9600),  # longer than some files: padding
    "image/cpu_small": _SMALL_IMAGES
    | _arguments("model.encoder.init_args.trunk", dim=12, widths=[4, 6, 8])
    | _arguments("data", source="gratings.npz"),
    "image/v2_imagenet": _SMALL_IMAGES | _SMALL_RESNET | _arguments("model.predictor", num_steps=1),
    "image/stl10": _SMALL_IMAGES
    | _SMALL_RESNET
    | _arguments("model.predictor", num_steps=2)
    | _arguments("data", source="unlabelled.npz"),
    "text/cpu_small": _SMALL_TEXT,
    "text/ptb": _SMALL_TEXT,
}
COMMANDS = {  # what is measured of a run afterwards: the command, and the file that it writes
    ("cpu_small", "bound.json"): (
        "evaluate --data speech --negatives mixed mixed_excluding same_speaker --num_negatives all 8 "
        "--estimators tuba nwj dv --num_batches 4 --bank train"
    ),
    ("cpu_small", "probe.json"): (
        "probe --data speech --task phones speaker --features c z mfcc --baselines majority random"
    ),
    ("image/cpu_small", "bound.json"): "evaluate --data gratings.npz --num_batches 4",
    ("image/cpu_small", "probe.json"): (
        "probe --data gratings.npz --task class --features z z_grid c --baselines majority pixels hog"
    ),
    ("text/cpu_small", "bound.json"): "evaluate --data embedded --split test",
}
_READINGS = """loss_nats mi_bound_nats standard_error_nats accuracy accuracy_percent num_candidates value_nats
    perplexity""".split()


def write_corpora(folder: Path) -> None:
    """Glides in noise with alignments; gratings with and without labels; digits of one channel."""
    rng = np.random.default_rng(0)
    rows = [["path", "split", "speaker", "num_samples", "sample_rate_hz", "num_channels"]]
    segments = [["path", "start", "end", "label"]]
    for number in range(24):
        split, speaker = ("train", "train", "valid", "test")[number % 4], number % 3
        path, num_samples = f"{split}/{speaker}-{number}.wav", 4000 + 600 * (number % 5)
        seconds = np.arange(num_samples) / RATE_HZ
        tone = np.where(seconds < 0.15, np.sin(2500 * seconds), np.sign(np.sin((900 + 300 * speaker) * seconds)))
        (folder / "speech" / split).mkdir(parents=True, exist_ok=True)
        wave = (0.2 + 0.1 * speaker) * tone + 0.01 * rng.standard_normal(num_samples)
        soundfile.write(folder / "speech" / path, wave, RATE_HZ)
        rows.append([path, split, f"speaker{speaker}", str(num_samples), str(RATE_HZ), "1"])
        end = f"{num_samples / RATE_HZ:.4f}"
        segments += [[path, "0.0", "0.15", "low"], [path, "0.15", end, "square"]]
    for name, lines in (("manifest.csv", rows), ("alignments.csv", segments)):
        with (folder / "speech" / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(lines)
    for name, side, channels, parts in (
        ("gratings.npz", 64, 3, ("train", "train", "train", "valid", "test")),
        ("digits.npz", 28, 1, ("train", "train", "train", "valid", "test")),
        ("unlabelled.npz", 64, 3, ("unlabelled", "unlabelled", "unlabelled", "valid")),
    ):
        splits = [parts[number % len(parts)] for number in range(40)]
        labels = np.array([-1 if split == "unlabelled" else number // 5 % 2 for number, split in enumerate(splits)])
        along = np.mgrid[:side, :side][labels % 2]
        waves = 128 + 60 * np.sin(2 * np.pi * along / 9 + rng.uniform(0, 6, (40, 1, 1)))
        images = waves[..., None] + rng.normal(0, 10, (*waves.shape, channels))
        images = images.clip(0, 255).astype(np.uint8).squeeze(-1) if channels == 1 else images.clip(0, 255)
        np.savez(folder / name, images=images.astype(np.uint8), labels=labels, split=splits, classes=["a", "b"])


def small_config(kind: str, run_dir: Path) -> dict[str, Any]:
    config = yaml.safe_load((ROOT / "configs" / f"{kind}.yaml").read_text(encoding="utf-8"))
    for name, value in SMALLER[kind].items():
        *path, last = name.split(".")
        section = config
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    config["trainer"] |= {"max_steps": 20, "precision": "64-true", "accelerator": "cpu", "devices": 1, "logger": False}
    config["trainer"]["enable_progress_bar"] = False
    every = {"record_every_steps": 1, "eval_every_steps": 10, "checkpoint_every_steps": 20}
    return config | every | {"run_dir": str(run_dir)}


def readings_of(record: Any) -> Any:
    if isinstance(record, list):
        return [readings_of(each) for each in record]
    if not isinstance(record, dict):
        return record if isinstance(record, (int, float)) else None
    kept = {key: readings_of(value) for key, value in record.items() if isinstance(value, (dict, list))}
    kept = {key: value for key, value in kept.items() if value and _holds_readings(value)}
    return kept | {key: record[key] for key in _READINGS if key in record}


def _holds_readings(value: Any) -> bool:
    if isinstance(value, list):
        return any(_holds_readings(each) for each in value)
    return isinstance(value, dict) and bool(value)


def record_of(kind: str, folder: Path) -> dict[str, Any]:
    prepare_processor()  # as the commands do: encoders are initialised from data by float32 products
    run_dir = folder / "runs" / kind
    pretrain(small_config(kind, run_dir))
    bounds = read_records(run_dir / "bound.jsonl")
    probes = read_records(run_dir / "probe.jsonl") if (run_dir / "probe.jsonl").exists() else []
    checkpoint = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=False)
    found = {
        "bounds": [[line["step"], line["split"], line["strategy"], readings_of(line)] for line in bounds],
        "online_probes": [readings_of(line) for line in probes],
        "norms": {name: float(weight.double().norm()) for name, weight in checkpoint["state_dict"].items()},
    }
    for (of, file), command in COMMANDS.items():
        if of == kind:
            name, *options = command.split()
            if name == "evaluate":  # measured in float32, it would depend on the order of sums
                torch.set_default_dtype(torch.float64)
            try:
                main([name, str(run_dir), *options])
            finally:
                torch.set_default_dtype(torch.float32)
            found[file] = readings_of(json.loads((run_dir / file).read_text()))
    return found


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """Return all numbers, texts and lengths by their place in a record."""
    if not isinstance(value, dict | list):
        return {place: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {f"{place} has": len(value)} | {k: v for key, each in items for k, v in flat(each, f"{place}/{key}").items()}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    write_corpora(folder)
    return folder


@pytest.mark.parametrize("kind", SMALLER)
@pytest.mark.filterwarnings("ignore:`loss.skip_steps`=0, but the next")
def test_a_run_is_what_it_was(kind: str, corpora: Path, monkeypatch: pytest.MonkeyPatch, unchecked_types: None) -> None:
    if kind.startswith("text/") and sys.version_info[:2] != (3, 11):
        pytest.skip("the text is Python's own documentation, and was recorded with 3.11's")
    monkeypatch.chdir(corpora)
    recorded = json.loads(RECORDED.read_text())[kind]
    is_elsewhere = kind.startswith("image/") and torch.backends.cpu.get_cpu_capability() != RECORDED_ON
    tolerance = TOLERANCE_OF_IMAGES_ELSEWHERE if is_elsewhere else TOLERANCE
    found, expected = flat(record_of(kind, corpora)), flat(recorded)
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        is_number = isinstance(value, float)
        assert found[place] == (pytest.approx(value, rel=tolerance, abs=tolerance) if is_number else value), place


if __name__ == "__main__":
    import os

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        write_corpora(Path(name))
        kinds = sys.argv[1:] or list(SMALLER)
        everything = {kind: record_of(kind, Path(name)) for kind in kinds}
    if not sys.argv[1:]:
        RECORDED.write_text(json.dumps(everything) + "\n")
    print({kind: len(json.dumps(value)) for kind, value in everything.items()})
