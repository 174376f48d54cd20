"""The faster precision on this machine, and the number of training steps that fit in a time."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

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


class StepTimes(NamedTuple):
    """Seconds of a training step on this machine, without data loading, by precision."""

    seconds: dict[Precision, float]

    @property
    def precision(self) -> Precision:
        """The precision with the fastest steps."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def num_steps(self, seconds: float, most: int = MOST_STEPS) -> int:
        """Return the number of steps that fit in `seconds` in the fastest precision, from `FEWEST_STEPS` to `most`."""
        return int(np.clip(seconds / self.seconds[self.precision] // 50 * 50, FEWEST_STEPS, most))

    def record(self) -> dict[str, Any]:
        """Return the precision and the durations as fields of report.json."""
        rounded = {precision.trainer: round(seconds, 4) for precision, seconds in self.seconds.items()}
        return {"precision": self.precision.trainer, "step_seconds": rounded}

    def __str__(self) -> str:
        times = (f"{seconds:.3g} s in {precision.trainer}" for precision, seconds in self.seconds.items())
        return f"{self.precision.trainer} (a step takes {', '.join(times)})"


def measure_step_times(
    make_model: Callable[[Precision], Any],
    batch: Batch,
    precisions: Sequence[Precision] = PRECISIONS,
    device: str = "cpu",
) -> StepTimes:
    """Time whole training steps of every precision in turns, for `MEASURING_SECONDS` per precision.

    The flags of a processor do not predict the faster precision (docs/decisions/quickstart_and_commands.md).

    Args:
        make_model: returns a model whose loss is computed in the given precision.
        batch: a batch of noise.
        precisions: precisions to time.
        device: device of the steps.
    """
    batch, steps = batch.to(torch.device(device)), {}
    with torch.random.fork_rng(devices=[]):
        for precision in precisions:
            model = make_model(precision).to(device)
            optimiser = torch.optim.Adam(model.parameters())
            steps[precision] = partial(_step, model, optimiser, batch, precision is BFLOAT16)
        taken: dict[Precision, list[float]] = {precision: [] for precision in steps}
        # The first step in each precision allocates and compiles, so it is not counted.
        while unfinished := [each for each, seconds in taken.items() if sum(seconds[1:]) < MEASURING_SECONDS]:
            for precision in unfinished:
                start = time.perf_counter()
                steps[precision]()
                taken[precision].append(time.perf_counter() - start)
    return StepTimes({precision: median(seconds[1:]) for precision, seconds in taken.items()})


def _step(model: Any, optimiser: torch.optim.Optimizer, batch: Batch, is_bfloat16: bool) -> None:
    with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=is_bfloat16):
        loss = model.loss(batch).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if batch.x.device.type == "cuda":
        torch.cuda.synchronize(batch.x.device)  # the step has only been queued
