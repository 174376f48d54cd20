"""The training step at CPC_audio's size: eager, as a CUDA graph and compiled, beside the style of public code.

The plan of the batch does not change between steps, as in training on windows of one length.
"""

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.device import PRECISIONS, Device, Row, products_in
from benchmarks.reference import draw_per_step, gather_style_loss
from benchmarks.step import DIM, NUM_LATENTS, NUM_NEGATIVES, NUM_STEPS, WINDOW_SAMPLES
from cpc.contexts import GRU, LSTM
from cpc.contexts.recurrence import recurrent_layer
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.pretraining.step_graphs import StepGraphs, StepResult

NUM_WARM_UPS = 3


class TrainingStep:
    """A model with its batch and optimiser; a call is one training step, and returns its loss."""

    def __init__(
        self,
        on: Device,
        batch_size: int,
        precision: str,
        context: Callable[[int], Any] = GRU,
        num_negatives: int | None = None,
        is_reference: bool = False,
    ) -> None:
        torch.manual_seed(0)
        loss = Contrastive(num_negatives=num_negatives, compute=precision)  # type: ignore[arg-type]
        self.model = CPC(AudioEncoder(DIM, norm="layer"), context(DIM), Bilinear(NUM_STEPS), loss)
        x = torch.randn(batch_size, WINDOW_SAMPLES)
        self.model.initialise_from(x[:8])
        self.model.to(on.device)
        self.batch = Batch.of(x.to(on.device))
        self.on, self.precision = on, precision
        # A graph holds neither numbers of the host's generator nor its learning rate: both live on the GPU.
        self.generator = torch.Generator(on.device).manual_seed(0)
        self.optimiser = torch.optim.Adam(self.model.parameters(), 2e-4, fused=True, capturable=on.is_gpu)
        self.negatives: list[Tensor] = []
        if is_reference:
            draws = draw_per_step(NUM_STEPS, batch_size, NUM_LATENTS, NUM_NEGATIVES, torch.Generator().manual_seed(0))
            self.negatives = [each.to(on.device) for each in draws]

    def __call__(self) -> Tensor:  # noqa: D102
        self.optimiser.zero_grad()
        with torch.autocast(self.on.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if self.negatives:
                loss = gather_style_loss(self.model, self.batch.x, self.negatives)
            else:
                loss = self.model.loss(self.batch, self.generator).loss
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def captured(self) -> Callable[[], Tensor]:
        """Return the step as one CUDA graph, after warm-up steps.

        Warm-up and capture share a stream, so that gradients are accumulated on it.
        """
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                self()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            loss = self()

        def replay() -> Tensor:
            graph.replay()
            return loss

        return replay


def step_rows(on: Device, is_quick: bool) -> list[Row]:
    """Windows a second, memory, and the loss after six steps, which is that of the eager step."""
    sizes, largest = ((2,), ()) if is_quick else ((64, 8), (256,))
    ways = ("eager", "graph") if on.is_gpu else ("eager",)
    every, contexts = (None, NUM_NEGATIVES), (GRU,) if is_quick else (GRU, LSTM)
    settings = [(*each, "bf16", way) for n in every for each in product(sizes, contexts, (n,)) for way in ways]
    settings += [(size, LSTM, NUM_NEGATIVES, "bf16", "reference style") for size in sizes]
    settings += [(sizes[0], GRU, None, precision, way) for precision in PRECISIONS[1:] for way in ways]
    settings += [(*each, "bf16", way) for each in product(largest, contexts, every) for way in ways]
    return [
        on.tried(
            f"{size} windows, {context.__name__}, {negatives or 'all'}, {precision}, {way}",
            *(_measured, on, size, context, negatives, precision, way),
        )
        for size, context, negatives, precision, way in settings
    ]


def _measured(
    on: Device, size: int, context: Callable[[int], Any], num_negatives: int | None, precision: str, way: str
) -> Row:
    with products_in(precision):
        if on.is_gpu:
            torch.cuda.reset_peak_memory_stats()
        step = TrainingStep(on, size, precision, context, num_negatives, way == "reference style")
        run: Callable[[], Tensor] = step
        if way == "graph":
            run = step.captured()
        elif on.is_gpu:
            for _ in range(NUM_WARM_UPS):
                run()
        loss = [float(run()) for _ in range(3 if on.is_gpu else 1)][-1]
        peak_mib = torch.cuda.max_memory_allocated() / 2**20 if on.is_gpu else None
        seconds = on.seconds(run)
    return {"windows_per_second": size / seconds, "ms": 1e3 * seconds, "peak_mib": peak_mib, "loss": loss}


def compile_rows(on: Device, is_quick: bool) -> list[Row]:
    """The recurrence by itself, the steps of `--compile reduce-overhead`, and the step with a compiled model."""
    size, contexts = (2, (GRU,)) if is_quick else (64, (GRU, LSTM))
    rows = [
        on.tried(f"{size} windows, {context.__name__} alone, {way}", _recurrence, on, size, context, way)
        for context, way in product(contexts, ("autocast", "float32", "operator"))
    ]
    rows += [
        on.tried(f"{size} windows, {context.__name__}, all, bf16, step graphs", _replayed, on, size, context)
        for size, context in product((64, 8), contexts)
        if on.is_gpu
    ]
    return rows + [
        on.tried(f"{size} windows, {context.__name__}, all, bf16, compiled", _compiled, on, size, context)
        for context in contexts
    ]


def _recurrence(on: Device, size: int, context: Callable[[int], Any], way: str) -> Row:
    """Forward and backward; the operator is what torch.compile calls."""
    model = context(DIM)
    model.connect(DIM)
    model.to(on.device)
    z = torch.randn(size, NUM_LATENTS, DIM, device=on.device, requires_grad=True)
    state = [z.new_zeros(1, size, DIM) for _ in model.state_shapes]

    def run() -> None:
        with torch.autocast(on.device.type, torch.bfloat16, enabled=way != "float32"):
            weights = list(model.parameters())
            contexts = recurrent_layer(z, state, weights)[0] if way == "operator" else model(z)[0]
        contexts.sum().backward()

    with products_in("bf16"):
        return {"ms": 1e3 * on.seconds(run)}


def _compiled(on: Device, size: int, context: Callable[[int], Any]) -> Row:
    try:
        step = TrainingStep(on, size, "bf16", context)
        start = time.perf_counter()
        step.model.compile(fullgraph=True, dynamic=False)
        float(step())
        first = time.perf_counter() - start
        seconds = on.seconds(step)
        return {"ms": 1e3 * seconds, "windows_per_second": size / seconds, "first_step_seconds": first}
    finally:
        torch.compiler.reset()


def _replayed(on: Device, size: int, context: Callable[[int], Any]) -> Row:
    """With the optimiser and clipping outside of the graph, as in `cpc pretrain`."""
    step = TrainingStep(on, size, "bf16", context)

    def compute(batch: Batch) -> StepResult:
        output = step.model(batch.x)
        contrast = step.model.contrast(output, batch, step.generator)
        return StepResult(output.latents.detach(), output.contexts.detach(), contrast)

    graphs = StepGraphs(compute, step.model, step.generator)

    def run() -> Tensor:
        with torch.autocast(on.device.type, torch.bfloat16):
            loss = graphs(step.batch).contrast.loss
        step.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(step.model.parameters(), 1.0)
        step.optimiser.step()
        return loss.detach()

    loss = [float(run()) for _ in range(NUM_WARM_UPS + 3)][-1]
    seconds = on.seconds(run)
    return {"ms": 1e3 * seconds, "windows_per_second": size / seconds, "loss": loss}
