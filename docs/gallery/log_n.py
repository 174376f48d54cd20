"""# What `log N - L` says

The loss of CPC turns into information: `log N - L` is at most the information of a context about a latent ahead. Here
the process is known, so its true information is known too. The page compares the two for a trained model, and shows
when the number comes out too low.
"""

import math

import matplotlib.pyplot as plt
import torch

import cpc
from cpc.bounds import BoundTally, VectorAR1, optimal_bound_nats
from cpc.bounds.estimators import info_nce

# %% A process whose truth is known
# Each step keeps 80 % of the step before and adds noise. The process is Markov, so a context cannot know more about the
# step `k` ahead than the current value does. That information has a closed form.

process, generator = VectorAR1(coefficient=0.8, dim=4), torch.Generator().manual_seed(0)
truth = [process.mutual_information_nats(step=k) for k in (1, 2, 3, 4)]

# %% A model learns it
# Negatives come from other sequences (`mixed_excluding`), because only these are independent of the context. Candidates
# of the sequence itself would let the context rule some of them out.

torch.manual_seed(0)
encoder, context = cpc.encoders.VectorEncoder(input_dim=4, dim=32), cpc.contexts.GRU(dim=64)
model = cpc.CPC(encoder, context, cpc.predictors.Bilinear(4), cpc.losses.Contrastive("mixed_excluding"))
model.initialise_from(process.sample(32, 32, generator))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(400):
    optimiser.zero_grad()
    model.loss(process.sample(32, 32, generator)).loss.backward()
    optimiser.step()

tally = BoundTally(model.steps)
with torch.no_grad():
    for _ in range(30):
        tally.update(model.loss(process.sample(32, 32, generator)))
bound = tally.compute("mixed_excluding", "new sequences")
print("k   truth   log N - L   ceiling")
for k, true_nats, nats, ceiling in zip(bound.steps, truth, bound.mi_bound_nats, bound.mi_ceiling_nats, strict=True):
    print(f"{k}   {true_nats:5.2f}   {nats:9.2f}   {ceiling:7.2f}")
    assert 0.8 * true_nats < nats < true_nats + 0.02

figure, axes = plt.subplots(num="The bound of every step lies just below the true information")
axes.plot(bound.steps, truth, "o-", color="#d55e00", label="true information")
axes.errorbar(bound.steps, bound.mi_bound_nats, 2 * torch.tensor(bound.standard_error_nats), label="log N - L")
axes.set(xlabel="k, steps ahead", ylabel="nats", xticks=bound.steps, ylim=(0, None))
axes.legend()
plt.show()

# %% With few candidates even a perfect critic reads too little
# Replace the model by the exact log density ratio, so that nothing is left to learn. The reading still cannot exceed
# `log N`, and it falls behind the truth long before it gets there. Raise N (batch size, `num_negatives`) until the
# reading no longer rises. `cpc evaluate` prints the information of Gaussians that would give the same reading.

sizes, exact = [4, 16, 64, 256, 1024, 4096], VectorAR1(coefficient=0.97, dim=4)
x, y = exact.sample(20_000, 2, generator).unbind(1)
readings = []
for n in sizes:
    starts = range(0, min(len(x) - n, 40 * n) + 1, n)
    scores = (exact.optimal_scores(x[i : i + n], y[i : i + n], step=1) for i in starts)
    readings.append(torch.stack([info_nce(matrix).nats for matrix in scores]).mean().item())
limit = exact.mutual_information_nats(step=1)
print(f"truth {limit:.2f}; N = 4 reads {readings[0]:.2f}, N = 4096 reads {readings[-1]:.2f}")
assert readings[0] < math.log(4) and abs(readings[-1] - optimal_bound_nats(limit, 4096)) < 0.3

figure, axes = plt.subplots(num="The reading of the exact critic rises with N, below log N and below the truth")
axes.axhline(limit, color="#d55e00", label="true information")
axes.plot(sizes, [math.log(n) for n in sizes], "--", color="#858b94", label="ceiling log N")
axes.plot(sizes, readings, "o-", label="log N - L of the exact critic")
axes.set(xscale="log", xlabel="N, candidates", ylabel="nats", ylim=(0, 9))
axes.legend()
plt.show()

# %% Options used
# [`VectorAR1`][cpc.bounds.vector_ar1.VectorAR1] · [`Bound`][cpc.bounds.bound.Bound] · [theory](../theory.md)
