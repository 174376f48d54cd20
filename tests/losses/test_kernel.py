"""The kernel of GPUs against the definition and against `score_gradients`, which run on the CPU.

Without a GPU it runs in Triton's interpreter.
"""

import math
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cpc.candidates import STRATEGIES
from cpc.losses import class_loss, contrast, info_nce
from cpc.losses.class_loss import candidate_loss
from cpc.losses.engine import tiles
from cpc.losses.engine.score_gradients import FORMS, ScoreCorrections, loss_and_gradients

kernel = pytest.importorskip("cpc.losses.engine.kernel", reason="Triton is not installed")
CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}
TF32: dict[str, Any] = {"rtol": 5e-3, "atol": 5e-3}  # what `compute="auto"` is on a GPU


@pytest.fixture
def on_kernel(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device on which losses of float32 and bfloat16 scores use the kernel, three rows a tile."""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton's interpreter runs without a GPU")
    module_of_the_loss = sys.modules["cpc.losses.engine.tiled_loss"]  # in the package this is the function's name
    for module in (tiles, module_of_the_loss):
        monkeypatch.setattr(module, "has_kernel", lambda x: x.device.type == device and x.element_size() < 8)
    monkeypatch.setattr(tiles, "TILE_ROWS", 3)
    monkeypatch.setattr(tiles, "num_tile_rows", lambda candidates: 3)
    return device


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moved(values: Any, device: str) -> list[Any]:
    return [each.to(device) if isinstance(each, Tensor) else each for each in values]


def with_gradients(loss: Any, *inputs: Tensor, device: str = "cpu", **options: Any) -> list[Tensor]:
    leaves = [each.detach().clone().to(device).requires_grad_() for each in inputs]
    found = loss(*leaves, **dict(zip(options, moved(options.values(), device), strict=True)))
    fields = [each.detach() for each in found if isinstance(each, Tensor)]
    return moved(fields + list(torch.autograd.grad(found.loss, leaves)), "cpu")


# Sizes: blocks and a part of another, a single candidate, one block, several blocks.
@pytest.mark.parametrize(
    ("form", "num_targets", "is_inside", "num"),
    [
        *product(FORMS, (1, 3), (True, False), (21,)),
        ("softmax", 1, True, 1),
        ("softmax", 1, True, 16),
        ("softmax", 3, True, 32),
        ("softmax", 1, False, 1),
        ("logistic", 1, True, 37),
    ],
)
def test_a_tile(
    form: str, num_targets: int, is_inside: bool, num: int, on_kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With masks by sequence, log counts that exclude candidates and targets, weights and hits, in blocks of 16."""
    monkeypatch.setattr(kernel, "BLOCK", 16)
    generator = torch.Generator().manual_seed(num)
    for per_row in (False, True):
        scores, targets = 3 * random(3, num).double(), random(3, num_targets, seed=1).double()
        own = torch.stack([torch.randperm(num, generator=generator)[:num_targets] for _ in range(3)])
        log_count = random(3 if per_row else 1, num, seed=2).double()
        log_count[:, 4::7] = torch.inf
        target_count = random(3, num_targets, seed=3).double()
        target_count[1, 1:] = torch.inf
        weight = log_count.exp().clamp(max=1) if form == "logistic" else None
        hits = None if is_inside else torch.rand(3, num, generator=generator) < 0.2
        corrections = ScoreCorrections(log_count, target_count, weight, hits, torch.full((3, 1), 1e-3).double())
        mask, sequence = torch.rand(2, num, generator=generator) < 0.7, torch.tensor([1, 0, 1])
        places = {"own": own} if is_inside else {"targets": targets}
        expected = loss_and_gradients(form, scores.clone(), corrections, num_times=mask, sequence=sequence, **places)
        floats = (
            each.float() if isinstance(each, Tensor) and each.is_floating_point() else each for each in corrections
        )
        tile, mask, sequence, *short = moved((scores.float(), mask, sequence, *floats), on_kernel)
        places = {name: (each if is_inside else each.float()).to(on_kernel) for name, each in places.items()}
        options = {"num_times": mask, "sequence": sequence, **places}
        accuracy, found = kernel.loss_and_gradients(form, tile, ScoreCorrections(*short), **options)
        torch.testing.assert_close(accuracy.cpu(), expected[0].float())
        for name in ("loss", "score_grads", "target_grads"):
            exact = getattr(expected[1], name) * (1 if name == "loss" else expected[1].factor)
            torch.testing.assert_close(getattr(found, name).cpu(), exact.float(), **CLOSE)


@pytest.mark.parametrize("num_negatives", [None, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_contrast(strategy: str, num_negatives: int | None, on_kernel: str) -> None:
    latents = random(4, 5, 6)
    num_latents = torch.tensor([5, 3, 5, 4])
    latents[torch.arange(5) >= num_latents[:, None]] = math.nan
    group_id = torch.tensor([0, 0, 0, 0])
    ids = {"num_latents": num_latents, "sequence_id": torch.tensor([0, 0, 1, 2]), "group_id": group_id}

    def loss(queries: Tensor, latents: Tensor, compute: str) -> Any:
        draws = torch.Generator().manual_seed(0)
        options: dict[str, Any] = {"num_negatives": num_negatives, "generator": draws, "compute": compute}
        return contrast(queries, latents, strategy=strategy, **ids, **options)

    expected, found = (
        with_gradients(loss, random(2, 4, 5, 6, seed=1), latents, compute=compute, device=device)
        for compute, device in (("reference", "cpu"), ("float32", on_kernel))
    )
    torch.testing.assert_close(found, expected, **CLOSE)


def test_single_rows_biases_and_rounded_operands(on_kernel: str) -> None:
    queries, candidates = random(4, 8), random(19, 8, seed=1)
    for positives in (torch.tensor([3, 0, 18, 3]), torch.tensor([5])):
        options: dict[str, Any] = {"positives": positives, "log_count": random(19, seed=2)}
        q = queries[: len(positives)]
        exact = with_gradients(info_nce, q, candidates, compute="reference", **options)
        found = with_gradients(info_nce, q, candidates, compute="float32", device=on_kernel, **options)
        torch.testing.assert_close(found, exact, **CLOSE)
        rounded = [each.bfloat16().float() for each in (q, candidates)]
        exact = with_gradients(info_nce, *rounded, compute="reference", **options)
        found = with_gradients(info_nce, q, candidates, compute="bf16", device=on_kernel, **options)
        torch.testing.assert_close(found[0], exact[0], rtol=0, atol=0.02)  # scores have 8 bits
        for ours, theirs in zip(found[-2:], exact[-2:], strict=True):
            assert (ours - theirs).norm() < 0.016 * theirs.norm()


@pytest.mark.parametrize("compute", ["float32", "bf16"])
@pytest.mark.parametrize("num_negatives", [None, 3])
def test_equal_latents_are_right_once_in_n(compute: str, num_negatives: int | None, on_kernel: str) -> None:
    inputs = moved((random(2, 48, seed=1), random(1, 48).expand(7, 48), torch.tensor([2, 6])), on_kernel)
    found = info_nce(*inputs, compute=compute, num_negatives=num_negatives)
    assert found.accuracy.tolist() == [torch.tensor(1 / (4 if num_negatives else 7)).item()] * 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy in the interpreter: inf - inf, the logarithm of 0
@pytest.mark.parametrize("form", FORMS)
def test_ties_and_higher_scores_of_several_blocks(form: str, on_kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties in two blocks; a higher score before and after a tie; scores that overflowed."""
    monkeypatch.setattr(kernel, "BLOCK", 16)
    scores = random(7, 40) / 8
    for row, places in enumerate(((3, 5, 20), (3, 5, 39), (3, 20), (3, 20))):
        scores[row, places] = 2.0
    scores[2, 1], scores[3, 38], scores[4], scores[5], scores[6, 30] = 3.0, 3.0, math.inf, -math.inf, math.inf
    own = torch.full((7, 1), 3)
    corrections = ScoreCorrections(tie_width=torch.full((7, 1), 1e-3))
    expected, _ = loss_and_gradients(form, scores.clone(), corrections, own=own)
    scores, own, width = moved((scores, own, corrections.tie_width), on_kernel)
    accuracy, found = kernel.loss_and_gradients(form, scores, ScoreCorrections(tie_width=width), own=own)
    is_number = ~found.loss[:, 0].isnan().cpu()
    assert is_number[:4].all()
    assert expected[:4].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 0])
    assert accuracy.cpu().tolist() == torch.where(is_number, expected, 0).tolist()


def test_classes_and_a_bias(on_kernel: str) -> None:
    targets = torch.tensor([[0, 4], [2, -1], [1, 3]])
    inputs = (random(3, 6), random(5, 6, seed=1), random(5, seed=2))

    def loss(queries: Tensor, classes: Tensor, bias: Tensor) -> Any:
        return class_loss(queries, classes, targets.to(queries.device), objective="full_logistic", bias=bias)

    found = with_gradients(loss, *inputs, device=on_kernel)
    exact = with_gradients(loss, *(each.double() for each in inputs))
    close = CLOSE if on_kernel == "cpu" else TF32
    torch.testing.assert_close(found, [each.to(ours.dtype) for each, ours in zip(exact, found, strict=True)], **close)


@pytest.mark.parametrize("form", ["softmax", "logistic"])
def test_candidates_of_each_row(form: str, on_kernel: str) -> None:
    inputs = (random(4, 6), random(4, 5, 6, seed=1), random(4, 1, 6, seed=2))

    def loss(queries: Tensor, candidates: Tensor, targets: Tensor) -> Any:
        corrections = ScoreCorrections(torch.zeros_like(candidates[..., 0]), torch.zeros_like(targets[..., 0]))
        return candidate_loss(queries, candidates, None, (targets, None), corrections, form)

    found = with_gradients(loss, *inputs, device=on_kernel)
    exact = with_gradients(loss, *(each.double() for each in inputs))
    close = CLOSE if on_kernel == "cpu" else TF32
    torch.testing.assert_close(found, [each.to(ours.dtype) for each, ours in zip(exact, found, strict=True)], **close)


@pytest.mark.parametrize("form", FORMS)
def test_a_target_that_is_not_a_number_shows(form: str, on_kernel: str) -> None:
    scores, targets = torch.zeros(1, 4, device=on_kernel), torch.tensor([[0.5, math.nan]], device=on_kernel)
    corrections = ScoreCorrections(tie_width=torch.zeros(1, 1, device=on_kernel))
    accuracy, found = kernel.loss_and_gradients(form, scores, corrections, targets=targets)
    assert bool(found.loss.isnan())
    assert accuracy.tolist() == [0]


# What the interpreter accepts, the compiler may refuse: types of variables that a loop changes, branches on None.
COMPILE = """
from itertools import product
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cpc.losses.engine import kernel

always = dict.fromkeys(("loss", "accuracy", "target_grads", "tie_width"), "*fp32")
more = dict(log_count_targets="*fp32", num_times="*u8", sequence="*i64", bias="*fp32", log_count="*fp32", hits="*u8")
sizes = ("num", "num_targets", "scores_stride", "log_count_stride")
pairs = (True, True, "*fp32"), (True, False, "*bf16"), (False, True, "*bf16"), (False, False, "*fp32")
for form, (has_own, has_more, dtype) in product(FORMS, pairs):
    pointers = always | {"scores": dtype} | ({"own": "*i64"} if has_own else {"targets": "*fp32"})
    pointers |= more if has_more else {}
    pointers |= {"term_weight": "*fp32"} if has_more and form == "logistic" else {}
    flags = {"HAS_COUNTS": has_more and has_own, "IS_WHOLE": not has_more}
    constants = {"form": form, "NUM_TARGETS": 2, "BLOCK": 1024} | flags
    names = kernel._row.arg_names
    types = {name: pointers.get(name) or ("i32" if name in sizes else "constexpr") for name in names}
    values = {(i,): constants.get(name) for i, name in enumerate(names) if types[name] == "constexpr"}
    triton.compile(ASTSource(kernel._row, types, values), GPUTarget("cuda", 90, 32), {"num_warps": 8})
print("compiled")
"""


@pytest.mark.slow
def test_it_compiles_for_a_gpu(tmp_path: Path) -> None:
    """To the machine code of an H100, which needs no GPU, in a process without the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    code = COMPILE.replace("FORMS", repr(tuple(FORMS)))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "compiled\n", done.stderr
