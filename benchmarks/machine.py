"""The machine's state, printed beside every figure, and how time and memory are measured."""

import ctypes
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def machine_state(allocator_keeps_memory: bool) -> dict[str, Any]:
    """Threads, allocator, bfloat16 support, load, and the peak of a float32 matrix product in this process."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "cpu": capabilities.get("cpu_name", "unknown"),
        "threads": torch.get_num_threads(),
        "amx_bf16": bool(capabilities.get("amx_bf16")),
        "avx512_bf16": bool(capabilities.get("avx512_bf16")),
        "allocator": "keeps freed memory" if allocator_keeps_memory else "default",
        "load_average": os.getloadavg()[0],
        "gemm_peak_gflops": round(gemm_peak_gflops()),
        "torch": torch.__version__,
    }


def gemm_peak_gflops(size: int = 2048, repetitions: int = 8) -> float:
    """Best rate of a square float32 product into preallocated memory."""
    a, b, out = (torch.randn(size, size) for _ in range(3))
    best = min(_seconds(lambda: torch.mm(a, b, out=out)) for _ in range(repetitions))
    return 2 * size**3 / best / 1e9


def median_seconds(function: Callable[[], Any], repetitions: int, num_warmups: int = 2) -> float:
    """Median wall time of a call."""
    for _ in range(num_warmups):
        function()
    return sorted(_seconds(function) for _ in range(repetitions))[repetitions // 2]


def peak_extra_mib(function: Callable[[], Any]) -> float:
    """By how much a call raises the process's resident memory at its highest (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)  # what an allocator has kept would hide what the call takes
    before = _status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest level starts again from here
    function()
    return max(0.0, _status_mib("VmHWM") - before)


def _status_mib(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {field}"
    return int(found[1]) / 1024


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
