"""The C sources of this folder, compiled by the machine's own compiler when first used."""

import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DRAWS_PER_THREAD = 1000  # about a millisecond: to start a thread costs a tenth of that
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
_THREADS = ("-fopenmp", "-fopenmp-simd")  # by the OpenMP that torch brought; else, as with many a clang, one thread
_log = logging.getLogger(__name__)


def source(name: str) -> Path:
    """Return the path of a C source of this folder."""
    return Path(__file__).with_name(name)


@functools.cache
def compiled(source: Path) -> ctypes.CDLL | None:
    """The library made of a C file; None, with a warning in the log, where there is no compiler or it fails.

    Its headers lie beside it as NAME_*.h, those that any may include beside this file, as compiled_*.h. Libraries are
    kept under `$XDG_CACHE_HOME/cpc` (`~/.cache/cpc`), named by source, headers, compiler and processor: a home that
    several machines share serves each with code for its own instructions. `$CC` names another compiler.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        _log.warning("no C compiler was found: %s runs in torch instead, which is slower", source.name)
        return None
    processor = repr(sorted(torch.cpu.get_capabilities().items()))
    shared = Path(__file__)
    headers = sorted(h for beside in (source, shared) for h in beside.parent.glob(f"{beside.stem}_*.h"))
    contents = [path.read_bytes() for path in (source, *headers)]
    for threads in _THREADS:
        command = [*compiler, *FLAGS, threads]
        parts = (*contents, " ".join(command).encode(), processor.encode())
        name = f"{source.stem}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpc"
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / name).exists():
                with tempfile.TemporaryDirectory(dir=folder) as building:
                    made = Path(building) / name
                    folders = [f"-I{beside.parent}" for beside in (source, shared)]
                    complete = [*command, *folders, "-o", str(made), str(source), "-lm"]
                    subprocess.run(complete, check=True, capture_output=True, text=True)
                    made.replace(folder / name)  # at once: other processes see all of it or nothing
            return ctypes.CDLL(str(folder / name))
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # RuntimeError: nobody's home
            reason = getattr(error, "stderr", None) or error
    _log.warning("%s could not be compiled and runs in torch instead, which is slower: %s", source.name, reason)
    return None


def call(source: Path, name: str, integers: Sequence[int], tensors: Sequence[Tensor]) -> None:
    """Call a C function that shares its work among as many threads as torch uses.

    Args:
        source: that `compiled` takes.
        name: of the function, without the dtype of the last tensor, in which its name ends.
        integers: passed as int64, behind the number of threads.
        tensors: passed as pointers, so they must be contiguous, and of one dtype or int64.
    """
    dtype = tensors[-1].dtype
    assert all(each.is_contiguous() and each.dtype in (dtype, torch.int64) for each in tensors)
    function = getattr(compiled(source), f"{name}_{str(dtype).removeprefix('torch.')}")
    numbers = map(ctypes.c_int64, (torch.get_num_threads(), *integers))
    function(*numbers, *(ctypes.c_void_p(each.data_ptr()) for each in tensors))


def call_on_threads(
    function: Any,
    num_rows: int,
    num_draws: int,
    integers: Sequence[int],
    floats: Sequence[float],
    tensors: Sequence[Tensor],
) -> bool:
    """Call a C function for all rows, many on as many threads as torch uses; whether it returned 0 for all.

    Args:
        function: takes the first row and the one after the last, then what follows here; ctypes frees Python's lock.
        num_rows: of all.
        num_draws: for each row.
        integers: passed as int64.
        floats: passed as doubles.
        tensors: passed as pointers, so they must be contiguous.
    """
    if function.argtypes is None:
        function.argtypes = (
            [ctypes.c_int64] * (2 + len(integers)) + [ctypes.c_double] * len(floats) + [ctypes.c_void_p] * len(tensors)
        )
    arguments = (*integers, *floats, *(each.data_ptr() for each in tensors))

    def draw(first: int, end: int) -> int:
        return function(first, end, *arguments)

    num_parts = min(torch.get_num_threads(), num_rows * num_draws // DRAWS_PER_THREAD)
    if num_parts < 2:
        return draw(0, num_rows) == 0
    ends = [num_rows * part // num_parts for part in range(num_parts + 1)]
    with ThreadPoolExecutor(num_parts) as threads:
        return not any(list(threads.map(draw, ends[:-1], ends[1:])))
