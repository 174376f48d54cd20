"""Every C function of the repository: its declaration is that of the source, and no argument makes it leave tensors.

100 calls of each function; 100 000 by `pytest -m fuzz --hypothesis-profile=fuzz`. The slow test repeats them with the
sanitizers of the compiler, which abort at the first access outside of a tensor.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refuses
from torch import Tensor

from benchmarks.extreme import kernel_tree
from cpc.candidates import draws
from cpc.candidates.samplers import two_level
from cpc.contexts import diagonal_scan, gru_layer
from cpc.losses.engine import tiles
from cpc.native.compiled import REAL, REALS, CFunction, compiled

REPOSITORY = Path(__file__).parents[2]
CALLERS = (diagonal_scan, draws, gru_layer, kernel_tree, tiles, two_level)
FUNCTIONS = {each.name: each for caller in CALLERS for each in vars(caller).values() if isinstance(each, CFunction)}
C_NUMBERS = {REAL: "REAL", torch.float32: "float", torch.float64: "double", torch.int64: "int64_t"}
C_NUMBERS[torch.bfloat16] = "uint16_t"
SIZES = st.sampled_from([0, 1, 2, 3, 5, 16, 17, 40])
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all"
needs_compiler = pytest.mark.skipif(compiled(gru_layer.SOURCE) is None, reason="no C compiler")


def test_declarations_are_those_of_the_sources() -> None:
    """A function that is declared nowhere, or otherwise, is found here."""
    found = {}
    for path in (path for folder in ("cpc", "benchmarks") for path in (REPOSITORY / folder).rglob("*.[ch]")):
        text = path.read_text(encoding="utf-8")
        for result, name, arguments in re.findall(r"^(?!static)(\w+) (?:NAMED\()?(\w+)\)?\(([^)]*)\) \{", text, re.M):
            assert result == "int64_t", f"{name} must return 0 or 1"
            found[name] = re.sub(r"const |restrict |\s+(?=\W)", "", re.sub(r"\s+", " ", arguments)).split(",")
    declared = {}
    for name, function in FUNCTIONS.items():
        first = ("num_threads",) if function.num_draws is None else ("first", "end")
        tensors = function.tensors(*(1 for _ in function.sizes)).items()
        declared[name] = [
            *(f"int64_t {each}" for each in (*first, *function.sizes, *function.integers)),
            *(f"double {each}" for each in function.floats),
            *(f"{C_NUMBERS[dtype]}*{each}" for each, (dtype, _) in tensors),
        ]
    assert {name: [each.strip() for each in arguments] for name, arguments in found.items()} == declared


def test_nothing_else_calls_c() -> None:
    for path in (path for folder in ("cpc", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")):
        if path.parts[-2] != "native":
            text = path.read_text(encoding="utf-8")
            assert "data_ptr" not in text, path
            assert len(re.findall(r"\bcompiled\(\w+\)", text)) == len(re.findall(r"\bcompiled\(\w+\) is", text)), path


@needs_compiler
@pytest.mark.fuzz
@pytest.mark.usefixtures("unchecked_types")  # as users run: the type checker would speak first
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_argument_reaches_foreign_memory(name: str, data: st.DataObject) -> None:
    function = FUNCTIONS[name]
    sizes = [data.draw(st.integers(0, 3) if each == "num_levels" else SIZES, each) for each in function.sizes]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    real = data.draw(st.sampled_from(REALS), "dtype")
    end = data.draw(st.sampled_from([max(1, min(sizes)), 2, 40, 2**62]), "end of the indices")
    tensors: list[Any] = [
        torch.randint(-1, end, shape, generator=generator)
        if dtype == torch.int64
        else torch.rand(shape, generator=generator).to(real if dtype is REAL else dtype)
        for dtype, shape in function.tensors(*sizes).values()
    ]
    if name == "two_level_draw" and sizes[2] > 0 and data.draw(st.booleans(), "tables of blocks"):
        tensors[4:8] = block_tables(sizes[2], sizes[6], generator)
    numbers = [data.draw(st.integers(0, 2**40), each) for each in function.integers] + [0.5 for _ in function.floats]
    wrong = data.draw(st.sampled_from([None, *(range(len(tensors)))]), "wrong tensor")
    if wrong is None:
        assert function(sizes, numbers, tensors) in (True, False)
        return
    kept = tensors[wrong]
    for tensors[wrong] in distorted(kept):
        refuses(rf"{name} takes `\w+` as", function, sizes, numbers, tensors)
    tensors[wrong] = kept
    for given_sizes, given_numbers, given_tensors in (
        (sizes[1:], numbers, tensors),
        (sizes, [*numbers, 1], tensors),
        (sizes, numbers, tensors[1:]),
    ):
        refuses(f"{name} takes the", function, given_sizes, given_numbers, given_tensors)


@needs_compiler
@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", ["gru_layer", "diagonal_scan"])
def test_operators_take_tensors_of_any_order_but_no_others(name: str) -> None:
    """Anybody can call an operator that is registered with torch."""
    shapes = {
        "gru_layer": [(2, 3, 4), (2, 5), (15, 4), (15, 5), (15,), (15,)],
        "diagonal_scan": [(2, 3, 5), (2, 4, 5), (2, 4, 5), (5,), (2, 2, 4, 5)],
    }[name]
    call = getattr(torch.ops.cpc, name)
    tensors = [torch.rand(shape) for shape in shapes]
    for i, tensor in enumerate(tensors):
        wrong = [tensor.double(), tensor.long(), tensor[None], tensor[0]]
        for axis in range(tensor.ndim):
            if (i, axis) != (0, 1):  # sequences have any length
                wrong += [tensor.narrow(axis, 0, 1), torch.cat([tensor, tensor], axis)]
        for each in wrong:
            with pytest.raises((ValueError, RuntimeError)):
                call(*tensors[:i], each, *tensors[i + 1 :])
    mixed = [each.transpose(0, -1).contiguous().transpose(0, -1) for each in tensors]
    assert all(torch.equal(one, other) for one, other in zip(call(*mixed), call(*tensors), strict=True))


def block_tables(num_blocks: int, num_classes: int, generator: torch.Generator) -> list[Tensor]:
    """Offsets of blocks, the block and the id of each position, and the position of each id."""
    offsets = torch.randint(num_classes + 1, (num_blocks + 1,), generator=generator).sort().values
    offsets[0], offsets[-1] = 0, num_classes
    ids = torch.randperm(num_classes, generator=generator)
    return [offsets, torch.arange(num_blocks).repeat_interleave(offsets.diff())[:num_classes], ids, ids.argsort()]


def distorted(tensor: Tensor) -> list[Any]:
    """Return what is no longer the tensor: of other widths, axes, dtypes, devices, or order in memory, or no tensor."""
    wrong: list[Any] = [None, tensor.tolist(), tensor.to("meta"), tensor[None], tensor.to_sparse()]
    wrong += [tensor.to(dtype) for dtype in (*REALS, torch.bfloat16, torch.int64, torch.int32) if dtype != tensor.dtype]
    for axis, size in enumerate(tensor.shape):
        for length in {0, abs(size - 1), size + 1, 2 * size}:
            wrong.append(tensor.new_zeros([*tensor.shape[:axis], length, *tensor.shape[axis + 1 :]]))
        wrong.append(torch.repeat_interleave(tensor, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)])
    if tensor.numel() > 1:
        wrong.append(tensor.flatten()[:1].expand(tensor.numel()).view(tensor.shape))
    return [x for x in wrong if not (isinstance(x, Tensor) and x.is_contiguous() and is_alike(x, tensor))]


def is_alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device, one.layout) == (other.shape, other.dtype, other.device, other.layout)


@pytest.mark.slow
def test_calls_with_sanitizers(tmp_path: Path) -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        path = subprocess.check_output([*compiler, f"-print-file-name={name}"], text=True).strip()
        if not Path(path).is_absolute():
            pytest.skip(f"the compiler has no {name}")
        libraries.append(path)
    changes = {
        "CC": f"{shlex.join(compiler)} {SANITIZE}",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-m", "fuzz", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(command, cwd=REPOSITORY, env=os.environ | changes, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert list(tmp_path.glob("cpc/gru_layer-*.so"))
