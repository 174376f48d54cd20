"""# What `log N - L` says

The loss of CPC turns into information: `log N - L` is at most the information of a
context about a latent ahead. Here the process is known, so its true information is
known too. The page compares the two for a trained model, and shows when the number
comes out too low.
"""

import math

import matplotlib.pyplot as plt
import torch

import cpc
from cpc.bounds import BoundTally, VectorAR1, optimal_bound_nats
from cpc.bounds.estimators import info_nce

# %% A process whose truth is known
# Each step keeps 80 % of the step before and adds noise. The process is Markov, so a
# context cannot know more about the step `k` ahead than the current value does. That
# information has a closed form.

process = VectorAR1(coefficient=0.8, dim=4)
truth = [process.mutual_information_nats(step=k) for k in (1, 2, 3, 4)]

# %% A model learns it
# Negatives come from other sequences (`mixed_excluding`), because only these are
# independent of the context. Candidates of the sequence itself would let the context
# rule some of them out. The bound is measured on sequences that no step was trained on.

torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = cpc.CPC(
    cpc.encoders.VectorEncoder(input_dim=4, dim=32),
    cpc.contexts.GRU(dim=64),
    cpc.predictors.Bilinear(4),
    cpc.losses.Contrastive("mixed_excluding"),
)
model.initialise_from(process.sample(32, 32, generator))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
tally = BoundTally(model.steps)
for step in range(430):
    result = model.loss(process.sample(32, 32, generator))
    if step >= 400:
        tally.update(result)
        continue
    optimiser.zero_grad()
    result.loss.backward()
    optimiser.step()

bound = tally.compute("mixed_excluding", "new sequences")
print("true information", *(f"{nats:5.2f}" for nats in truth))
print("log N - L       ", *(f"{nats:5.2f}" for nats in bound.mi_bound_nats))
for true_nats, nats in zip(truth, bound.mi_bound_nats, strict=True):
    assert 0.8 * true_nats < nats < true_nats + 0.02

figure, axes = plt.subplots(num="The bound of each step lies just below the truth")
axes.plot(bound.steps, truth, "o-", color="#d55e00", label="true information")
errors = 2 * torch.tensor(bound.standard_error_nats)
axes.errorbar(bound.steps, bound.mi_bound_nats, errors, label="log N - L")
axes.set(xlabel="k, steps ahead", ylabel="nats", xticks=bound.steps, ylim=(0, None))
axes.legend()

# %% With few candidates even a perfect critic reads too little
# Replace the model by the exact log density ratio, so that nothing is left to learn.
# The reading still cannot exceed `log N`, and it falls behind the truth long before it
# gets there. Raise N (batch size, `num_negatives`) until the reading no longer rises.
# `cpc evaluate` prints the information of Gaussians that would give the same reading.

sizes = [4, 16, 64, 256, 1024, 4096]
exact = VectorAR1(coefficient=0.97, dim=4)
limit = exact.mutual_information_nats(step=1)
pairs = exact.sample(20_000, 2, generator)
readings = []
for n in sizes:
    batches = pairs.split(n)[: min(len(pairs) // n, 40)]
    scores = [exact.optimal_scores(*batch.unbind(1), step=1) for batch in batches]
    nats = [info_nce(matrix).nats.item() for matrix in scores]
    readings.append(sum(nats) / len(nats))
print(f"truth {limit:.2f}; readings", *(f"{nats:.2f}" for nats in readings))
assert readings[0] < math.log(4)
assert abs(readings[-1] - optimal_bound_nats(limit, 4096)) < 0.3

figure, axes = plt.subplots(num="The exact critic reads more with N, below the truth")
axes.axhline(limit, color="#d55e00", label="true information")
axes.semilogx(sizes, [math.log(n) for n in sizes], "C2--", label="ceiling log N")
axes.semilogx(sizes, readings, "C0o-", label="log N - L of the exact critic")
axes.set(xlabel="N, candidates", ylabel="nats", ylim=(0, 9))
axes.legend()
plt.show()

# %% Options used
# [`VectorAR1`][cpc.bounds.vector_ar1.VectorAR1] · [`Bound`][cpc.bounds.bound.Bound] ·
# [theory](../theory.md)
