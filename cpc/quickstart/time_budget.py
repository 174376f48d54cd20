"""Checks and timings before a quickstart: the output folder, the extras, and the number of steps that fit."""

import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from cpc.config.extras import install_hint
from cpc.data.batch import Batch
from cpc.data.probe_data import Precision as ProbePrecision

FEWEST_STEPS, MOST_STEPS = 300, 3000
MEASURING_SECONDS = 2.0


class Precision(NamedTuple):
    """Names of one precision for the trainer, the loss (`compute`) and the probes."""

    trainer: str
    loss: str
    probes: ProbePrecision


BFLOAT16 = Precision("bf16-mixed", "bf16", "bfloat16")
FLOAT32 = Precision("32-true", "float32", "float32")
PRECISIONS = (BFLOAT16, FLOAT32)


def require_new(out: Path, runs: Iterable[str]) -> None:
    """Check that the output folder holds no quickstart.

    Args:
        out: the folder.
        runs: names of the run folders, which exist before the report does.

    Raises:
        ValueError: if the folder holds a quickstart; if it is unfinished, the message names the folders to remove.
    """
    if (out / "report.json").exists():
        raise ValueError(f"{out} already holds a quickstart: name another folder with --out")
    unfinished = [str(out / name) for name in runs if (out / name).exists()]
    if unfinished:
        raise ValueError(
            f"{out} holds an unfinished quickstart, which cannot be continued: remove {', '.join(unfinished)} to "
            "begin again, or name another folder with --out"
        )


def require_extras(extras: Mapping[str, str]) -> None:
    """Check that each module can be imported.

    Args:
        extras: the extra that installs each module.

    Raises:
        ValueError: if a module cannot be imported.
    """
    for module, extra in extras.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"the quickstart needs {module.partition('.')[0]}: {install_hint(extra)} ({error})"
            ) from error


@dataclass(frozen=True)
class StepTimes:
    """Durations of training steps on this machine.

    Attributes:
        step_seconds: seconds of a training step without data loading, by precision (in Lightning's notation).
    """

    step_seconds: dict[str, float]

    @property
    def precision(self) -> Precision:
        """The precision with the fastest steps."""
        fastest = min(self.step_seconds, key=self.step_seconds.__getitem__)
        return next(precision for precision in PRECISIONS if precision.trainer == fastest)

    def num_steps(self, seconds: float, most: int = MOST_STEPS) -> int:
        """Return the number of steps that fit in `seconds` in the fastest precision, from `FEWEST_STEPS` to `most`."""
        affordable = seconds / self.step_seconds[self.precision.trainer]
        return int(np.clip(affordable // 50 * 50, FEWEST_STEPS, most))

    def record(self) -> dict[str, Any]:
        """Return the precision and the durations as fields of report.json."""
        rounded = {name: round(seconds, 4) for name, seconds in self.step_seconds.items()}
        return {"precision": self.precision.trainer, "step_seconds": rounded}

    def __str__(self) -> str:
        times = (f"{seconds:.3g} s in {name}" for name, seconds in self.step_seconds.items())
        return f"{self.precision.trainer} (a step takes {', '.join(times)})"


def measure_step_times(
    make_model: Callable[[Precision], Any],
    batch: Batch,
    precisions: Sequence[Precision] = PRECISIONS,
    device: str = "cpu",
) -> StepTimes:
    """Time whole training steps of every precision in turns, for `MEASURING_SECONDS` per precision.

    The flags of a processor do not predict the faster precision: with avx512_bf16 and no AMX, a step in bfloat16 took
    1.5 times as long as a step in float32 on one processor and two thirds as long on another
    (docs/decisions/quickstart_and_commands.md).

    Args:
        make_model: returns a model whose loss is computed in the given precision.
        batch: a batch of noise.
        precisions: precisions to time.
        device: device of the steps.
    """
    steps = {}
    with torch.random.fork_rng(devices=[]):
        for precision in precisions:
            model = make_model(precision).to(device)
            optimiser = torch.optim.Adam(model.parameters())
            steps[precision.trainer] = partial(
                _step, model, optimiser, batch.to(torch.device(device)), precision is BFLOAT16
            )
        taken: dict[str, list[float]] = {name: [] for name in steps}
        # The first step in each precision allocates and compiles, so it is not counted.
        while unfinished := [name for name, seconds in taken.items() if sum(seconds[1:]) < MEASURING_SECONDS]:
            for name in unfinished:
                start = time.perf_counter()
                steps[name]()
                taken[name].append(time.perf_counter() - start)
    return StepTimes({name: median(seconds[1:]) for name, seconds in taken.items()})


def _step(model: Any, optimiser: torch.optim.Optimizer, batch: Batch, is_bfloat16: bool) -> None:
    with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=is_bfloat16):
        loss = model.loss(batch).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if batch.x.device.type == "cuda":
        torch.cuda.synchronize(batch.x.device)  # the step has only been queued
