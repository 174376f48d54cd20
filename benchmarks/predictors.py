"""The predictors, forward and backward, and the transformer's layers of all steps in batched products.

python -m benchmarks.predictors [--repetitions N]

12 steps, 8 windows of 128 contexts of width 512, latents of width 256, 8 heads, a feed-forward layer of 2048, float32,
one thread. `batched` computes the K layers of `TransformerPredictor` at once, as `torch.bmm` on stacked weights; `cpc`
does not do this, and its results are checked against those of `cpc`. One process, alternating calls; figures are
processor time, which other processes do not change.
"""

import argparse
import json
import time
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from benchmarks.machine import machine_state
from cpc.contexts.transformer import rotate
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.predictors import Bilinear, TransformerPredictor

BATCH_SIZE, NUM_LATENTS, NUM_STEPS, CONTEXT_DIM, LATENT_DIM = 8, 128, 12, 512, 256


class Batched(nn.Module):
    """The transformer layers of all steps with stacked weights: each product computes all steps at once."""

    def __init__(self, predictor: TransformerPredictor) -> None:
        super().__init__()
        self.num_heads = predictor.num_heads
        self.heads = predictor.heads
        layer_weights: list[dict[str, Tensor]] = [dict(layer.named_parameters()) for layer in predictor.layers]
        for name in layer_weights[0]:
            stacked = torch.stack([weights[name].detach() for weights in layer_weights])
            self.register_parameter(name.replace(".", "_"), nn.Parameter(stacked))

    def forward(self, c: Tensor) -> Tensor:
        """Return queries `[K, B, T, D]` of contexts `[B, T, C]`."""
        w: Any = self
        x = rearrange(c, "b t c -> 1 (b t) c")
        normed = torch.addcmul(w.attention_norm_bias[:, None], unit(x), w.attention_norm_weight[:, None])
        queries, keys, values = rearrange(
            normed @ w.query_key_value_weight.mT,
            "k (b t) (three h d) -> three (k b) h t d",
            three=3,
            b=len(c),
            h=self.num_heads,
        )
        attended = F.scaled_dot_product_attention(rotate(queries, 0), rotate(keys, 0), values, is_causal=True)
        x = x + rearrange(attended, "(k b) h t d -> k (b t) (h d)", b=len(c)) @ w.output_weight.mT
        normed = torch.addcmul(w.feedforward_0_bias[:, None], unit(x), w.feedforward_0_weight[:, None])
        hidden = torch.baddbmm(w.feedforward_1_bias[:, None], normed, w.feedforward_1_weight.mT).relu()
        x = x + torch.baddbmm(w.feedforward_4_bias[:, None], hidden, w.feedforward_4_weight.mT)
        return rearrange(unit(x) @ self.heads.weights.mT, "k (b t) d -> k b t d", b=len(c))


def unit(x: Tensor) -> Tensor:
    """Layer norm without gain and bias."""
    return F.layer_norm(x, x.shape[-1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    prepare_processor()
    state = machine_state(keep_freed_memory())
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    predictors: dict[str, Any] = {
        "bilinear": Bilinear(NUM_STEPS),
        "shared": TransformerPredictor(NUM_STEPS, dropout=0.0, shared_across_steps=True),
        "per step": TransformerPredictor(NUM_STEPS, dropout=0.0),
    }
    for each in predictors.values():
        each.connect(CONTEXT_DIM, LATENT_DIM)
    predictors["per step, batched"] = Batched(predictors["per step"])
    c = torch.randn(BATCH_SIZE, NUM_LATENTS, CONTEXT_DIM, requires_grad=True)
    torch.testing.assert_close(predictors["per step, batched"](c), predictors["per step"](c))
    gradient = torch.randn(NUM_STEPS, BATCH_SIZE, NUM_LATENTS, LATENT_DIM)
    seconds: dict[str, list[float]] = {name: [] for name in predictors}
    for turn in range(options.repetitions + 1):
        for name, predictor in predictors.items():
            start = time.process_time()
            torch.autograd.grad(predictor(c), [c, *predictor.parameters()], gradient)
            if turn > 0:  # warm
                seconds[name].append(time.process_time() - start)
    medians = {name: median(times) for name, times in seconds.items()}
    for name, predictor in predictors.items():
        num_parameters = sum(each.numel() for each in predictor.parameters())
        print(
            f"{name:18} {medians[name]:7.3f} s  {medians[name] / medians['bilinear']:6.1f}x the bilinear's  "
            f"{num_parameters / 1e6:6.2f} M parameters"
        )
    print(json.dumps({f"seconds_{name}": round(each, 4) for name, each in medians.items()} | {"machine": state}))


if __name__ == "__main__":
    main()
