"""# InfoNCE in a loop of your own

`cpc.losses.info_nce` is a function of three tensors, so it fits into any loop of PyTorch. This page trains an encoder
and a GRU on noisy sine waves with it, in 40 lines, and compares the result with chance and with the ceiling `log N`.
"""

import math

import matplotlib.pyplot as plt
import torch
from einops import rearrange
from torch import nn

import cpc

# %% Data and networks
# Each sequence is a sine wave of its own frequency and phase, in noise. A latent reads 8 samples, and the context
# reads all latents so far. `predict` maps the context to a query for the latent `K` steps ahead.

B, T, SAMPLES, D, K = 32, 24, 8, 32, 3


def waves(generator: torch.Generator) -> torch.Tensor:
    """Return noisy sine waves, one for each sequence."""
    frequency, phase = torch.rand(2, B, 1, generator=generator)
    time = torch.arange(T * SAMPLES) / SAMPLES
    clean = torch.sin(2 * math.pi * ((0.1 + frequency) * time + phase))
    return clean + 0.3 * torch.randn(B, T * SAMPLES, generator=generator)


torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(SAMPLES, 64), nn.ReLU(), nn.Linear(64, D))
context, predict = nn.GRU(D, 64, batch_first=True), nn.Linear(64, D)
parameters = [*encoder.parameters(), *context.parameters(), *predict.parameters()]
optimiser = torch.optim.Adam(parameters, lr=2e-3)

# %% The loop
# All latents of the batch are candidates. The positive of a query at time t is the latent at t + K of the same
# sequence. Its index in the flat list of candidates is all that the loss needs.

generator = torch.Generator().manual_seed(0)
positives = rearrange(torch.arange(B * T), "(b t) -> b t", b=B)[:, K:].flatten()
bounds = []
for _ in range(600):
    z = encoder(rearrange(waves(generator), "b (t s) -> b t s", s=SAMPLES))
    c, _ = context(z)
    queries, candidates = predict(c[:, :-K]).flatten(0, 1), z.flatten(0, 1)
    result = cpc.losses.info_nce(queries, candidates, positives)
    optimiser.zero_grad()
    result.loss.backward()
    optimiser.step()
    bounds.append((result.num_candidates.log() - result.loss_nats).mean().item())

# %% What it learnt
# `result` holds the loss, the number of candidates and the accuracy of every row. Chance is 1 / N: the positive is one
# of N candidates.

ceiling = math.log(B * T)
print(f"N = {B * T} candidates: chance is {100 / (B * T):.1f} %, accuracy {100 * result.accuracy.mean():.0f} %")
print(f"log N - L: {bounds[0]:.2f} nats before training, {bounds[-1]:.2f} after it, ceiling {ceiling:.2f}")
assert -1 < bounds[0] < 0.2 and 2 < bounds[-1] < ceiling

figure, axes = plt.subplots(num="The bound rises from zero to more than two nats, below the ceiling")
axes.plot(bounds, label=f"log N - L, {K} latents ahead")
axes.axhline(ceiling, linestyle="--", color="#858b94", label="ceiling log N")
axes.set(xlabel="step", ylabel="nats", ylim=(-0.5, 7.5))
axes.legend(loc="lower right")
plt.show()

# %% Options used
# [`info_nce`][cpc.losses.info_nce.info_nce] · [what it returns][cpc.losses.output.RowLosses] ·
# [when log N - L is a bound](../theory.md) · [the same as a model](../library.md)
