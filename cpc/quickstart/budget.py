"""What every quickstart asks of its machine: parts installed, a place to write, the time there is."""

import importlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FEWEST_STEPS, MOST_STEPS = 300, 3000


def require_new(out: Path, of_runs: Iterable[str]) -> None:
    """Ask for a folder where no quickstart has been.

    Args:
        out: the folder.
        of_runs: what its runs leave there before there is a report.

    Raises:
        ValueError: if one has been there; of one that was not finished, the message says what to remove.
    """
    if (out / "report.json").exists():
        raise ValueError(f"{out} already holds a quickstart: name another folder with --out")
    left = [str(out / name) for name in of_runs if (out / name).exists()]
    if left:
        raise ValueError(
            f"a quickstart was not finished in {out}, and none is continued: remove {', '.join(left)} to begin again "
            "there, or name another folder with --out"
        )


def require_extras(extras: Mapping[str, str]) -> None:
    """Raises a ValueError if a module is missing; `extras` says what brings each."""
    for module, extra in extras.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"the quickstart needs {module.partition('.')[0]}: install it with `uv sync --extra {extra}` or "
                f"`pip install 'cpc[{extra}]'` ({error})"
            ) from error


def best_precision() -> str:
    """Lightning's name of what trains fastest here: bfloat16 in hardware; without, it is many times slower."""
    capabilities = torch.cpu.get_capabilities()
    has_bfloat16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return "bf16-mixed" if has_bfloat16 else "32-true"


def compute_of(precision: str) -> str:
    """The loss's products follow the encoder's."""
    return "bf16" if precision == "bf16-mixed" else "float32"


def affordable_steps(model: Any, x: Tensor, precision: str, seconds: float) -> int:
    """As many optimiser steps as fit so many seconds on this machine, measured on a few of them."""
    optimiser = torch.optim.Adam(model.parameters())
    of_steps = []
    for _ in range(20):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = model.loss(x).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        of_steps.append(time.perf_counter() - start)
    affordable = seconds / float(np.median(of_steps[5:]))
    return int(np.clip(affordable // 50 * 50, FEWEST_STEPS, MOST_STEPS))
