"""# InfoNCE in a loop of your own

`cpc.losses.info_nce` is a function of three tensors, so it fits into any loop of
PyTorch. This page trains an encoder and a GRU on noisy sine waves with it, in 40 lines,
and compares the result with chance and with the ceiling `log N`.
"""

import math

import matplotlib.pyplot as plt
import torch
from einops import rearrange
from torch import nn

import cpc

# %% Data and networks
# Each sequence is a sine wave of its own frequency and phase, in noise. A latent reads
# 8 samples, and the context reads all latents so far. `predict` maps the context to a
# query for the latent 3 steps ahead.


def waves(generator: torch.Generator) -> torch.Tensor:
    """Return 32 noisy sine waves of 24 times 8 samples."""
    frequency, phase = torch.rand(2, 32, 1, generator=generator)
    time = torch.arange(24 * 8) / 8
    clean = torch.sin(2 * math.pi * ((0.1 + frequency) * time + phase))
    return clean + 0.3 * torch.randn(32, 24 * 8, generator=generator)


torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
context = nn.GRU(32, 64, batch_first=True)
predict = nn.Linear(64, 32)
networks = nn.ModuleList([encoder, context, predict])
optimiser = torch.optim.Adam(networks.parameters(), lr=2e-3)

# %% The loop
# All latents of the batch are candidates. The positive of a query at time t is the
# latent at t + 3 of the same sequence. Its index in the flat list of candidates is all
# that the loss needs.

generator = torch.Generator().manual_seed(0)
positives = torch.arange(32 * 24).reshape(32, 24)[:, 3:].flatten()
bounds = []
for _ in range(600):
    z = encoder(rearrange(waves(generator), "b (t s) -> b t s", s=8))
    c, _ = context(z)
    queries = predict(c[:, :-3]).flatten(0, 1)
    result = cpc.losses.info_nce(queries, z.flatten(0, 1), positives)
    optimiser.zero_grad()
    result.loss.backward()
    optimiser.step()
    bounds.append((result.num_candidates.log() - result.loss_nats).mean().item())

# %% What it learnt
# `result` holds the loss, the number of candidates and the accuracy of every row.
# Chance is 1 / N: the positive is one of N candidates.

chance = 1 / (32 * 24)
ceiling = -math.log(chance)
print(f"accuracy {result.accuracy.mean():.0%}, by chance {chance:.1%}")
print(f"log N - L: {bounds[0]:.2f} nats before training, {bounds[-1]:.2f} after it")
assert -1 < bounds[0] < 0.2 and 2 < bounds[-1] < ceiling

figure, axes = plt.subplots(num="The bound rises from zero to two nats and more")
axes.plot(bounds, label="log N - L, 3 latents ahead")
axes.axhline(ceiling, linestyle="--", color="#858b94", label="ceiling log N")
axes.set(xlabel="step", ylabel="nats", ylim=(-0.5, 7.5))
axes.legend(loc="lower right")
plt.show()

# %% Options used
# [`info_nce`][cpc.losses.info_nce.info_nce] ·
# [what it returns][cpc.losses.output.RowLosses] ·
# [when log N - L is a bound](../theory.md) · [the same as a model](../library.md)
