"""Loader of the C sources of this folder, which the local compiler compiles at first use."""

import ctypes
import functools
import hashlib
import importlib.util
import inspect
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DRAWS_PER_THREAD = 1000  # rows of about a millisecond of work, ten times the time to start a thread
REAL, REALS = "float32 or float64", (torch.float32, torch.float64)  # C has a function for each of the two dtypes
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
# the OpenMP of torch; code of compilers without OpenMP, such as some clangs, uses one thread
_THREADS = ("-fopenmp", "-fopenmp-simd")
_log = logging.getLogger(__name__)


def source(name: str) -> Path:
    """Return the path of a C source of this folder."""
    return Path(__file__).with_name(name)


@functools.cache
def has_triton() -> bool:
    """Return whether Triton can compile kernels; False, with a logged warning, if it or a C compiler is missing."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    missing = [] if importlib.util.find_spec("triton") else ["the package triton"]
    missing += [] if shutil.which(compiler.split(" ")[0]) else ["a C compiler, which Triton needs"]
    if missing:
        _log.warning("losses run in torch instead of a kernel, which is slower: %s is missing", " and ".join(missing))
    return not missing


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
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # RuntimeError: there is no home folder
            reason = getattr(error, "stderr", None) or error
    _log.warning("%s could not be compiled and runs in torch instead, which is slower: %s", source.name, reason)
    return None


@dataclass(eq=False)
class CFunction:
    """A function of a C source, and the tensors that it takes. Python reaches C only through `__call__`.

    The C function takes int64 numbers, then doubles, then pointers. The first number is the number of threads, or the
    first row and the end of the rows if Python starts the threads. It returns 0, or 1 if it rejects a value.

    Args:
        source: C file, as for `compiled`.
        name: name of the function, without the suffix for the dtype of its REAL tensors.
        tensors: function of the sizes that returns dtype and shape of each tensor, in the order of the pointers.
        integers: names of the int64 arguments after the sizes.
        floats: names of the doubles.
        num_draws: name of the size that counts the samples of a row, if Python starts the threads: the first size is
            then the number of rows, and few samples are drawn on one thread. None: C starts the threads.
    """

    source: Path
    name: str
    tensors: Callable[..., dict[str, tuple[torch.dtype | str, tuple[int, ...]]]]
    integers: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    num_draws: str | None = None

    def __post_init__(self) -> None:
        self.sizes = tuple(inspect.signature(self.tensors).parameters)
        self._numbers = (*self.sizes, *self.integers, *self.floats)
        num_integers = len((*self.sizes, *self.integers)) + (1 if self.num_draws is None else 2)
        self._types = [ctypes.c_int64] * num_integers + [ctypes.c_double] * len(self.floats)

    def __call__(self, sizes: Sequence[int], numbers: Sequence[int | float], tensors: Sequence[Tensor]) -> bool:
        """Call the function on as many threads as torch uses, and return whether it accepted all values.

        `numbers` are integers and floats. The tensors have the dtypes and shapes of the sizes, are contiguous and on
        the CPU.
        """
        if len(sizes) != len(self.sizes) or len(sizes) + len(numbers) != len(self._numbers):
            raise ValueError(f"{self.name} takes the numbers {', '.join(self._numbers)}; got {(*sizes, *numbers)}")
        suffix = self._check(sizes, tensors)
        function = getattr(compiled(self.source), self.name + suffix)
        if function.argtypes is None:
            function.argtypes = self._types + [ctypes.c_void_p] * len(tensors)
        arguments = (*sizes, *numbers, *(tensor.data_ptr() for tensor in tensors))
        num_threads = torch.get_num_threads()
        if self.num_draws is None:
            return function(num_threads, *arguments) == 0
        num_rows, num_draws = sizes[0], sizes[self.sizes.index(self.num_draws)]
        num_parts = min(num_threads, num_rows * num_draws // DRAWS_PER_THREAD)
        if num_parts < 2:
            return function(0, num_rows, *arguments) == 0
        ends = [num_rows * part // num_parts for part in range(num_parts + 1)]
        with ThreadPoolExecutor(num_parts) as threads:  # ctypes releases the GIL
            return not any(list(threads.map(lambda *rows: function(*rows, *arguments), ends[:-1], ends[1:])))

    def _check(self, sizes: Sequence[int], tensors: Sequence[Tensor]) -> str:
        """Check the tensors; return the suffix of the function for the dtype of the last one."""
        expected = self.tensors(*sizes)
        if len(tensors) != len(expected):
            raise ValueError(f"{self.name} takes the tensors {', '.join(expected)}; got {len(tensors)} tensors")
        real = next((dtype for dtype in REALS if getattr(tensors[-1], "dtype", None) == dtype), REALS[0])
        dtype = None
        for (name, (dtype, shape)), tensor in zip(expected.items(), tensors, strict=True):
            if not (
                isinstance(tensor, Tensor)
                and tensor.dtype == (real if dtype is REAL else dtype)
                and tensor.shape == shape
                and tensor.is_cpu
                and tensor.is_contiguous()
            ):
                given = type(tensor).__name__
                if isinstance(tensor, Tensor):
                    given = f"{tensor.dtype} {list(tensor.shape)}, strides {list(tensor.stride())}, {tensor.device}"
                raise ValueError(
                    f"{self.name} takes `{name}` as {real if dtype is REAL else dtype} {list(shape)}, contiguous and "
                    f"on the CPU; got {given}"
                )
        return f"_{str(real).removeprefix('torch.')}" if dtype is REAL else ""
