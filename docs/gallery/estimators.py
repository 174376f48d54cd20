"""# Which estimator when: InfoNCE, NWJ, JS and SMILE against a truth

Four estimators of mutual information are trained on pairs of Gaussians whose
information rises from 2 to 10 nats. Each should follow the truth. None does all the
way, and each fails in its own manner.
"""

import math

import matplotlib.pyplot as plt

from cpc.bounds.calibration.training import train
from cpc.bounds.tasks import make_task

# %% One critic for each objective
# The critic scores pairs by two networks, `f(x) . g(y)`. A batch has 128 pairs, so
# InfoNCE cannot exceed `log 128 = 4.85`. JS and SMILE share their training objective:
# only the estimate read from the scores differs. Each level has 250 steps.

truth = [2, 4, 6, 8, 10]
tasks = [make_task("gaussian", nats, dim=20) for nats in truth]
measured = {}
for names in (["info_nce"], ["nwj"], ["js", "smile"]):
    levels = list(train(tasks, names, "separable", 128, 250, num_matrices=50, seed=0))
    for name in names:
        measured[name] = [level[name] for level in levels]

# %% What they read
# A cell is the mean over 50 new batches, with the standard deviation of a single batch
# in brackets.

print("true nats     2           4           6           8          10")
figure, panels = plt.subplots(2, 2, sharex=True, sharey=True, num="Readings and truth")
varies = {}
for axes, (name, each) in zip(panels.flat, measured.items(), strict=True):
    nats = [at.mean_nats for at in each]
    varies[name] = [at.standard_deviation_nats for at in each]
    cells = (f"{at.mean_nats:5.1f} ({at.standard_deviation_nats:.1f})" for at in each)
    print(f"{name:9}", "  ".join(cells))
    axes.plot(truth, truth, color="#d55e00", label="truth")
    axes.errorbar(truth, nats, varies[name], fmt="o", label="reading")
    axes.axhline(math.log(128), linestyle="--", color="#858b94", label="log N")
    axes.set(title=name, xlabel="true nats", ylim=(-0.5, 13))
handles = axes.get_legend_handles_labels()
figure.legend(*handles, loc="outside upper center", ncols=3)
plt.show()

assert all(each.mean_nats < math.log(128) for each in measured["info_nce"])
assert varies["info_nce"][-1] < min(varies["nwj"][-1], varies["smile"][-1])

# %% Which to take
# - **InfoNCE** while the information lies well below `log N`. It is a lower bound and
#   hardly varies. Above its ceiling (dashed) it says nothing.
# - **NWJ** and **JS** are lower bounds without a ceiling, but they vary more the more
#   information there is. One batch of NWJ at 8 nats and more is worthless here. JS
#   trains more steadily, because its objective has no exponentials.
# - **SMILE** varies less and has no ceiling, but it bounds nothing. Here its critic is
#   not yet good enough, so that it reads too little; with an exact critic it reads 12
#   where there are 10.
#
# A model trained by `cpc pretrain` has an InfoNCE critic, which knows each row only up
# to a constant. For it take `cpc evaluate --estimators tuba interpolated`.
# `cpc calibrate` makes this comparison for eight distributions.

# %% Options used
# [`info_nce`][cpc.bounds.estimators.info_nce] · [`nwj`][cpc.bounds.estimators.nwj] ·
# [`smile`][cpc.bounds.estimators.smile] · [`make_task`][cpc.bounds.tasks.make_task] ·
# [results with exact critics](../results/estimators.md) ·
# [theory](../theory.md#other-estimators-and-how-infonce-relates-to-mine)
