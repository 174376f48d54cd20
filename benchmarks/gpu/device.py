"""The device that is measured: its times, its memory, and rows of results that note what failed."""

import gc
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

PRECISIONS = ("bf16", "tf32", "float32")
Row = dict[str, Any]


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Compute float32 products and recurrences of a GPU in this precision: `tf32`, or exactly."""
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in backends]
    for each in backends:
        each.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        for each, value in zip(backends, before, strict=True):
            each.allow_tf32 = value


class Device:
    """The device that is measured.

    Attributes:
        until: when the time of the part that is measured now is over, on the monotonic clock.
    """

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.is_gpu = self.device.type == "cuda"
        self.until = math.inf

    def tried(self, name: str, measure: Callable[..., Row], *arguments: Any) -> Row:
        """Print and return a row with what is measured, or with the error: what a version cannot run is a finding."""
        row: Row = {"name": name}
        before = signal.signal(signal.SIGALRM, _end)
        left = self.until - time.monotonic()
        try:
            if left <= 0:
                _end()
            signal.setitimer(signal.ITIMER_REAL, 0 if left == math.inf else left)
            row |= measure(*arguments)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        print(json.dumps({key: _rounded(value) for key, value in row.items()}), flush=True)
        if self.is_gpu:
            gc.collect()
            with suppress(RuntimeError):  # some errors of CUDA last for the rest of the process
                torch.cuda.empty_cache()
        return row

    @property
    def name(self) -> str:
        """As its driver calls it."""
        return torch.cuda.get_device_name() if self.is_gpu else "cpu"

    def seconds(self, function: Callable[[], Any]) -> float:
        """Median over three rounds of the time of a call, among calls that follow each other; on a CPU of one call."""
        function()
        once = self._seconds(function, 1)
        if not self.is_gpu:
            return once
        num_calls = min(20, max(1, round(0.2 / once)))
        return sorted(self._seconds(function, num_calls) for _ in range(3))[1]

    def extra_mib(self, function: Callable[[], Any]) -> float | None:
        """The highest level of allocated memory during a call, above that before it; None on a CPU."""
        if not self.is_gpu:
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def peak_flops(self, precision: str, size: int) -> float:
        """Operations a second of a square product."""
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        a, b = (torch.randn(size, size, device=self.device, dtype=dtype) for _ in range(2))
        with products_in(precision):
            return 2 * size**3 / self.seconds(lambda: a @ b)

    def _seconds(self, function: Callable[[], Any], num_calls: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(num_calls):
            function()
        self._wait()
        return (time.perf_counter() - start) / num_calls

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


def _end(*_: object) -> None:
    raise TimeoutError("its part's time was over")


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
