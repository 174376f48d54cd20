"""A model's forward and backward pass on threads, each with its part of the batch (`cpc.threads`).

B observations, of which a part has some; K steps, S sequences, T latents, D latent dim.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from cpc.data.batch import Batch
from cpc.model import CPC
from cpc.predictors import Output
from cpc.threads import run_parts, shares

SEPARABLE = ("cpc.", "torch.nn.", "torchaudio.transforms.")  # modules that keep the observations of a batch apart


def threaded_output(model: CPC, batch: Batch, state: Any = None) -> Output:
    """Return `model(batch.x, state)`, with the targets of `batch.target` where the batch has one.

    Each thread carries its observations through encoder, context and predictors, and later their gradients back. The
    gradients of the parts are added in a fixed order, and each part draws dropout from a generator of its own, so that
    results depend on the number of threads that torch has, and not on their scheduling.

    A GPU, a compiled model, batch norm, dropout inside torch's own recurrent layers, and modules that neither cpc nor
    torch wrote take the batch whole.
    """
    parts = shares(len(batch.x)) if _is_separable(model, batch.x) else [slice(None)]
    if len(parts) == 1:
        return _predict(model, batch, state)
    has_dropout = model.training and any(_has_dropout(module) for module in model.modules())
    seeds = torch.randint(2**62, (len(parts),)).tolist() if has_dropout else []
    structure: Any = None

    def predict(index: int) -> list[Tensor | None]:
        nonlocal structure  # the same for all parts
        part = parts[index]
        own_state = None if state is None else tuple(each[part] for each in state)
        own_target = None if batch.target is None else batch.target[part]
        with OwnDropout(seeds[index]) if has_dropout else nullcontext():
            output = _predict(model, batch._replace(x=batch.x[part], target=own_target), own_state)
        queries = {name: rearrange(q, "k s t d -> s t k d") for name, q in output.queries.items()}
        tensors, structure = tree_flatten(output._replace(queries=queries))
        return tensors

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    joined = _JoinedParts.apply(predict, len(parts), torch.is_grad_enabled(), *weights)
    output = tree_unflatten(list(joined), structure)
    return output._replace(queries={name: rearrange(q, "s t k d -> k s t d") for name, q in output.queries.items()})


def _predict(model: CPC, batch: Batch, state: Any) -> Output:
    output = model(batch.x, state)
    return output if batch.target is None else output._replace(targets=model.targets(batch.target))


def _is_separable(model: CPC, x: Tensor) -> bool:
    if x.device.type != "cpu" or model._compiled_call_impl is not None:
        return False
    return not any(
        isinstance(module, _BatchNorm)
        or (isinstance(module, nn.RNNBase) and module.dropout > 0)
        or not type(module).__module__.startswith(SEPARABLE)
        for module in model.modules()
    )


def _has_dropout(module: nn.Module) -> bool:
    return (module.p if isinstance(module, nn.Dropout) else getattr(module, "dropout", 0)) > 0


class OwnDropout(TorchFunctionMode):
    """Draw dropout from a generator of this thread's own, instead of the one that all threads share."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace `F.dropout` and the dropout of attention weights."""
        own: dict[Any, Any] = {F.dropout: self._dropout, F.scaled_dot_product_attention: self._attention}
        return own.get(function, function)(*args, **(kwargs or {}))

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if p == 0 or not training:
            return x
        factor = torch.empty_like(x).bernoulli_(1 - p, generator=self.generator).div_(1 - p)
        return x.mul_(factor) if inplace else x * factor

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
    ) -> Tensor:
        if dropout_p == 0:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return self._dropout(scores.softmax(-1), dropout_p) @ value


class _JoinedParts(torch.autograd.Function):
    """All parts' tensors, joined along their first axis; gradients go through each part's own graph, on threads."""

    @staticmethod
    def forward(
        ctx: Any, predict: Callable[[int], list[Tensor | None]], num_parts: int, has_grad: bool, *weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        with torch.set_grad_enabled(has_grad):
            parts = run_parts(predict, range(num_parts))
        joined = [None if each[0] is None else torch.cat(each).detach() for each in zip(*parts, strict=True)]
        ctx.set_materialize_grads(False)
        ctx.parts, ctx.weights = parts, weights
        ctx.mark_non_differentiable(
            *(each for each, own in zip(joined, parts[0], strict=True) if own is not None and not own.requires_grad)
        )
        return tuple(joined)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        known = [(index, gradient) for index, gradient in enumerate(gradients) if gradient is not None]
        split = [gradient.split([len(part[index]) for part in ctx.parts]) for index, gradient in known]

        def backward(part: int) -> tuple[Tensor | None, ...]:
            outputs = [ctx.parts[part][index] for index, _ in known]
            return torch.autograd.grad(outputs, ctx.weights, [each[part] for each in split], allow_unused=True)

        of_parts = run_parts(backward, range(len(ctx.parts)))
        return None, None, None, *(_total(of_weight) for of_weight in zip(*of_parts, strict=True))


def _total(gradients: Sequence[Tensor | None]) -> Tensor | None:
    known = [each for each in gradients if each is not None]
    return functools.reduce(torch.add, known) if known else None
