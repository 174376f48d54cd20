"""Everything that a GPU is asked in one go, in at most ten minutes: are the losses right, how fast is what, what fits.

python -m benchmarks.gpu [--out gpu.json] [--device cuda] [--quick]

1. `checks`: every loss and its gradients in float32, TF32 and bfloat16 (those that have it) against float64 on the
   CPU, each with the limit that it must keep.
2. `step`: the training step at CPC_audio's size: eager, compiled, and as a CUDA graph (`reduce-overhead`).
3. `chunks`: memory of a batch eight times as large, encoded in eight chunks.
4. `loss`: M queries against M candidates of 256 channels, forward and backward: tiles of several sizes, materialised
   scores as they are and compiled to Triton's kernels, and the kernels of Inf-CL (`inf_cl`), Liger (`liger_kernel`),
   memeff (`memeff`) and siglip-kernel (`siglip_kernel`) where they are installed; these last, since one that fails may
   take the GPU along. siglip-kernel computes another loss, a sigmoid of every pair; it has the same products.

What fails is noted with its error, and the rest goes on; so is what finds its part's time over. Rates stand beside the
peak of a matrix product in the same process and precision. `--quick` takes small sizes; `--device cpu` then shows that
the command runs, and nothing about a GPU.
"""

import argparse
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu_rivals import QUERY_NORM, foreign
from benchmarks.reference import materialised_info_nce
from benchmarks.step import DIM, NUM_OPERATIONS, NUM_STEPS, WINDOW_SAMPLES
from cpc.candidates import STRATEGIES, LatentBank
from cpc.candidates.samplers import Uniform
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder
from cpc.losses import OBJECTIVES, Contrastive, LocalContrastive, bank_loss, class_loss, contrast, info_nce
from cpc.losses.engine import tiles
from cpc.losses.objectives import objective_of
from cpc.model import CPC
from cpc.predictors import Bilinear, Output
from cpc.pretraining.chunks import contrast_in_chunks

# Relative errors of a loss or its gradients at most: rounding by 2^-24, 2^-11 and 2^-8, four times, and float32's sums.
LIMITS = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1.6e-2}
PRECISIONS = tuple(LIMITS)
SECONDS = {"checks": 60, "step": 270, "chunks": 60, "loss": 180}  # with the peaks less than ten minutes
TILES = {"64 MiB of scores": 2**24, "256 MiB of scores": 2**26, "1 GiB of scores": 2**28}
LARGEST_MATERIALISED = 32768


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Float32 products of a GPU in this precision: `tf32`, or exactly."""
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = before


class Device:
    """The device that is measured.

    Attributes:
        until: when the time of what is measured now is over, on the monotonic clock.
    """

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.is_gpu = self.device.type == "cuda"
        self.until = math.inf

    def tried(self, row: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A row with what is measured, or with why it could not be: what a version cannot run is a finding, too."""
        left = self.until - time.monotonic()
        if left <= 0:
            return row | {"error": "its part's time was over"}
        before = signal.signal(signal.SIGALRM, _end)
        signal.setitimer(signal.ITIMER_REAL, 0 if left == math.inf else left)
        try:
            return row | measure()
        except Exception as error:
            return row | {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @property
    def name(self) -> str:
        """As its driver calls it."""
        return torch.cuda.get_device_name() if self.is_gpu else "cpu"

    def seconds(self, function: Callable[[], Any], repetitions: int = 5) -> float:
        """Median wall time of a call after two, the device idle before and after."""
        times = []
        for _ in range(repetitions + 2):
            self._wait()
            start = time.perf_counter()
            function()
            self._wait()
            times.append(time.perf_counter() - start)
        return sorted(times[2:])[repetitions // 2]

    def extra_mib(self, function: Callable[[], Any]) -> float | None:
        """The highest level of allocated memory during a call, above that before it; None on a CPU."""
        if not self.is_gpu:
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def peak_flops(self, precision: str, size: int) -> float:
        """Of a square product."""
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        a, b = (torch.randn(size, size, device=self.device, dtype=dtype) for _ in range(2))
        with products_in(precision):
            return 2 * size**3 / self.seconds(lambda: a @ b)

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


def _end(*_: object) -> None:
    raise TimeoutError("its part's time was over")


def losses() -> Iterator[tuple[str, Callable[..., torch.Tensor], bool]]:
    """Names, functions of queries `[K, B, T, D]`, latents `[B, T, D]` and `compute`, and whether there is a bf16."""
    ids = {"sequence_id": torch.arange(8) % 7, "group_id": torch.arange(8) % 3}
    num_valid = torch.tensor([16, 16, 9, 16, 12, 16, 7, 16])

    def contrastive(strategy: str, **options: Any) -> Callable[..., torch.Tensor]:
        def loss(queries: torch.Tensor, latents: torch.Tensor, compute: str) -> torch.Tensor:
            draws = torch.Generator().manual_seed(0)
            known = {"num_valid": num_valid, **ids, **options}
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
        batch = Batch.of(latents)._replace(num_valid=num_valid, **ids)
        return part(Output(latents, latents, {"": queries}, None), batch).loss

    def of_bank(queries: torch.Tensor, latents: torch.Tensor, _: str) -> torch.Tensor:
        flat = latents.flatten(0, 1)
        return bank_loss(queries[0].flatten(0, 1), flat, LatentBank(flat.roll(1, 0))).loss

    for strategy in STRATEGIES:
        yield strategy, contrastive(strategy), True
        yield f"{strategy}, 5 drawn", contrastive(strategy, num_negatives=5), True
    for objective in OBJECTIVES:
        yield objective, of_classes(objective), False
    yield "places", of_places, True
    yield "bank", of_bank, False


def checks(on: Device) -> list[dict[str, Any]]:
    """Of each loss and precision, the relative errors of the loss and of its gradients, and whether they are small."""
    torch.manual_seed(0)
    queries, latents = torch.randn(3, 8, 16, DIM) / 4, torch.randn(8, 16, DIM) / 4

    def of(loss: Callable[..., torch.Tensor], precision: str, device: torch.device, dtype: torch.dtype) -> Any:
        inputs = [each.to(device, dtype).requires_grad_() for each in (queries, latents)]
        with products_in(precision):
            value = loss(*inputs, "bf16" if precision == "bf16" else "float32")
            return [each.detach().cpu().double() for each in (value, *torch.autograd.grad(value, inputs))]

    def errors(loss: Callable[..., torch.Tensor], precision: str) -> dict[str, Any]:
        exact = of(loss, "float32", torch.device("cpu"), torch.float64)
        found = of(loss, precision, on.device, torch.float32)
        of_loss, *of_gradients = (float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))
        passes = max(of_loss, *of_gradients) <= LIMITS[precision]
        return {"of_loss": of_loss, "of_gradients": max(of_gradients), "passes": passes}

    rows = []
    for name, loss, has_bf16 in losses():
        for precision in PRECISIONS if has_bf16 else PRECISIONS[:2]:
            row = {"loss": name, "precision": precision, "limit": LIMITS[precision], "passes": False}
            rows.append(on.tried(row, lambda: errors(loss, precision)))  # noqa: B023
    return rows


def contenders(size: int, is_gpu: bool) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """Our ways to the loss of `size` queries, candidates and positives, and plain ones."""

    def ours(num_scores: int, compute: str) -> Callable[..., torch.Tensor]:
        def loss(queries: torch.Tensor, candidates: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
            tiles.TILE_SCORES, tiles.TILE_ROWS = num_scores, max(64, num_scores // size)
            return info_nce(queries, candidates, positives, compute=compute).loss

        return loss

    for name, num_scores in TILES.items():
        for compute in ("float32", "bf16"):
            yield f"tiles of {name}, {compute}", ours(num_scores, compute)
    if size <= LARGEST_MATERIALISED:
        yield "materialised", materialised_info_nce
        if is_gpu:
            yield "materialised, compiled", torch.compile(materialised_info_nce, dynamic=False)


def loss_times(on: Device, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Seconds and memory of every contender at every size."""
    rows, before = [], (tiles.TILE_SCORES, tiles.TILE_ROWS)
    ways = [(size, *way) for size in sizes for way in contenders(size, on.is_gpu)]
    ways += [(size, *way) for way in foreign() for size in sizes]
    for size, name, loss in ways:

        def measured(size: int = size, loss: Callable[..., torch.Tensor] = loss) -> dict[str, Any]:
            torch.manual_seed(0)
            queries = (QUERY_NORM * F.normalize(torch.randn(size, DIM, device=on.device), dim=1)).requires_grad_()
            candidates = F.normalize(torch.randn(size, DIM, device=on.device), dim=1).requires_grad_()
            positives = torch.arange(size, device=on.device)

            def step() -> None:
                torch.autograd.grad(loss(queries, candidates, positives), (queries, candidates))

            seconds, extra_mib = on.seconds(step, 3), on.extra_mib(step)
            return {"seconds": seconds, "extra_mib": extra_mib, "tflops": 6 * size * size * DIM / seconds / 1e12}

        for precision in ("float32", "tf32"):
            with products_in(precision):
                rows.append(on.tried({"size": size, "way": name, "products": precision}, measured))
    tiles.TILE_SCORES, tiles.TILE_ROWS = before
    return rows


def training_step(on: Device, batch_size: int, num_chunks: int = 1, mode: str = "eager") -> Callable[[str], None]:
    """The step at CPC_audio's size with all candidates, given a precision."""
    torch.manual_seed(0)
    model = CPC(AudioEncoder(DIM, norm="layer"), GRU(DIM), Bilinear(NUM_STEPS), Contrastive())
    batch = Batch.of(torch.randn(batch_size, WINDOW_SAMPLES))
    model.initialise_from(batch.x[:8])
    model.to(on.device)
    batch = batch._replace(x=batch.x.to(on.device))
    if mode != "eager":
        model.compile(fullgraph=True, mode=mode)
    optimiser = torch.optim.Adam(model.parameters(), 2e-4)

    def step(precision: str) -> None:
        with products_in(precision), torch.autocast(on.device.type, torch.bfloat16, enabled=precision == "bf16"):
            if num_chunks > 1:
                loss = contrast_in_chunks(model, batch, num_chunks)[1].loss
            else:
                loss = model.loss(batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def step_times(on: Device, batch_sizes: tuple[int, ...], peaks: dict[str, float]) -> list[dict[str, Any]]:
    """Windows a second, and the share of the peak that the step's products reach."""
    rows = []
    for mode in ("eager", "default", "reduce-overhead"):
        for precision in reversed(PRECISIONS):  # compiling takes long: what matters most comes first
            for batch_size in batch_sizes:
                # what the step shares with the reference, and the scores of all candidates
                num_rows = NUM_STEPS * batch_size * 128
                operations = NUM_OPERATIONS * batch_size / 8 + 6 * num_rows * batch_size * 128 * DIM

                def measured() -> dict[str, Any]:
                    step = training_step(on, batch_size, mode=mode)  # noqa: B023
                    seconds = on.seconds(lambda: step(precision))  # noqa: B023
                    share = operations / seconds / peaks[precision]  # noqa: B023
                    return {"windows_per_second": batch_size / seconds, "share_of_peak": share}  # noqa: B023

                rows.append(on.tried({"mode": mode, "batch_size": batch_size, "precision": precision}, measured))
        torch.compiler.reset()
    return rows


def chunk_memory(on: Device, batch_size: int) -> list[dict[str, Any]]:
    """Memory of a step, and of one with eight times the candidates in eight chunks."""

    def measured(num_chunks: int) -> dict[str, Any]:
        step = training_step(on, num_chunks * batch_size, num_chunks)
        step("bf16")
        return {"extra_mib": on.extra_mib(lambda: step("bf16"))}

    return [on.tried({"batch_size": n * batch_size, "num_chunks": n}, lambda n=n: measured(n)) for n in (1, 8)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="gpu.json")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can see; --device cpu --quick shows that the command runs")
    on, quick = Device(options.device), options.quick
    peaks = {precision: on.peak_flops(precision, 1024 if quick else 8192) for precision in PRECISIONS}
    found: dict[str, Any] = {
        "device": on.name,
        "torch": torch.__version__,
        "peak_tflops": {precision: peak / 1e12 for precision, peak in peaks.items()},
    }
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "checks": lambda: checks(on),
        "step": lambda: step_times(on, (2,) if quick else (64, 256, 8), peaks),
        "chunks": lambda: chunk_memory(on, 2 if quick else 64),
        "loss": lambda: loss_times(on, (256, 512) if quick else (16384, 32768, 65536, 131072)),
    }
    for name, part in parts.items():
        start = time.monotonic()
        on.until = start + SECONDS[name]
        found[name] = part()
        print(f"{name}, {time.monotonic() - start:.0f} s")
        for row in found[name]:
            print(f"  {row}")
        found["checks_pass"] = all(row["passes"] for row in found["checks"])
        with open(options.out, "w") as out:  # whatever comes later
            json.dump(found, out, indent=1)
    print(f"checks {'pass' if found['checks_pass'] else 'FAIL'}")


if __name__ == "__main__":
    main()
