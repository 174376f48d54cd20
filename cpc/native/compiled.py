"""Loader of the C sources of this folder, which the local compiler compiles at first use."""

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

DRAWS_PER_THREAD = 1000  # rows of about a millisecond of work, ten times the time to start a thread
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
_THREADS = (
    "-fopenmp",
    "-fopenmp-simd",
)  # the OpenMP of torch; code of compilers without OpenMP, such as some clangs, uses one thread
_log = logging.getLogger(__name__)


def source(name: str) -> Path:
    """Return the path of a C source of this folder."""
    return Path(__file__).with_name(name)


@functools.cache
def compiled(source: Path) -> ctypes.CDLL | None:
    """Return the library compiled from a C file; None, with a logged warning, if there is no compiler or it fails.

    Headers of a source are in its folder as NAME_*.h; shared headers are in the folder of this file as compiled_*.h.
    Libraries are stored in `$XDG_CACHE_HOME/cpc` (`~/.cache/cpc`). Their names depend on source, headers, compiler and
    processor, so machines with a shared home folder use separate libraries. `$CC` selects another compiler.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        _log.warning("no C compiler was found: %s runs in torch instead, which is slower", source.name)
        return None
    processor = repr(sorted(torch.cpu.get_capabilities().items()))
    shared = Path(__file__)
    headers = sorted(header for file in (source, shared) for header in file.parent.glob(f"{file.stem}_*.h"))
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
                    library = Path(building) / name
                    includes = [f"-I{file.parent}" for file in (source, shared)]
                    build = [*command, *includes, "-o", str(library), str(source), "-lm"]
                    subprocess.run(build, check=True, capture_output=True, text=True)
                    library.replace(folder / name)  # atomic: other processes never see a partial file
            return ctypes.CDLL(str(folder / name))
        except (
            OSError,
            RuntimeError,
            subprocess.CalledProcessError,
        ) as error:  # RuntimeError: Path.home() finds no home folder
            reason = getattr(error, "stderr", None) or error
    _log.warning("%s could not be compiled and runs in torch instead, which is slower: %s", source.name, reason)
    return None


def call(source: Path, name: str, integers: Sequence[int], tensors: Sequence[Tensor]) -> None:
    """Call a C function that divides its work among as many threads as torch uses.

    Args:
        source: C file, as for `compiled`.
        name: name of the function, without the suffix for the dtype of the last tensor.
        integers: arguments that are passed as int64, after the number of threads.
        tensors: arguments that are passed as pointers; must be contiguous, and of one dtype or int64.
    """
    dtype = tensors[-1].dtype
    assert all(tensor.is_contiguous() and tensor.dtype in (dtype, torch.int64) for tensor in tensors)
    function = getattr(compiled(source), f"{name}_{str(dtype).removeprefix('torch.')}")
    integer_arguments = map(ctypes.c_int64, (torch.get_num_threads(), *integers))
    function(*integer_arguments, *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors))


def call_on_threads(
    function: Any,
    num_rows: int,
    num_draws: int,
    integers: Sequence[int],
    floats: Sequence[float],
    tensors: Sequence[Tensor],
) -> bool:
    """Call a C function for all rows, on as many threads as torch uses if there are many rows.

    Args:
        function: C function, called with the first row, the end of the rows, and the arguments below; ctypes releases
            the GIL.
        num_rows: number of rows.
        num_draws: samples per row.
        integers: arguments that are passed as int64.
        floats: arguments that are passed as doubles.
        tensors: arguments that are passed as pointers; must be contiguous.

    Returns:
        Whether the function returned 0 for all rows.
    """
    if function.argtypes is None:
        function.argtypes = (
            [ctypes.c_int64] * (2 + len(integers)) + [ctypes.c_double] * len(floats) + [ctypes.c_void_p] * len(tensors)
        )
    arguments = (*integers, *floats, *(tensor.data_ptr() for tensor in tensors))

    def call_rows(first: int, end: int) -> int:
        return function(first, end, *arguments)

    num_parts = min(torch.get_num_threads(), num_rows * num_draws // DRAWS_PER_THREAD)
    if num_parts < 2:
        return call_rows(0, num_rows) == 0
    ends = [num_rows * part // num_parts for part in range(num_parts + 1)]
    with ThreadPoolExecutor(num_parts) as threads:
        return not any(list(threads.map(call_rows, ends[:-1], ends[1:])))
