"""Training steps as CUDA graphs: one launch for the forward pass, the loss and all gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpc.candidates.strategies import identities_read
from cpc.data.batch import Batch
from cpc.losses.engine import attach_gradients
from cpc.losses.output import ContrastiveOutput
from cpc.model import CPC

NUM_WARM_UPS = 3  # equal steps before a capture, in which libraries allocate memory and kernels are compiled
MAX_GRAPHS = 4


class StepResult(NamedTuple):
    """Latents and contexts of a batch without gradients, and its loss."""

    latents: Tensor
    contexts: Tensor
    contrast: ContrastiveOutput


Gradients = tuple[Tensor | None, ...]


class StepGraphs:
    """Computes training steps, and replays a CUDA graph once equal steps have come `NUM_WARM_UPS` times in a row.

    Steps are equal if shapes, lengths, and equalities of the identities that the loss reads are equal. The host plans
    the loss from these, and a graph repeats its plan. All other steps are computed as without graphs, and counted.
    Accumulation and clipping of gradients and the optimiser follow outside of the graph, as for any loss.

    In `compute`, forward pass and loss, the host draws nothing: draws come from the generator, whose device is that of
    the steps. The loss of the model is a `Contrastive`.
    """

    def __init__(self, compute: Callable[[Batch], StepResult], model: CPC, generator: torch.Generator) -> None:
        self.compute = compute
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.loss_part = model.loss_part
        self.generator = generator
        self.num_steps = self.num_replayed = 0
        self._graphs: dict[Any, tuple[Batch, StepResult, Gradients, Callable[[], None], Any]] = {}
        self._latest: Any = None
        self._num_alike = 0
        self._stream = torch.cuda.Stream(generator.device) if generator.device.type == "cuda" else None

    def __call__(self, batch: Batch) -> StepResult:
        """Return the result of a step; the gradient of its loss is that of the model."""
        key = self._key(batch)
        self._num_alike = self._num_alike + 1 if key == self._latest else 1
        self._latest = key
        self.num_steps += 1
        with self._on_stream():
            if key in self._graphs:
                self.num_replayed += 1
                result, gradients = self._replay(key, batch)
            else:
                result, gradients = self._compute_gradients(batch)
                if self._num_alike == NUM_WARM_UPS and len(self._graphs) < MAX_GRAPHS:
                    self._graphs[key] = self._capture(batch)  # at once, while the plans of this step are kept
            loss = attach_gradients(result.contrast.loss, self.parameters, gradients)
        return result._replace(contrast=result.contrast._replace(loss=loss))

    def _compute_gradients(self, batch: Batch) -> tuple[StepResult, Gradients]:
        kind = self.generator.device.type
        is_enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        # Without a cache, since a graph would read weights that autocast cast before the capture.
        with torch.autocast(kind, dtype, is_enabled, cache_enabled=False):
            result = self.compute(batch)
        loss = result.contrast.loss
        with torch.autocast(kind, enabled=False):
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return result._replace(contrast=result.contrast._replace(loss=loss.detach())), gradients

    def _capture(self, batch: Batch) -> tuple[Batch, StepResult, Gradients, Callable[[], None], Any]:
        batch = batch._replace(x=batch.x.clone(), target=None if batch.target is None else batch.target.clone())
        try:
            (result, gradients), replay = self._record(lambda: self._compute_gradients(batch))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            problem = f"a part of the model cannot be captured as a CUDA graph ({reason})"
            raise ValueError(f"`compile`=reduce-overhead: {problem}; choose default or off") from error
        # The graph reads the plans of the loss, which only a cache holds.
        return batch, result, gradients, replay, self.loss_part.plans

    def _record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Return the outputs of a graph, and the function that computes them again."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, stream=self._stream):
            outputs = compute()
        return outputs, graph.replay

    def _replay(self, key: Any, batch: Batch) -> tuple[StepResult, Gradients]:
        static, (latents, contexts, contrast), gradients, replay, _ = self._graphs[key]
        static.x.copy_(batch.x)
        if static.target is not None and batch.target is not None:
            static.target.copy_(batch.target)
        replay()
        # Copies, since the next replay overwrites the outputs, and the loss is checked one step later.
        copied = ContrastiveOutput(contrast.loss.clone(), *torch.stack(contrast[1:]))
        return StepResult(latents.clone(), contexts.clone(), copied), gradients

    def _key(self, batch: Batch) -> tuple[Any, ...]:
        ids = torch.arange(len(batch.x)) if batch.sequence_id is None else batch.sequence_id
        strategies = self.loss_part.training_strategies
        read = [each for name in strategies for each in identities_read(name, ids, batch.group_id)]
        lengths = None if batch.num_valid is None else tuple(batch.num_valid.tolist())
        is_known = None if batch.is_known is None else batch.is_known.numpy().tobytes()
        return batch.x.shape, batch.target is None, lengths, is_known, tuple(map(_equalities, read))

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Compute on one stream for all steps, since gradients that cross streams break a capture."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)


def _equalities(ids: Tensor | None) -> tuple[int, ...] | None:
    """Replace each identity by the order of its first appearance; -1 is unknown and stays."""
    order: dict[int, int] = {}
    return None if ids is None else tuple(i if i == -1 else order.setdefault(i, len(order)) for i in ids.tolist())
