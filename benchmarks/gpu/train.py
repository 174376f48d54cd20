"""`cpc pretrain --config configs/librispeech960.yaml --trainer.devices 1 --trainer.strategy auto` on files of noise."""

import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks import stopwatch
from benchmarks.gpu.device import Device, Row
from benchmarks.noise import write_noise
from cpc.pretraining.pretrain import pretrain

CONFIG = Path(__file__).parents[2] / "configs" / "librispeech960.yaml"
NUM_WARM_UP_STEPS = 50
MODES = ("off", "reduce-overhead", "default")


def train_rows(on: Device, is_quick: bool) -> list[Row]:
    """The speed of the command with each mode of `--compile`, before its evaluation."""
    with tempfile.TemporaryDirectory() as name:
        corpus = write_noise(Path(name) / "corpus", num_files=240, seconds=14.0)  # two held-out batches
        return [
            on.tried(f"librispeech960.yaml, compile {mode}", _pretrained, on, mode, corpus, 3 if is_quick else 250)
            for mode in (MODES if on.is_gpu else MODES[:1])
        ]


def _pretrained(on: Device, mode: str, corpus: Path, num_steps: int) -> Row:
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    data, trainer = config["data"]["init_args"], config["trainer"]
    if not on.is_gpu:
        data |= {"batch_size": 8, "window_samples": 4000}
        trainer["precision"] = "32-true"
    num_warm_up_steps = min(NUM_WARM_UP_STEPS, num_steps - 2)
    data["manifest"] = str(corpus)
    trainer |= {"accelerator": "gpu" if on.is_gpu else "cpu", "devices": 1, "strategy": "auto"}
    trainer |= {"max_steps": num_steps, "callbacks": [{"class_path": "benchmarks.stopwatch.Stopwatch"}]}
    stopwatch.starts.clear()
    pretrain(config | {"run_dir": str(corpus.parent / mode), "compile": mode})
    starts = stopwatch.starts[num_warm_up_steps:]
    seconds = (starts[-1] - starts[0]) / (len(starts) - 1)
    return {"ms": 1e3 * seconds, "windows_per_second": data["batch_size"] / seconds}
