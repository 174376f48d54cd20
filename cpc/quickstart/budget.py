"""What every quickstart asks of its machine: parts installed, a place to write, the time there is."""

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
    """One precision by its names for the trainer, the loss (`compute`) and the probes."""

    trainer: str
    loss: str
    probes: ProbePrecision


BFLOAT16 = Precision("bf16-mixed", "bf16", "bfloat16")
FLOAT32 = Precision("32-true", "float32", "float32")
PRECISIONS = (BFLOAT16, FLOAT32)


def require_new(out: Path, runs: Iterable[str]) -> None:
    """Ask for a folder where no quickstart has been.

    Args:
        out: the folder.
        runs: folders that its runs leave there before there is a report.

    Raises:
        ValueError: if one has been there; of one that was not finished, the message says what to remove.
    """
    if (out / "report.json").exists():
        raise ValueError(f"{out} already holds a quickstart: name another folder with --out")
    left = [str(out / name) for name in runs if (out / name).exists()]
    if left:
        raise ValueError(
            f"a quickstart was not finished in {out}, and cannot be continued: remove {', '.join(left)} to begin again "
            "there, or name another folder with --out"
        )


def require_extras(extras: Mapping[str, str]) -> None:
    """Raises a ValueError if a module is missing; `extras` says what brings each."""
    for module, extra in extras.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"the quickstart needs {module.partition('.')[0]}: {install_hint(extra)} ({error})"
            ) from error


@dataclass(frozen=True)
class Pace:
    """How long a training step takes on this machine.

    Attributes:
        step_seconds: of a bare step, by Lightning's name of the precision.
    """

    step_seconds: dict[str, float]

    @property
    def precision(self) -> Precision:
        """The fastest."""
        fastest = min(self.step_seconds, key=self.step_seconds.__getitem__)
        return next(precision for precision in PRECISIONS if precision.trainer == fastest)

    def num_steps(self, seconds: float, most: int = MOST_STEPS) -> int:
        """As many steps as fit so many seconds in the fastest precision, within reason."""
        affordable = seconds / self.step_seconds[self.precision.trainer]
        return int(np.clip(affordable // 50 * 50, FEWEST_STEPS, most))

    def record(self) -> dict[str, Any]:
        """As JSON."""
        rounded = {name: round(seconds, 4) for name, seconds in self.step_seconds.items()}
        return {"precision": self.precision.trainer, "step_seconds": rounded}

    def __str__(self) -> str:
        times = (f"{seconds:.3g} s in {name}" for name, seconds in self.step_seconds.items())
        return f"{self.precision.trainer} (a step takes {', '.join(times)})"


def measure_pace(
    model_of: Callable[[Precision], Any], batch: Batch, precisions: Sequence[Precision] = PRECISIONS
) -> Pace:
    """Time whole training steps in every precision, in turn, for `MEASURING_SECONDS` each.

    A processor's flags do not tell: with avx512_bf16 and no AMX, a step in bfloat16 took half as long again as one in
    float32 on one processor, and two thirds of it on another (docs/decisions/quickstart_and_commands.md).

    Args:
        model_of: makes the model that computes its loss as the precision says.
        batch: of noise.
        precisions: to choose from.
    """
    steps = {}
    with torch.random.fork_rng(devices=[]):
        for precision in precisions:
            model = model_of(precision)
            optimiser = torch.optim.Adam(model.parameters())
            steps[precision.trainer] = partial(_step, model, optimiser, batch, precision is BFLOAT16)
        taken: dict[str, list[float]] = {name: [] for name in steps}
        # The first step of each allocates and compiles, and does not count.
        while unfinished := [name for name, seconds in taken.items() if sum(seconds[1:]) < MEASURING_SECONDS]:
            for name in unfinished:
                start = time.perf_counter()
                steps[name]()
                taken[name].append(time.perf_counter() - start)
    return Pace({name: median(seconds[1:]) for name, seconds in taken.items()})


def _step(model: Any, optimiser: torch.optim.Optimizer, batch: Batch, in_bfloat16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
        loss = model.loss(batch).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
