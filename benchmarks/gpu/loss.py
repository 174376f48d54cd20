"""The loss alone, forward and backward, of 256 channels: ours, that of other packages, tiles, and drawn negatives."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.device import PRECISIONS, Device, Row, products_in
from benchmarks.gpu.rivals import QUERY_NORM, foreign
from benchmarks.reference import materialised_info_nce
from benchmarks.step import DIM, NUM_LATENTS, NUM_NEGATIVES, NUM_STEPS
from cpc.losses import info_nce
from cpc.losses.candidate_sets import plan
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import info_nce_rows, on_device, tiles
from cpc.losses.sequences import Geometry, Sequences

SHARES = (64, 128, 512, 1024)  # of `tiles.GPU_SHARE`, beside its 256
BLOCKS = (1024, 2048, 8192, 16384)  # of `kernel.BLOCK`, beside its 4096
LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


def all_candidates(size: int, device: torch.device) -> CandidateSet:
    """Return `size` rows whose candidates are all `size` candidates. Positive i is candidate i."""
    mask, zeros, weight = torch.ones(1, size, dtype=torch.bool), torch.zeros(size).long(), torch.full((size,), 1 / size)
    return on_device(CandidateSet(None, torch.arange(size), zeros, zeros, mask, weight, num_steps=1), device)


def measured(on: Device, size: int, precision: str, loss: LossFunction, rounds_inputs: bool = False) -> Row:
    """Return the time of the loss with its gradients, and its memory beside inputs and results.

    Args:
        on: the device.
        size: number of queries, and of candidates.
        precision: precision of products.
        loss: the loss of queries, candidates and positives.
        rounds_inputs: for `bf16`, round queries and candidates before the loss.
    """
    torch.manual_seed(0)
    queries = (QUERY_NORM * F.normalize(torch.randn(size, DIM, device=on.device), dim=1)).requires_grad_()
    candidates = F.normalize(torch.randn(size, DIM, device=on.device), dim=1).requires_grad_()
    positives = torch.arange(size, device=on.device)
    dtype = torch.bfloat16 if rounds_inputs and precision == "bf16" else torch.float32

    def step() -> None:
        torch.autograd.grad(loss(queries.to(dtype), candidates.to(dtype), positives), (queries, candidates))

    with products_in(precision):
        seconds, extra_mib = on.seconds(step), on.extra_mib(step)
    return {"ms": 1e3 * seconds, "extra_mib": extra_mib, "tflops": 6 * size * size * DIM / seconds / 1e12}


def loss_rows(on: Device, is_quick: bool) -> list[Row]:
    """Ours at every size and precision, our tiles, then others."""
    sizes = (256, 512) if is_quick else (16384, 65536)
    planned = {size: all_candidates(size, on.device) for size in sizes}

    def ours(size: int, precision: str) -> LossFunction:
        return lambda queries, candidates, _: info_nce_rows(queries, candidates, planned[size], compute=precision).loss

    def tried(losses: Iterable[tuple[str, LossFunction]], sizes: Iterable[int]) -> list[Row]:
        return [
            on.tried(f"{size}, {precision}, {name}", measured, on, size, precision, loss, True)
            for (name, loss), size, precision in product(losses, sizes, PRECISIONS)
        ]

    rows = []
    for size in reversed(sizes):
        for precision in PRECISIONS:
            loss = ours(size, precision)
            rows.append(on.tried(f"{size}, {precision}, ours", measured, on, size, precision, loss))
        rows.append(on.tried(f"{size}, bf16, ours, through info_nce", measured, on, size, "bf16", called))
    for size in reversed(sizes):
        for setting in ({"GPU_SHARE": share} for share in SHARES):
            rows.append(_with(tiles, setting, on, size, ours(size, "bf16")))
        if on.is_gpu:
            from cpc.losses.engine import kernel  # Triton is not installed everywhere

            for setting in ({"BLOCK": block} for block in BLOCKS):
                rows.append(_with(kernel, setting, on, size, ours(size, "bf16")))
    return rows + tried(foreign(), sizes) + tried(materialised(on), sizes[:1])  # scores of 65,536 rows take 16 GiB


def _with(module: Any, setting: dict[str, int], on: Device, size: int, loss: LossFunction) -> Row:
    """Return a row in bf16 with another value of a module's constant."""
    ((name, value),) = setting.items()
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        return on.tried(f"{size}, bf16, ours, {name} {value}", measured, on, size, "bf16", loss)
    finally:
        setattr(module, name, before)


def called(queries: Tensor, candidates: Tensor, positives: Tensor) -> Tensor:
    """Return our loss in bf16 as a user calls it; checks and the plan are a part of each call."""
    return info_nce(queries, candidates, positives, compute="bf16").loss


def materialised(on: Device) -> Iterator[tuple[str, LossFunction]]:
    """Yield the loss from the whole matrix of scores in plain torch, and on a GPU the same by Inductor."""
    yield "materialised", materialised_info_nce
    if on.is_gpu:
        yield "materialised, compiled", torch.compile(materialised_info_nce, dynamic=False)


def drawn_rows(on: Device, is_quick: bool) -> list[Row]:
    """128 drawn negatives: the draws, our loss from all scores and counts of draws, and plain torch that gathers."""
    rows, geometry = [], Geometry((NUM_LATENTS,), ("",), tuple(range(1, NUM_STEPS + 1)))
    generator = torch.Generator(on.device).manual_seed(0)
    for size in (2,) if is_quick else (8, 64):
        sequences = Sequences.of(geometry, size, device=on.device)
        planned, draws = plan("mixed", sequences, None, NUM_NEGATIVES)
        assert draws is not None
        draw = partial(draws.draw, generator)
        rows.append(on.tried(f"{size} windows, the draws", lambda draw: {"ms": 1e3 * on.seconds(draw)}, draw))
        drawn = draw()
        for precision in PRECISIONS:
            ours = partial(_ours, rows=planned, drawn=drawn, precision=precision)
            rows.append(on.tried(f"{size} windows, {precision}, ours", _drawn, on, planned, ours, precision))
        gathered = partial(_gathered, rows=planned, drawn=drawn)
        rows.append(on.tried(f"{size} windows, tf32, gathered", _drawn, on, planned, gathered, "tf32"))
    return rows


def _ours(queries: Tensor, latents: Tensor, rows: CandidateSet, drawn: Tensor, precision: str) -> Tensor:
    return info_nce_rows(queries, latents, rows, drawn, compute=precision).loss


def _gathered(queries: Tensor, latents: Tensor, rows: CandidateSet, drawn: Tensor) -> Tensor:
    vectors = latents[torch.cat([rows.positive_index[:, None], drawn], 1)]
    scores = torch.einsum("md,mnd->mn", queries[rows.query_index], vectors)
    return F.cross_entropy(scores, torch.zeros_like(rows.step))


def _drawn(on: Device, rows: CandidateSet, loss: Callable[[Tensor, Tensor], Tensor], precision: str) -> Row:
    torch.manual_seed(0)
    num_steps, size = rows.num_steps, len(rows.candidate_mask)
    queries = torch.randn(num_steps * size * NUM_LATENTS, DIM, device=on.device, requires_grad=True)
    latents = (torch.randn(size * NUM_LATENTS, DIM, device=on.device) / 4).requires_grad_()

    def step() -> None:
        torch.autograd.grad(loss(queries, latents), (queries, latents))

    with products_in(precision):
        return {"ms": 1e3 * on.seconds(step), "extra_mib": on.extra_mib(step)}
