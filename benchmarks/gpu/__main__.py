"""Everything that a GPU is asked, in at most four minutes, first what decides.

python -m benchmarks.gpu [--parts step loss ...] [--out gpu.json] [--device cuda] [--quick]

- `step` (65 s): the training step at CPC_audio's size with 64, 8 and 256 windows, eager and as a CUDA graph, with a GRU
  and an LSTM, all candidates and 128 drawn; and the style of public code, with its negatives drawn once.
- `loss` (45 s): the loss of 65,536 and 16,384 rows in bf16, TF32 and float32, and sizes of tiles; beside it Inf-CL
  (`inf_cl`), Liger (`liger_kernel`), memeff (`memeff`) and siglip-kernel (`siglip_kernel`; another loss, a sigmoid of
  every pair) where they are installed, and materialised scores.
- `train` (45 s): `cpc pretrain --config configs/librispeech960.yaml` on one GPU and noise, in each mode of `--compile`.
- `checks` (25 s): every loss and its gradients in float32, TF32 and bf16 against float64 on the CPU.
- `drawn` (10 s): 128 drawn negatives by all scores and counts of draws, and by products with gathered candidates.
- `compile` (35 s): the recurrence by itself; the steps of `cpc pretrain --compile reduce-overhead` without Lightning;
  the step with a compiled model, and its first step.

Each row is printed when it is measured. A row that fails, or finds the time of its part over, has its error, and the
rest goes on. `--out` holds all rows after each part. The last line is JSON: for each row the figure that decides.
`--quick` takes small sizes; `--device cpu` then shows that the command runs, and nothing about a GPU.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.gpu.checks import check_rows
from benchmarks.gpu.device import PRECISIONS, Device, Row
from benchmarks.gpu.loss import drawn_rows, loss_rows
from benchmarks.gpu.step import compile_rows, step_rows
from benchmarks.gpu.train import train_rows

PARTS: dict[str, tuple[Callable[[Device, bool], list[Row]], int, str]] = {
    # name: (rows, seconds, the figure that decides)
    "step": (step_rows, 65, "windows_per_second"),
    "loss": (loss_rows, 45, "ms"),
    "train": (train_rows, 45, "windows_per_second"),
    "checks": (check_rows, 25, "error_of_gradients"),
    "drawn": (drawn_rows, 10, "ms"),
    "compile": (compile_rows, 35, "ms"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", default="gpu.json")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can see; --device cpu --quick shows that the command runs")
    on = Device(options.device)
    peaks = {each: on.peak_flops(each, 1024 if options.quick else 8192) / 1e12 for each in PRECISIONS}
    found: dict[str, Any] = {"device": on.name, "torch": torch.__version__, "peak_tflops": peaks}
    figures: dict[str, Any] = {"device": on.name, "peak_tflops": {name: round(peak) for name, peak in peaks.items()}}
    for name in options.parts:
        measure, seconds, figure = PARTS[name]
        start = time.monotonic()
        on.until = start + seconds
        rows = measure(on, options.quick)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        found[name] = rows
        with open(options.out, "w") as out:  # whatever comes later
            json.dump(found, out, indent=1)
        if name == "checks":
            figures["checks_failed"] = [row["name"] for row in rows if not row["passes"]]
        else:
            figures[name] = {row["name"]: float(f"{row[figure]:.4g}") for row in rows if figure in row}
        figures[f"{name}_errors"] = sum("error" in row for row in rows)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
