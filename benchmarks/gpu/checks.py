"""Every loss and its gradients on the device, against float64 on the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.device import PRECISIONS, Device, Row, products_in
from benchmarks.step import DIM
from cpc.candidates import STRATEGIES, LatentBank
from cpc.candidates.samplers import Uniform
from cpc.losses import OBJECTIVES, LocalContrastive, bank_loss, class_loss, contrast
from cpc.losses.objectives import objective_of
from cpc.predictors import Output

# Relative errors of a loss or its gradients at most: rounding by 2^-24, 2^-11 and 2^-8, four times, and float32's sums.
LIMITS = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1.6e-2}


def losses() -> Iterator[tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]]:
    """Yield names, functions of queries `[K, B, T, D]`, latents `[B, T, D]` and `compute`, and precisions."""
    ids = {"sequence_id": torch.arange(8) % 7, "group_id": torch.arange(8) % 3}
    num_latents = torch.tensor([16, 16, 9, 16, 12, 16, 7, 16])

    def contrastive(strategy: str, **options: Any) -> Callable[..., torch.Tensor]:
        def loss(queries: torch.Tensor, latents: torch.Tensor, compute: str) -> torch.Tensor:
            draws = torch.Generator().manual_seed(0)
            known = {"num_latents": num_latents, **ids, **options}
            return contrast(queries, latents, strategy=strategy, generator=draws, compute=compute, **known).loss

        return loss

    def of_classes(objective: str) -> Callable[..., torch.Tensor]:
        hits = objective_of(objective).hits

        def loss(queries: torch.Tensor, latents: torch.Tensor, _: str) -> torch.Tensor:
            flat, table = queries[0].flatten(0, 1), latents.flatten(0, 1)
            targets = (torch.arange(len(flat)) * 5) % len(table)
            draw = None
            if hits:
                sampler, generator = Uniform(len(table), shared=False), torch.Generator().manual_seed(0)
                draw = sampler.sample(None, 20, targets, hits[0], generator)
                draw = type(draw)(*(each.to(flat.device) for each in draw))
            return class_loss(flat, table, targets.to(flat.device), objective=objective, draw=draw).loss

        return loss

    def of_places(queries: torch.Tensor, latents: torch.Tensor, compute: str) -> torch.Tensor:
        part = LocalContrastive(compute=compute)  # type: ignore[arg-type]
        part.num_places = 4
        output = Output(latents, latents, {"": queries}, None)
        return part(output, part.sequences(output, num_latents, *ids.values())).loss

    def of_bank(queries: torch.Tensor, latents: torch.Tensor, _: str) -> torch.Tensor:
        flat = latents.flatten(0, 1)
        return bank_loss(queries[0].flatten(0, 1), flat, LatentBank(flat.roll(1, 0))).loss

    for strategy in STRATEGIES:
        yield strategy, contrastive(strategy), PRECISIONS
        yield f"{strategy}, 5 drawn", contrastive(strategy, num_negatives=5), PRECISIONS
    for objective in OBJECTIVES:
        yield objective, of_classes(objective), ("tf32",)  # class losses have no `compute`, and `auto` rounds
    yield "places", of_places, PRECISIONS
    yield "bank", of_bank, ("tf32", "float32")


def check_rows(on: Device, is_quick: bool) -> list[Row]:
    """The relative errors of each loss and its gradients in each precision, and whether they are below the limit."""
    torch.manual_seed(0)
    queries, latents = torch.randn(3, 8, 16, DIM) / 4, torch.randn(8, 16, DIM) / 4

    def of(loss: Callable[..., torch.Tensor], precision: str, device: torch.device, dtype: torch.dtype) -> Any:
        inputs = [each.to(device, dtype).requires_grad_() for each in (queries, latents)]
        with products_in(precision):
            value = loss(*inputs, "float32" if dtype == torch.float64 else precision)
            return [each.detach().cpu().double() for each in (value, *torch.autograd.grad(value, inputs))]

    def errors(loss: Callable[..., torch.Tensor], precision: str) -> Row:
        exact = of(loss, "float32", torch.device("cpu"), torch.float64)
        found = of(loss, precision, on.device, torch.float32)
        of_loss, *of_gradients = (float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))
        passes = max(of_loss, *of_gradients) <= LIMITS[precision]
        return {"error_of_loss": of_loss, "error_of_gradients": max(of_gradients), "passes": passes}

    return [
        {"passes": False} | on.tried(f"{name}, {precision}", errors, loss, precision)
        for name, loss, precisions in losses()
        for precision in precisions
    ]
