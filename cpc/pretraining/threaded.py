"""The forward and backward pass of a model on threads, each with its part of the batch (`cpc.threads`).

B sequences; a part has some of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from cpc.data.batch import Batch
from cpc.model import CPC
from cpc.predictors import Output
from cpc.threads import run_parts, shares


def threaded_output(model: CPC, batch: Batch, state: Any = None) -> Output:
    """Return `model(batch.x, state)`, with the targets of `batch.target` if there are any.

    Every thread carries its sequences through encoder, context and predictors, and their gradients back. The sums of
    gradients are formed in the order of the parts, and each part draws its dropout from a generator of its own, so that
    results depend on the number of parts but not on which thread is faster. Models and devices whose parts cannot be
    told apart run whole: GPUs, batch norm, dropout inside torch's recurrent layers, networks of other libraries.
    """
    parts = shares(len(batch.x)) if _is_separable(model, batch.x) else [slice(None)]
    if len(parts) == 1:
        return _predict(model, batch.x, batch.target, state)
    seeds = torch.randint(2**62, (len(parts),)).tolist() if model.training else [0] * len(parts)

    def predict(index: int) -> Output:
        own_state = None if state is None else tuple(each[parts[index]] for each in state)
        target = None if batch.target is None else batch.target[parts[index]]
        with DropoutFrom(torch.Generator().manual_seed(seeds[index])):
            output = _predict(model, batch.x[parts[index]], target, own_state)
        return output._replace(queries={name: rearrange(q, "k b t d -> b t k d") for name, q in output.queries.items()})

    structures: list[TreeSpec] = []

    def tensors(index: int) -> list[Tensor | None]:
        flat, structure = tree_flatten(predict(index))
        structures.append(structure)
        return flat

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    joined = _Threaded.apply(tensors, len(parts), torch.is_grad_enabled(), *weights)
    output = tree_unflatten(list(joined), structures[0])
    return output._replace(queries={name: rearrange(q, "b t k d -> k b t d") for name, q in output.queries.items()})


def _predict(model: CPC, x: Tensor, target: Tensor | None, state: Any) -> Output:
    output = model(x, state)
    return output if target is None else output._replace(targets=model.targets(target))


def _is_separable(model: CPC, x: Tensor) -> bool:
    """Whether parts of a batch give on threads what they give together."""
    if x.device.type != "cpu" or "forward" in vars(model) or model._compiled_call_impl is not None:
        return False
    return all(_is_known(module) for module in model.modules())


def _is_known(module: nn.Module) -> bool:
    if not type(module).__module__.startswith(("cpc.", "torch.nn.", "torchaudio.transforms.")):
        return False
    return not isinstance(module, _BatchNorm) and not (isinstance(module, nn.RNNBase) and module.dropout > 0)


class DropoutFrom(TorchFunctionMode):
    """Dropout that draws from a generator, in place of the one that all threads share."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace `F.dropout` and the dropout of attention weights."""
        if function is F.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if function is F.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if p == 0 or not training:
            return x
        kept = torch.empty_like(x).bernoulli_(1 - p, generator=self.generator).div_(1 - p)
        return x.mul_(kept) if inplace else x * kept

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if dropout_p == 0:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **options)
        shape = (*query.shape[:-1], key.shape[-2])
        kept = torch.empty(shape, dtype=torch.bool).bernoulli_(1 - dropout_p, generator=self.generator)
        attend = torch.ops.aten._scaled_dot_product_attention_math
        return attend(query, key, value, attn_mask, dropout_p, is_causal, kept, **options)[0]


class _Threaded(torch.autograd.Function):
    """All parts' tensors joined along their first axis; gradients go through the parts' own graphs, on threads too."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, function: Callable[[int], list[Tensor | None]], num_parts: int, has_grad: bool, *weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        with torch.set_grad_enabled(has_grad):
            parts = run_parts(function, range(num_parts))
        ctx.set_materialize_grads(False)
        ctx.parts, ctx.weights = parts, weights
        joined = [None if leaves[0] is None else torch.cat(leaves).detach() for leaves in zip(*parts, strict=True)]
        of_first = zip(joined, parts[0], strict=True)
        ctx.mark_non_differentiable(*(each for each, part in of_first if part is not None and not part.requires_grad))
        return tuple(joined)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: D102
        split = [
            [None] * len(ctx.parts) if each is None else each.split([len(part[leaf]) for part in ctx.parts])
            for leaf, each in enumerate(gradients)
        ]

        def backward(index: int) -> tuple[Tensor | None, ...]:
            known = [
                (each, of_parts[index])
                for each, of_parts in zip(ctx.parts[index], split, strict=True)
                if of_parts[index] is not None
            ]
            outputs, of_outputs = zip(*known, strict=True)
            return torch.autograd.grad(outputs, ctx.weights, of_outputs, allow_unused=True)

        of_parts = run_parts(backward, range(len(ctx.parts)))
        return None, None, None, *(_sum(of_weight) for of_weight in zip(*of_parts, strict=True))


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    known = [each for each in gradients if each is not None]
    return functools.reduce(torch.add, known) if known else None
